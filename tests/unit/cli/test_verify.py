"""``verify`` and ``repair``: what they ask, print and end with."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from mirror_pipeline.cli.show.progress import Bars, Lines, VerifyContent
from mirror_pipeline.verdicts import Difference, VerifyProgress
from tests.support.cli_fakes import PROOF, REPAIR, VERDICT, Cli, FakeMirror

LOST = Difference("missing", "orders", 3, 71, None)
CHANGED = Difference("altered", "orders", 3, 80, 79, "value differs at byte 7 (8 bytes became 8 bytes)")
BAD = replace(PROOF, topics=(replace(VERDICT, verdict="different", differences=2),), differences=(LOST, CHANGED))


def test_a_sound_copy(cli: Cli) -> None:
    ended = cli("verify", mirrors=[FakeMirror()])
    assert ended.code == 0
    assert "identical; 7 records deleted by the target's retention" in ended.out
    assert "900 records, 90.0 MB in 2.0 s, 45.0 MB/s: identical on both sides" in ended.out


def test_a_mirror_that_has_copied_nothing_is_not_called_identical(cli: Cli) -> None:
    ended = cli("verify", mirrors=[FakeMirror(the_proof=replace(PROOF, topics=()))])
    assert ended.code == 0 and "nothing was compared" in ended.out and "identical" not in ended.out


def test_differences_are_a_line_each_and_exit_code_1(cli: Cli) -> None:
    ended = cli("verify", mirrors=[FakeMirror(the_proof=BAD)])
    assert ended.code == 1
    assert "missing   orders[3] source offset 71\n" in ended.out
    assert "altered   orders[3] source offset 80, target offset 79: value differs at byte 7 (8 bytes became 8 bytes)\n" in ended.out
    assert "different; 2 differences" in ended.out


def test_many_differences_are_cut_short_for_people_only(cli: Cli) -> None:
    many = replace(BAD, differences=(LOST,) * 1234)
    assert "… and 1,214 more: --all or --json\n" in cli("verify", mirrors=[FakeMirror(the_proof=many)]).out
    assert cli("verify", "--all", mirrors=[FakeMirror(the_proof=many)]).out.count("missing   orders[3]") == 1234
    assert len(cli("verify", "--json", mirrors=[FakeMirror(the_proof=many)]).json["differences"]) == 1234
    assert "there are more: only the first of each partition" in cli("verify", mirrors=[FakeMirror(the_proof=replace(BAD, more=True))]).out


def test_what_was_repaired_is_no_difference_and_is_named(cli: Cli) -> None:
    row = replace(VERDICT, verdict="repaired", repaired=1)
    ended = cli("verify", mirrors=[FakeMirror(the_proof=replace(PROOF, topics=(row,), repaired=(LOST,)))])
    assert ended.code == 0
    assert "repaired; 1 record in east.orders.repair" in ended.out
    assert "identical on both sides, except for 1 record in side topics" in ended.out


def test_json_of_several_mirrors_is_one_document(cli: Cli) -> None:
    ended = cli("verify", "--json", mirrors=[FakeMirror("a"), FakeMirror("b", the_proof=BAD)])
    found = ended.json
    assert ended.code == 1
    assert (found["ok"], found["records"], found["leaves"], found["expired"], found["seconds"]) == (False, 1800, 2, 14, 4.0)
    assert found["differences"][0] == {
        "topic": "orders", "partition": 3, "source_offset": 71, "target_offset": None, "kind": "missing", "detail": "",
    }  # fmt: skip
    assert [topic["verdict"] for topic in found["topics"]] == ["identical", "different"]
    assert found["topics"][0]["partitions"][0]["root"] == "aa"


def test_what_cannot_be_read_is_a_problem(cli: Cli) -> None:
    closed = replace(PROOF, topics=(replace(VERDICT, verdict="unreadable", note="the source topic was deleted"),))
    ended = cli("verify", mirrors=[FakeMirror(the_proof=closed)])
    assert (ended.code, "unreadable" in ended.out, "the source topic was deleted" in ended.out) == (1, True, True)


def test_options_reach_the_mirror(cli: Cli) -> None:
    mirror = FakeMirror()
    words = ("--topic", "orders", "--from", "2026-11-21T14:00:00Z", "--to", "2026-11-21T15:00:00Z", "--sample", "0.25")
    assert cli("verify", *words, mirrors=[mirror]).code == 0
    ((_, asked),) = mirror.calls
    hour = 3_600_000
    assert (asked["topics"], asked["sample"], asked["to_time"] - asked["from_time"], asked["session"]) == (["orders"], 0.25, hour, None)


def test_external_takes_pairs_of_topics(cli: Cli) -> None:
    mirror = FakeMirror()
    words = ("--external", "--source", "east", "--target", "west", "--topic", "a=east.a", "--topic", "b=c=d")
    assert cli("verify", *words, mirrors=[mirror]).code == 0
    ((call, asked),) = mirror.calls
    assert (call, asked["clusters"]) == ("external", ("east", "west", {"a": "east.a", "b": "c=d"}))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--external", "--source", "x", "--target", "y"), "at least one --topic SRC=DST"),
        (("--external", "--source", "x", "--target", "y", "--topic", "a"), "is not a pair of topics"),
        (("--external", "--source", "x", "--target", "y", "--topic", "a=b", "--topic", "a=c"), "given twice"),
        (("--external", "--topic", "a=b"), "--external needs --source"),
        (("--external", "--mirror", "m", "--topic", "a=b"), "cannot be combined with --mirror or --sample"),
        (("--source", "east"), "require --external"),
        (("--from", "-1h", "--to", "-2h"), "--from is not before --to"),
    ],
)
def test_what_does_not_go_together_is_refused(cli: Cli, words: tuple[str, ...], said: str) -> None:
    ended = cli("verify", *words, mirrors=[FakeMirror()])
    assert (ended.code, said in ended.err) == (2, True), ended.err


def test_repair_says_what_went_where_and_why(cli: Cli) -> None:
    mirror = FakeMirror()
    ended = cli("repair", "--mirror", "m", "--topic", "orders", mirrors=[mirror])
    assert ended.code == 0
    assert "missing   orders[0] source offset 71: written at offset 0\n" in ended.out
    assert "1 written, 1 already there; side topic east.orders.repair" in ended.out
    assert "breaking the order" in ended.out
    assert mirror.calls[0][1]["dry_run"] is False


def test_repair_with_nothing_to_do_and_with_something_lost(cli: Cli) -> None:
    words = ("repair", "-m", "m", "-t", "orders")
    sound = cli(*words, mirrors=[FakeMirror(the_repair=replace(REPAIR, records=()))])
    assert (sound.code, "nothing to repair" in sound.out) == (0, True)
    other = cli(*words, mirrors=[FakeMirror(the_repair=replace(REPAIR, records=(), others=3))])
    assert "its 3 differences of other kinds cannot be repaired" in other.out
    lost = replace(REPAIR, records=(replace(REPAIR.records[0], state="lost", target_offset=None),))
    ended = cli(*words, "--json", mirrors=[FakeMirror(the_repair=lost)])
    assert (ended.code, ended.json["ok"], ended.json["lost"]) == (1, False, 1)
    planned = replace(REPAIR, dry_run=True, records=(replace(REPAIR.records[0], state="would be written", target_offset=None),))
    ended = cli(*words, "--dry-run", mirrors=[FakeMirror(the_repair=planned)])
    assert (ended.code, "1 would be written" in ended.out) == (1, True)


def test_a_line_every_ten_seconds_when_nobody_looks() -> None:
    paper, now = Console(file=io.StringIO(), width=200), [100.0]
    view = Lines(paper, "starting", VerifyContent(), clock=lambda: now[0], every=10.0)
    progress = VerifyProgress(1000)
    with view:
        for second in (0.0, 5.0, 10.0, 15.0):
            now[0] = 100.0 + second
            progress.offsets, progress.records, progress.bytes = int(second * 20), int(second * 20), int(second * 1e6)
            view.observe(progress)
    assert isinstance(paper.file, io.StringIO)
    assert paper.file.getvalue().splitlines() == ["starting", "200 records compared, 10.0 MB, 1.0 MB/s, 40 s left"]


def test_bars_show_share_speed_and_suspects() -> None:
    screen, now = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None), [0.0]
    view = Bars(screen, "starting", VerifyContent(), clock=lambda: now[0])
    screen.print(view.render())
    progress = VerifyProgress(1000)
    view.observe(progress)
    now[0], progress.offsets, progress.bytes, progress.suspects = 2.0, 500, 4_000_000, 12
    view.observe(progress)
    screen.print(view.render())
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    for said in ("starting, 0 s", "50%", "2.0 MB/s", "comparing 12 records one by one"):
        assert said in shown

"""What the reading commands print, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.reports import CopyPlan, Excluded, Finding, MirrorStatus, TopicPlan
from tests.support.cli_fakes import GAP, LANE, PLAN, STATUS, Cli, FakeMirror


def keys(row: dict[str, object]) -> set[str]:
    return set(row)


def test_plan_for_people(cli: Cli) -> None:
    ended = cli("plan", mirrors=[FakeMirror()])
    assert ended.code == 0
    for said in ("orders", "east.orders", "1,234,567", "93.4 MB", "create east.orders with 12 partitions", "orders warning: no ACLs read"):
        assert said in ended.out
    assert "1 topic, 12 partitions, 1,234,567 records, 93.4 MB to copy" in ended.out
    assert "__consumer_offsets" in ended.out and "internal topic" in ended.out


def test_plan_says_what_copies_of_the_source_hold(cli: Cli) -> None:
    copies = (CopyPlan("north", 1_200_000), CopyPlan("west", None, "no broker answered"))
    said = cli("plan", mirrors=[FakeMirror(the_plan=replace(PLAN, copies=copies))]).out
    assert "north holds 1,200,000 of the 1,234,567 records" in said
    assert "west does not answer: no broker answered" in said


def test_plan_json(cli: Cli) -> None:
    (mirror,) = cli("plan", "--json", mirrors=[FakeMirror()]).json["mirrors"]
    assert keys(mirror) == {"mirror", "topics", "excluded", "notes", "price", "copies"}
    assert {"topic", "target_topic", "partitions", "records", "bytes", "actions", "warnings"} <= keys(mirror["topics"][0])
    assert mirror["excluded"] == [{"topic": "__consumer_offsets", "why": "internal topic"}]


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_selection_that_matches_nothing_is_a_problem(cli: Cli, option: tuple[str, ...]) -> None:
    nothing = replace(PLAN, topics=(), excluded=(Excluded("Orders", "no include pattern matches"),))
    ended = cli("plan", *option, mirrors=[FakeMirror(the_plan=nothing)])
    assert ended.code == 1
    assert "error: the selection of m matches no topic\nhint: " in ended.err
    assert "Orders" in ended.out


def test_a_source_without_topics_has_no_name_to_compare_a_regex_with(cli: Cli) -> None:
    ended = cli("plan", mirrors=[FakeMirror(the_plan=replace(PLAN, topics=(), excluded=()))])
    assert ended.code == 1 and "matches no topic" in ended.err and "hint" not in ended.err


def test_a_blocked_topic_is_a_problem(cli: Cli) -> None:
    blocked = TopicPlan("pay", "east.pay", 3, 1, None, blockers=("the target has 2 partitions, the source 3",))
    ended = cli("plan", mirrors=[FakeMirror(the_plan=replace(PLAN, topics=(blocked,)))])
    assert ended.code == 1
    assert "pay blocked: the target has 2 partitions, the source 3" in ended.out and "1 blocked" in ended.out


def test_many_excluded_topics_are_cut_short_for_people_only(cli: Cli) -> None:
    many = replace(PLAN, excluded=tuple(Excluded(f"t{i}", "excluded") for i in range(50)))
    assert "and 30 more topics; --json lists all" in cli("plan", mirrors=[FakeMirror(the_plan=many)]).out
    assert len(cli("plan", "--json", mirrors=[FakeMirror(the_plan=many)]).json["mirrors"][0]["excluded"]) == 50


def test_check_in_order(cli: Cli) -> None:
    ended = cli("check", mirrors=[FakeMirror()])
    assert ended.code == 0 and "everything is in order" in ended.out


def test_check_that_finds_something(cli: Cli) -> None:
    wrong = FakeMirror(findings=[Finding("java", True, "17"), Finding("west", False, "may not write [orders]", "grant WRITE")])
    ended = cli("check", mirrors=[wrong])
    assert ended.code == 1
    assert "may not write [orders]" in ended.out and "grant WRITE" in ended.out and "1 of 2 findings wrong" in ended.out
    answer = cli("check", "--json", mirrors=[wrong])
    assert answer.code == 1 and answer.json["ok"] is False
    assert answer.json["findings"][1] == {
        "mirror": "m", "what": "west", "ok": False, "detail": "may not write [orders]", "hint": "grant WRITE",
    }  # fmt: skip


def test_lag(cli: Cli) -> None:
    ended = cli("lag", mirrors=[FakeMirror()])
    assert ended.code == 0
    assert "100 records to go, the oldest 12 s old" in ended.out
    rows = cli("lag", "--partitions", mirrors=[FakeMirror()]).out
    assert "staged to" in rows and "110" in rows


def test_lag_json(cli: Cli) -> None:
    (mirror,) = cli("lag", "--json", mirrors=[FakeMirror()]).json["mirrors"]
    assert (mirror["lag_records"], mirror["lag_seconds"]) == (100, 12.0)
    assert mirror["topics"][0]["partitions"][0] == {"partition": 0, "position": 10, "end": 110, "staged": 60, "lag": 100}


def test_lag_without_the_source_shows_what_is_staged_and_the_error(cli: Cli) -> None:
    parts = (PartitionLag(0, 10, 60, 60, 50), PartitionLag(1, 5, 5, 5, 0))
    staged = MirrorLag("a", (TopicLag("orders", "east.orders", parts),), None)
    down = FakeMirror("a", the_undelivered=staged, error=ClusterUnreachable("east", "east is silent", hint="start it"))
    ended = cli("lag", mirrors=[down, FakeMirror("m")])
    assert (ended.code, ended.err) == (3, "error: east is silent\nhint: start it\n")
    assert "a: source unreachable, lag unknown; 50 records staged and not on the target yet" in ended.out
    assert "east.orders" in ended.out and "100 records to go" in ended.out
    rows = [line.split() for line in cli("lag", "--partitions", mirrors=[down]).out.splitlines()]
    assert ["orders", "0", "10", "60", "50"] in rows


def test_lag_json_without_the_source_is_the_error_alone(cli: Cli) -> None:
    ended = cli("lag", "--json", mirrors=[FakeMirror(error=ClusterUnreachable("east", "east is silent"))])
    assert (ended.code, ended.json) == (3, {"error": {"message": "east is silent", "hint": "", "exit_code": 3}})


def test_status(cli: Cli) -> None:
    ended = cli("status", mirrors=[FakeMirror()])
    assert ended.code == 0
    states = ("m: east to west", "running", "process 4711 on host", "target down since", "pay halted: record too large", "hint: raise it")
    for said in states:
        assert said in ended.out
    assert "45.0 GB of 50.0 GB, 77 records (7.7 kB) not yet on the target" in ended.out
    assert "2 gaps: see 'mirror gaps'" in ended.out
    for said in (
        "buffer full, staging has waited for", "the cap is reached", "spans 1.5 MB in 12 files, ledger 20.0 kB, logs 300.0 kB in 60 files",
        "700.0 kB to be verified", "maintenance: not verified: no broker",
    ):  # fmt: skip
        assert said in " ".join(ended.out.split())
    (mirror,) = cli("status", "--json", mirrors=[FakeMirror()]).json["mirrors"]
    assert {"mirror", "source", "target", "lanes", "buffer_bytes", "buffer_total_bytes", "gaps"} <= keys(mirror)
    assert mirror["lanes"][0]["buffer"]["unverified_bytes"] == 700_000


def test_gaps(cli: Cli) -> None:
    assert "no gaps" in cli("gaps", mirrors=[FakeMirror()]).out
    ended = cli("gaps", mirrors=[FakeMirror(the_gaps=[GAP])])
    assert ended.code == 0
    assert "1 gap, 50 source offsets" in ended.out and "2023-11-14T22:13:20Z" in ended.out
    (gap,) = cli("gaps", "--json", mirrors=[FakeMirror(the_gaps=[GAP])]).json["gaps"]
    assert keys(gap) == {"mirror", "topic", "partition", "start", "end", "cause", "decided_by", "at"}
    assert gap["cause"] == "retention"


def test_status_says_how_far_each_lane_is_behind(cli: Cli) -> None:
    class Behind(FakeMirror):
        def status(self) -> MirrorStatus:
            return replace(STATUS, lanes=(replace(LANE, lag_records=1204, lag_seconds=75.0),))

    said = cli("status", mirrors=[Behind()]).out
    assert "1,204" in said and "1 m 15 s" in said


def test_status_says_whether_offsets_are_exact(cli: Cli) -> None:
    class Exact(FakeMirror):
        def status(self) -> MirrorStatus:
            return replace(STATUS, offsets="exact")

    assert "exact offsets" in cli("status", mirrors=[Exact()]).out
    assert "exact offsets" not in cli("status", mirrors=[FakeMirror()]).out


def test_status_says_what_came_from_copies_of_the_source(cli: Cli) -> None:
    class Several(FakeMirror):
        def status(self) -> MirrorStatus:
            return replace(STATUS, lanes=(replace(LANE, copied={"north": 2_000_000}, left_out={"south a": "offset 5 differs"}),))

    said = cli("status", mirrors=[Several()]).out
    assert "0: read from copies of the source: 2.0 MB from north" in said
    assert "0: south a is left out: offset 5 differs" in said


def test_status_before_the_first_run(cli: Cli) -> None:
    class New(FakeMirror):
        def status(self) -> MirrorStatus:
            return replace(STATUS, lanes=())

    assert "it has never run" in cli("status", mirrors=[New()]).out


def test_evict(cli: Cli) -> None:
    assert "m, 0: freed 1.5 MB" in cli("evict", mirrors=[FakeMirror()]).out
    answer = cli("evict", "--json", mirrors=[FakeMirror()]).json
    assert answer == {"mirrors": [{"mirror": "m", "lanes": [{"lane": "0", "micro_batches": 3, "freed_bytes": 1_500_000}]}]}


def test_several_mirrors_and_the_choice_of_one(cli: Cli) -> None:
    mirrors = [FakeMirror("a"), FakeMirror("b"), FakeMirror("c")]
    cli("lag", "--mirror", "c", "--mirror", "a", "--json", mirrors=mirrors)
    assert [len(mirror.calls) for mirror in mirrors] == [1, 0, 1]


def test_brackets_in_a_name_are_no_markup(cli: Cli) -> None:
    odd = replace(PLAN, excluded=(Excluded("x", "pattern [red]a[/] excludes it"),))
    assert "pattern [red]a[/] excludes it" in cli("plan", mirrors=[FakeMirror(the_plan=odd)]).out


def test_version(cli: Cli) -> None:
    from mirror_pipeline import __version__

    assert cli("version").out.startswith(f"mirror {__version__}, Python 3.")
    assert cli("--version").out == cli("version").out
    assert cli("version", "--json").json["version"] == __version__


def test_init_writes_what_can_be_loaded(cli: Cli, tmp_path: Path) -> None:
    from mirror_pipeline import load_config

    path = tmp_path / "mirror.yaml"
    ended = cli("init", "-c", str(path), "--source", "a.example:9092, b.example:9092", "--target", "127.0.0.1:29092")
    assert ended.code == 0 and f"wrote {path}" in ended.out
    config = load_config(path)
    (mirror,) = config.mirrors
    assert config.clusters[mirror.source].bootstrap_servers == ("a.example:9092", "b.example:9092")
    assert config.clusters[mirror.target].bootstrap_servers == ("127.0.0.1:29092",)


def test_init_names_the_clusters(cli: Cli, tmp_path: Path) -> None:
    from mirror_pipeline import load_config

    path = tmp_path / "mirror.yaml"
    assert cli("init", "-c", str(path), "--source", "berlin=a.example:9092", "--target", "[::1]:29092").code == 0
    (mirror,) = load_config(path).mirrors
    assert (mirror.name, mirror.source, mirror.target) == ("berlin-to-west", "berlin", "west")


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--source", "a b=c:1"), "'a b' cannot be a cluster's name"), (("--source", "west=c:1"), "source and target have the same name")],
)
def test_init_refuses_what_is_no_name(cli: Cli, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ended = cli("init", "-c", str(tmp_path / "mirror.yaml"), *words)
    assert ended.code == 2 and said in ended.err and not (tmp_path / "mirror.yaml").exists()


def test_init_leaves_a_file_alone_unless_forced(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mirror.yaml"
    path.write_text("mine")
    refused = cli("init", "-c", str(path))
    assert refused.code == 2 and "already exists and was not changed" in refused.err and "--force" in refused.err
    assert path.read_text() == "mine"
    assert json.loads(cli("init", "-c", str(path), "--force", "--json").out) == {"path": str(path)}
    assert "mirrors:" in path.read_text()


@pytest.mark.parametrize("address", ["nowhere", "host:", "http://host:9092", "a:1,,b:2", 'a:1"', ""])
def test_init_refuses_what_is_no_address(cli: Cli, tmp_path: Path, address: str) -> None:
    path = tmp_path / "mirror.yaml"
    ended = cli("init", "-c", str(path), "--source", address)
    assert ended.code == 2 and "is not a bootstrap address" in ended.err
    assert not path.exists()


def test_init_where_nothing_can_be_written(cli: Cli, tmp_path: Path) -> None:
    ended = cli("init", "-c", str(tmp_path / "missing" / "mirror.yaml"))
    assert ended.code == 2 and "cannot be written" in ended.err


def test_what_is_said_of_many_topics_is_said_once(cli: Cli) -> None:
    names = [f"t{number}" for number in range(1000)]
    filled = [Finding(f"topic {n}", False, f"target topic east.{n} already holds {len(n)} records: adopt them") for n in names]
    well = [Finding(f"topic {n}", True, f"to east.{n}") for n in ("fine", "good")]
    other = Finding("topic pay", False, "may not write east.pay", "grant WRITE")
    ended = cli("check", mirrors=[FakeMirror(findings=[Finding("java", True, "17"), *filled, *well, other])])
    assert ended.code == 1 and "1,001 of 1,004 findings wrong" in ended.out
    assert len(ended.out.splitlines()) < 20
    for said in ("topic t0, t1, t2 and 997 more topics", "to east.fine", "to east.good", "grant WRITE", "the others likewise"):
        assert said in " ".join(ended.out.split()), said


def test_a_plan_says_equal_settings_once(cli: Cli) -> None:
    def new(name: str, days: int) -> TopicPlan:
        actions = (f"create east.{name} with 3 partitions", f"set retention.ms={days} on east.{name}")
        return TopicPlan(name, f"east.{name}", 3, 1, None, actions)

    rows = tuple(new(f"t{number}", 7 if number < 50 else 1) for number in range(51))
    ended = cli("plan", mirrors=[FakeMirror(the_plan=replace(PLAN, topics=rows))])
    assert ended.out.count("with 3 partitions") == 2, "another retention is not the same"
    assert "the same for t1, t2 and 47 more topics" in ended.out and "set retention.ms=1 on east.t50" in ended.out


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"staying_bytes": 22_900_000, "stays_until": 4e9, "retention": 86400}, "nothing to free; 22.9 MB stay, the oldest until 2096-"),
        ({"freed_bytes": 1_500_000, "staying_bytes": 5_000, "stays_until": 1.0}, "freed 1.5 MB; 5.0 kB stay\n"),
        ({"kept_bytes": 7_000_000, "note": "not verified: no broker"}, "7.0 MB are due and not verified yet; not verified: no broker"),
    ],
)
def test_evict_says_what_stays_and_why(cli: Cli, facts: dict[str, Any], said: str) -> None:
    class Evicting(FakeMirror):
        def evict(self) -> list[dict[str, Any]]:
            return [{"lane": "lane-0", "micro_batches": 0, "freed_bytes": 0, "note": "", **facts}]

    assert said in cli("evict", mirrors=[Evicting()]).out

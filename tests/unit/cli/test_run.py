"""``run`` and ``backfill``: what is asked of the mirrors, how the outcome is told, how signals end it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mirror_pipeline.cli import load, main
from mirror_pipeline.cli.jobs import signals_stop
from mirror_pipeline.cli.show import tables
from mirror_pipeline.errors import ClusterUnreachable, LaneBusy
from mirror_pipeline.reports import RunReport
from tests.support.cli_fakes import Cli, FakeMirror, opened, progress, run_report, until_stopped


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_run_once(cli: Cli) -> None:
    mirror = FakeMirror()
    ended = cli("run", "--once", "--topic", "orders", "--topic", "pay", "--lane", "1", mirrors=[mirror])
    assert ended.code == 0
    assert "m: 1,234,567 records, 93.4 MB in 1.0 s (93.4 MB/s), after 5.0 s to start Spark" in ended.out
    ((_, asked),) = mirror.calls
    assert {k: asked[k] for k in ("once", "seconds", "topics", "lane", "session")} == {
        "once": True, "seconds": None, "topics": ["orders", "pay"], "lane": 1, "session": None,
    }  # fmt: skip


@pytest.mark.parametrize(("option", "seconds"), [((), None), (("--for", "30m"), 1800.0)])
def test_run_without_once_is_continuous(cli: Cli, option: tuple[str, ...], seconds: float | None) -> None:
    mirror = FakeMirror()
    cli("run", *option, mirrors=[mirror])
    ((_, asked),) = mirror.calls
    assert (asked["once"], asked["seconds"], asked["topics"]) == (False, seconds, None)


def test_run_json(cli: Cli) -> None:
    ended = cli("run", "--once", "--json", mirrors=[FakeMirror()])
    (mirror,) = ended.json["mirrors"]
    assert {"mirror", "state", "records", "bytes", "seconds", "topics"} <= set(mirror)
    assert mirror["topics"][0]["state"] == "ok" and "error" not in ended.json


@pytest.mark.parametrize("state", ["halted", "behind"])
def test_a_topic_that_did_not_make_it(cli: Cli, state: str) -> None:
    def run(**facts: Any) -> RunReport:
        return run_report(state=state, topic=state, reason="record of 2 MB is too large", hint="raise max.message.bytes")

    ended = cli("run", "--once", mirrors=[FakeMirror(on_run=run)])
    assert ended.code == 1
    assert f"orders {state}: record of 2 MB is too large" in ended.out and "hint: raise max.message.bytes" in ended.out


@pytest.mark.parametrize("state", ["promoted", "standby"])
def test_a_topic_that_is_left_alone_is_no_problem(cli: Cli, state: str) -> None:
    """A mirror and its reverse run side by side all the time: one of them always stands by."""

    def run(**facts: Any) -> RunReport:
        report = run_report(state=state, topic=state, reason="applications write there")
        return replace(report, state="ok")

    ended = cli("run", "--once", mirrors=[FakeMirror(on_run=run)])
    assert ended.code == 0 and f"orders {state}: applications write there" in ended.out


def test_nothing_new(cli: Cli) -> None:
    ended = cli("run", "--once", mirrors=[FakeMirror(on_run=lambda **facts: RunReport("m", "ok", 0, 0, 0.4, ()))])
    assert ended.code == 0 and "m: nothing new to copy" in ended.out


def test_one_failed_mirror_does_not_keep_the_next_from_running(cli: Cli) -> None:
    lost = FakeMirror("a", error=ClusterUnreachable("east", "east is silent", hint="start it"))
    busy = FakeMirror("b", error=LaneBusy("held by process 7"))
    good = FakeMirror("c")
    ended = cli("run", "--once", "--json", mirrors=[lost, busy, good])
    assert ended.code == 3  # the greatest of 3, 1 and 0
    assert ended.err.count("error: ") == 2 and "error: a: east is silent\nhint: start it\nerror: b: held by process 7\n" in ended.err
    assert [row["state"] for row in ended.json["mirrors"]] == ["failed", "failed", "ok"]
    assert ended.json["mirrors"][1]["error"]["message"] == "held by process 7"
    assert ended.json["error"]["message"] == "east is silent"


def test_several_mirrors_run_together_on_one_session(cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    meet = threading.Barrier(2, timeout=30)
    sessions: list[object] = []

    def run(**facts: Any) -> RunReport:
        assert not started  # Spark is for a mirror that needs it
        meet.wait()  # passes only when both are inside at the same time
        sessions.append(facts["session"]())
        return run_report()

    started: list[object] = []

    def session() -> object:
        started.append(object())
        return started[0]

    monkeypatch.setattr(load, "load", lambda path: opened(FakeMirror("a", on_run=run), FakeMirror("b", on_run=run), session=session))
    assert main.main(["run", "--for", "1m"]) == 0
    assert len(started) == 1 and sessions == [started[0], started[0]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly(cli: Cli, number: signal.Signals) -> None:
    seen: list[bool] = []

    def run(**facts: Any) -> RunReport:
        os.kill(os.getpid(), number)
        seen.append(until_stopped(facts["stop"]))
        return run_report()

    second = FakeMirror("b")
    ended = cli("run", "--once", mirrors=[FakeMirror("a", on_run=run), second])
    assert seen == [True] and second.calls == []
    assert "stopping: " in ended.err and "b: stopped before it started" in ended.err
    assert ended.code == 1 and "1,234,567" in ended.out


def test_a_second_ctrl_c_ends_at_once_and_a_second_sigterm_does_not() -> None:
    stop, said, left = threading.Event(), [], []
    with signals_stop(stop, said.append, leave=left.append):
        for number in (signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
        assert stop.is_set() and len(said) == 1 and left == []
        signal.raise_signal(signal.SIGINT)
        assert left == [130]


def test_a_second_ctrl_c_really_ends_the_process() -> None:
    import subprocess
    import sys

    program = (
        "import sys, signal, os, threading; sys.path.insert(0, '.');"
        "from tests.support.cli_fakes import FakeMirror, opened; from mirror_pipeline.cli import load, main;"
        "forever = lambda **facts: [os.kill(os.getpid(), signal.SIGINT), facts['stop'].wait(30), "
        "os.kill(os.getpid(), signal.SIGINT), threading.Event().wait(60)];"
        "load.load = lambda path: opened(FakeMirror(on_run=forever)); sys.exit(main.main(['run']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 130 and "stopping: " in ended.stderr


def test_progress_goes_to_standard_error_only(cli: Cli) -> None:
    def run(**facts: Any) -> RunReport:
        facts["observer"](progress(target_down="west does not answer", staged_records=700))
        return run_report()

    ended = cli("run", "--once", "--json", mirrors=[FakeMirror(on_run=run)])
    assert "m: target down: west does not answer; 700 records staged so far, staging continues" in ended.err
    assert ended.json["mirrors"][0]["mirror"] == "m"


def test_backfill(cli: Cli) -> None:
    mirror = FakeMirror()
    words = ("--mirror", "m", "--topic", "orders", "--from", "2026-11-21T12:00:00Z", "--to", "2026-11-21T15:00:00+01:00", "--into", "again")
    ended = cli("backfill", *words, mirrors=[mirror])
    assert ended.code == 0 and "orders from 2026-11-21T12:00:00Z to 2026-11-21T14:00:00Z" in ended.out
    ((call, asked),) = mirror.calls
    assert (call, asked["topic"], asked["start"], asked["end"], asked["into"]) == (
        "backfill",
        "orders",
        1_795_262_400_000,
        1_795_269_600_000,
        "again",
    )


def test_backfill_takes_relative_times(cli: Cli) -> None:
    mirror = FakeMirror()
    ended = cli("backfill", "-m", "m", "-t", "orders", "--from", "-2h", "--to", "now", "--json", mirrors=[mirror])
    assert ended.code == 0 and ended.json["ranges"] == {"0": [10, 20]} and ended.json["run"]["state"] == "ok"
    assert mirror.calls[0][1]["end"] - mirror.calls[0][1]["start"] == 7_200_000
    assert mirror.calls[0][1]["into"] is None


@pytest.mark.parametrize(("words", "source"), [((), "auto"), (("--from-buffer",), "buffer"), (("--from-source",), "cluster")])
def test_backfill_says_where_records_come_from(cli: Cli, words: tuple[str, ...], source: str) -> None:
    mirror = FakeMirror()
    assert cli("backfill", "-m", "m", "-t", "orders", "--from", "-2h", "--to", "now", *words, mirrors=[mirror]).code == 0
    assert mirror.calls[0][1]["source"] == source


def test_backfill_refuses_an_empty_stretch(cli: Cli) -> None:
    ended = cli("backfill", "-m", "m", "-t", "orders", "--from", "-1h", "--to=-2h", mirrors=[FakeMirror()])
    assert ended.code == 2 and "--from is not before --to" in ended.err


def test_backfill_fails_like_any_command(cli: Cli) -> None:
    ended = cli(
        "backfill", "-m", "m", "-t", "orders", "--from", "-2h", "--to", "now", "--json", mirrors=[FakeMirror(error=LaneBusy("held"))]
    )
    assert ended.code == 1 and ended.json["error"]["message"] == "held"


def test_the_last_line_says_who_read_how_much() -> None:
    report = replace(run_report(), spark_bytes=80_000_000, driver_bytes=13_400_000, spark_jobs=4)
    assert tables.run_sum(report).endswith("; Spark read 80.0 MB, this process 13.4 MB")
    assert "Spark read" not in tables.run_sum(run_report())

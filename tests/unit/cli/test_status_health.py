"""``mirror health`` and ``status --exit-code``: one line and an exit code that a probe can use."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.operations.state.health import health_of
from mirror_pipeline.reports import LaneStatus, MirrorStatus, TopicState
from mirror_pipeline.text import clock
from tests.support.cli_fakes import Cli, FakeMirror

NOW = 1000.0
GOOD = TopicState("orders", "ok")
LANE = LaneStatus("lane-0", "finished", NOW - 100, 1, "here", NOW - 200, (GOOD,), 1, 1, 1, 1.0, 1.0)
HALTED = TopicState("pay", "halted", "offsets are gone", "resolve it", code="trimmed")
BEHIND = TopicState("pay", "behind", "500 offsets are not on the target")


def of(*lanes: LaneStatus) -> MirrorStatus:
    return MirrorStatus("m", "east", "west", lanes, 0, 1, 0, 0, 0)


DOWN: dict[str, Any] = {"target_down_since": NOW - 300, "message": "west: no broker answered: b:1: refused; b:2: refused (start it)"}
RUNNING: dict[str, Any] = {"state": "running", "heartbeat": NOW - 1}


@pytest.mark.parametrize(
    ("lane", "state", "code", "said"),
    [
        ({}, "fine", 0, ""),
        ({"topics": (GOOD, HALTED)}, "problem", 1, "pay halted (trimmed): offsets are gone"),
        ({"topics": (GOOD, replace(HALTED, state="accepted"))}, "fine", 0, ""),
        ({"topics": (GOOD, BEHIND)}, "problem", 1, "pay behind: 500 offsets are not on the target"),
        ({"state": "failed", "message": "disk full", "exit_code": 1}, "problem", 1, "lane-0 failed: disk full"),
        ({"state": "failed", "message": "west is silent", "exit_code": 3}, "unreachable", 3, "lane-0 failed: west is silent"),
        ({"source_down": "east is silent"}, "unreachable", 3, "source east down: east is silent; `mirror check` tests it"),
        ({"state": "stale"}, "stale", 3, "lane-0 was interrupted: it has sent no heartbeat for 1 m 40 s"),
        ({"state": "never run", "heartbeat": None}, "stale", 3, "it has never run"),
    ],
)
def test_what_a_lane_says_of_itself(lane: dict[str, Any], state: str, code: int, said: str) -> None:
    health = health_of(of(replace(LANE, **lane)), NOW)
    assert (health.state, health.exit_code, said in "; ".join(health.problems)) == (state, code, True)
    assert bool(health.problems) == (state != "fine")


@pytest.mark.parametrize(("seconds", "state"), [(0.0, "fine"), (29.0, "fine"), (30.0, "problem")])
def test_a_topic_that_waits_for_a_moment_is_no_problem(seconds: float, state: str) -> None:
    """Leaders of a topic that was just made, and those that move, are there within seconds."""
    waits = replace(BEHIND, reason="east.pay[0]: NOT_LEADER_OR_FOLLOWER", behind_seconds=seconds)
    assert health_of(of(replace(LANE, topics=(GOOD, waits), **RUNNING)), NOW).state == state


@pytest.mark.parametrize("lane", [RUNNING, {"state": "failed", "exit_code": 3}])
def test_a_cluster_that_is_down_is_one_line_with_its_cause_once(lane: dict[str, Any]) -> None:
    """Each topic that waits, and the run that gave up, name the same cause."""
    waits = tuple(replace(BEHIND, topic=name, reason=f"500 offsets are not on the target: {DOWN['message']}") for name in "abc")
    health = health_of(of(replace(LANE, topics=waits, **{**DOWN, **lane})), NOW)
    assert health.state == "unreachable"
    since = f"since {clock(NOW - 300)} (5 m 00 s)"
    (said,) = health.problems
    assert said == f"target west down {since}: west: no broker answered: b:1: refused; 3 topics of lane-0 wait; `mirror check` tests it"


def measured(records: int, seconds: float | None = None, **topic: Any) -> MirrorLag:
    row = TopicLag("orders", "east.orders", (PartitionLag(0, 0, records, 0, records),), seconds if records else 0.0, **topic)
    return MirrorLag("m", (row,), row.lag_seconds)


NIGHT: dict[str, Any] = {"heartbeat": NOW - 40_000, "time_up": True}
STOPPED: dict[str, Any] = {"heartbeat": NOW - 2, "lag_records": 500}
REPORTED: dict[str, Any] = {"topics": (replace(BEHIND, topic="orders"),)}


@pytest.mark.parametrize(
    ("lane", "lag", "max_age", "state"),
    [
        (NIGHT, measured(0), None, "fine"),
        (NIGHT, measured(0), 60.0, "fine"),
        (NIGHT, measured(9, 20.0), None, "fine"),  # Dagster is about to start a run
        (NIGHT, measured(9, 20.0), 60.0, "fine"),
        (NIGHT, measured(9, 70.0), 60.0, "stale"),
        (NIGHT, measured(9, 700.0), None, "problem"),
        (NIGHT, measured(9, 700.0), 3600.0, "fine"),
        (NIGHT, measured(9), None, "problem"),
        ({"heartbeat": NOW - 20, "time_up": True, "lag_records": 9}, measured(9, 700.0), None, "fine"),  # between two runs
        (STOPPED, measured(500, 1.0), None, "problem"),
        (STOPPED | {"time_up": True}, measured(500, 1.0), None, "fine"),
        (STOPPED, measured(0), None, "fine"),
        (REPORTED, measured(0), None, "fine"),
        (NIGHT, measured(9, 70.0, state="halted", code="recreated", reason="r"), 60.0, "problem"),
        (RUNNING, measured(9, 700.0), 60.0, "fine"),
        (DOWN | NIGHT, measured(0), None, "fine"),
        (DOWN | NIGHT, measured(9, 20.0), None, "unreachable"),
        ({"state": "failed", "exit_code": 3, "message": "west is silent"}, measured(0), None, "fine"),
        ({"state": "failed", "exit_code": 1, "message": "disk full"}, measured(0), None, "problem"),
    ],
)
def test_where_a_lane_has_ended_a_look_at_the_source_decides(
    lane: dict[str, Any], lag: MirrorLag, max_age: float | None, state: str
) -> None:
    health = health_of(of(replace(LANE, **lane)), NOW, max_age, lag)
    assert (health.state, bool(health.problems)) == (state, state != "fine")


def test_records_that_nobody_copies_are_named() -> None:
    (said,) = health_of(of(replace(LANE, **NIGHT)), NOW, None, measured(73_439, 660.0)).problems
    assert said.startswith(f"behind by 73,439 records, the oldest 11 m 00 s old, as of {clock(NOW)}, and no lane is running")


def test_a_source_that_cannot_be_looked_at_is_unreachable() -> None:
    health = health_of(of(LANE), NOW, None, ClusterUnreachable("east", "east: no broker answered: a:1: refused; a:2: refused"))
    assert (health.state, health.problems) == ("unreachable", ("its lag cannot be measured: east: no broker answered: a:1: refused",))


@pytest.mark.parametrize(
    ("lane", "lag", "copied_to", "records"),
    [
        (NIGHT, measured(0), NOW, 0),
        (NIGHT, measured(9, 20.0), NOW - 20, 9),
        (NIGHT, measured(9), None, 9),
        (NIGHT, measured(9, 20.0, state="paused"), NOW - 20, 9),
        (RUNNING, None, NOW - 1, 0),
        (RUNNING | {"lag_records": 9, "lag_seconds": 5.0}, None, NOW - 6, 9),
        (RUNNING | {"lag_records": 9}, None, None, 9),
    ],
)
def test_up_to_when_everything_is_copied(lane: dict[str, Any], lag: MirrorLag | None, copied_to: float | None, records: int) -> None:
    health = health_of(of(replace(LANE, **lane)), NOW, None, lag)
    assert (health.copied_to, health.lag_records) == (copied_to, records)


def test_without_a_look_only_heartbeats_tell() -> None:
    assert health_of(of(LANE), NOW, 101.0).state == "fine"
    assert health_of(of(LANE), NOW, 99.0).state == "stale"
    assert health_of(of(), NOW).state == "stale"


class Sick(FakeMirror):
    def status(self) -> MirrorStatus:
        return replace(of(replace(LANE, heartbeat=time.time(), topics=(GOOD, HALTED))), mirror=self.name)


class Well(FakeMirror):
    def status(self) -> MirrorStatus:
        return replace(of(replace(LANE, heartbeat=time.time())), mirror=self.name)


def test_health_is_one_line(cli: Cli) -> None:
    ended = cli("health", mirrors=[Well(name="a"), Well(name="b")])
    copied = f"copied up to {clock(time.time())}"
    assert (ended.code, ended.out, ended.err) == (0, f"fine: 2 mirrors, 2 lanes, 2 topics, {copied}\n", "")
    ended = cli("health", mirrors=[Well(name="a"), Sick(name="b")])
    assert (ended.code, ended.out) == (1, "problem: b: pay halted (trimmed): offsets are gone\n")
    assert cli("health", "--mirror", "a", mirrors=[Well(name="a"), Sick(name="b")]).code == 0


def test_health_for_programs(cli: Cli) -> None:
    ended = cli("health", "--json", mirrors=[Sick()])
    assert ended.code == 1
    assert (ended.json["state"], ended.json["exit_code"]) == ("problem", 1)
    (mirror,) = ended.json["mirrors"]
    assert mirror == {
        "mirror": "m", "state": "problem", "exit_code": 1, "lanes": 1, "topics": 2, "problems": ["pay halted (trimmed): offsets are gone"],
        "copied_to": mirror["as_of"], "lag_records": 0, "as_of": mirror["as_of"],
    }  # fmt: skip


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--exit-code",), 1), (("--exit-code", "--json"), 1)])
def test_status_keeps_its_exit_code_unless_asked(cli: Cli, words: tuple[str, ...], code: int) -> None:
    ended = cli("status", *words, mirrors=[Sick()])
    assert ended.code == code and "offsets are gone" in ended.out

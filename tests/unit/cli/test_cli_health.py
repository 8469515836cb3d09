"""``mirror health`` and ``status --exit-code``: one line and an exit code that a probe can use."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from mirror_pipeline.operations.health import health_of
from mirror_pipeline.reports import LaneStatus, MirrorStatus, TopicState
from tests.support.cli_fakes import Cli, FakeMirror

NOW = 1000.0
GOOD = TopicState("orders", "ok")
LANE = LaneStatus("lane-0", "finished", NOW - 100, 1, "here", NOW - 200, (GOOD,), 1, 1, 1, 1.0, 1.0)
HALTED = TopicState("pay", "halted", "offsets are gone", "resolve it", code="trimmed")
BEHIND = TopicState("pay", "behind", "500 offsets are not on the target")


def of(*lanes: LaneStatus) -> MirrorStatus:
    return MirrorStatus("m", "east", "west", lanes, 0, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("lane", "state", "code", "said"),
    [
        ({}, "fine", 0, ""),
        ({"topics": (GOOD, HALTED)}, "problem", 1, "pay halted (trimmed): offsets are gone"),
        ({"topics": (GOOD, replace(HALTED, state="accepted"))}, "fine", 0, ""),
        ({"topics": (GOOD, BEHIND)}, "problem", 1, "pay behind: 500 offsets are not on the target"),
        ({"state": "failed", "message": "disk full", "exit_code": 1}, "problem", 1, "lane-0 failed: disk full"),
        ({"state": "failed", "message": "west is silent", "exit_code": 3}, "unreachable", 3, "lane-0 failed: west is silent"),
        ({"topics": (BEHIND,), "target_down_since": NOW - 300}, "unreachable", 3, "lane-0: target down for 5 m"),
        ({"source_down": "east is silent"}, "unreachable", 3, "lane-0: source down: east is silent"),
        ({"state": "stale"}, "stale", 3, "lane-0 has sent no heartbeat for 100 s"),
        ({"state": "never run", "heartbeat": None}, "stale", 3, "it has never run"),
    ],
)
def test_what_a_lane_says_of_itself(lane: dict[str, Any], state: str, code: int, said: str) -> None:
    health = health_of(of(replace(LANE, **lane)), NOW)
    assert (health.state, health.exit_code, said in "; ".join(health.problems)) == (state, code, True)
    assert bool(health.problems) == (state != "fine")


def test_an_idle_mirror_is_stale_only_when_that_was_asked_for() -> None:
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
    assert (ended.code, ended.out, ended.err) == (0, "fine: 2 mirrors, 2 lanes, 2 topics\n", "")
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
    }  # fmt: skip


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--exit-code",), 1), (("--exit-code", "--json"), 1)])
def test_status_keeps_its_exit_code_unless_asked(cli: Cli, words: tuple[str, ...], code: int) -> None:
    ended = cli("status", *words, mirrors=[Sick()])
    assert ended.code == code and "offsets are gone" in ended.out

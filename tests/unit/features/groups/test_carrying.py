"""Rounds in the background of a run: how they end, and what they say, once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.features.groups.carrying import _rounds
from mirror_pipeline.features.groups.decide import GroupDecision, GroupState
from mirror_pipeline.features.groups.group_offsets import GroupPartition
from mirror_pipeline.features.groups.group_round import GroupRounds, RoundOutcome
from mirror_pipeline.features.groups.last_round import LastRound, read_last_round
from mirror_pipeline.operations.background import RunEnd
from tests.support.buffer_samples import Settings


@dataclass
class Rounds:
    """Ends the run during round ``end``; ``error`` is raised by every round; in rounds ``silent`` the source does not answer."""

    ended: RunEnd
    end: int
    error: Exception | None = None
    count: int = 0
    table: Any = None
    made: list[str] = field(default_factory=list)
    silent: range = range(0)
    asked: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = self

    def maintain(self) -> None:
        self.made.append("maintained")

    def run(self, *, ask_source: bool = True) -> RoundOutcome:
        self.count += 1
        self.asked.append(ask_source)
        if self.count == self.end:
            self.ended.set()
        if self.error is not None:
            raise self.error
        if self.count in self.silent:
            return RoundOutcome(source_down="east: no broker answered" if ask_source else "")
        stuck = GroupDecision(GroupState.ACTIVE, 7, None, "the group has members on the target")
        decisions = {GroupPartition("billing", "orders", number): (cast(Any, None), stuck) for number in range(3)}
        return RoundOutcome(decisions, {"shared": "share group"}, ["groups.include: 'x' matches none"], groups=5, written=2)


def carried(tmp_path: Path, rounds: Rounds, *, ask_source: bool = True) -> LastRound:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "groups")
    _rounds(cast(GroupRounds, rounds), store, 0.0, rounds.ended, ask_source=ask_source)
    last = read_last_round(store)
    assert last is not None
    return last


def test_one_more_round_follows_the_end_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rounds = Rounds(RunEnd(0.0), 3)
    last = carried(tmp_path, rounds)
    assert rounds.count == 4
    assert (last.groups, last.written, last.error) == (5, 2, "")
    assert caplog.messages == [
        "groups mirror=m: groups.include: 'x' matches none",
        "groups mirror=m: group billing is not carried over: the group has members on the target",
        "groups mirror=m: group shared is not carried over: share group",
    ]


def test_a_round_that_fails_at_the_end_is_the_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rounds = Rounds(RunEnd(0.0), 2, ClusterUnreachable("east", "east: no broker answered"))
    last = carried(tmp_path, rounds)
    assert rounds.count == 2
    assert last.error == "east: no broker answered"
    assert caplog.messages == ["groups mirror=m: east: no broker answered"]


def test_a_source_that_is_silent_is_not_asked_once_more_at_the_end_and_since_when_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.time()
    first = carried(tmp_path, rounds := Rounds(RunEnd(0.0), 2, silent=range(1, 9)))
    assert rounds.asked == [True, True, False]
    assert began <= first.source_down_since <= time.time() and first.error == ""
    assert caplog.messages == [
        "groups mirror=m: east: no broker answered; the commits that were seen there last are carried over as their records arrive"
    ]
    again = carried(tmp_path, rounds := Rounds(RunEnd(0.0), 1, silent=range(1, 9)))
    assert (rounds.asked, again.source_down_since) == ([True, False], first.source_down_since)
    drained = carried(tmp_path, rounds := Rounds(RunEnd(0.0), 1), ask_source=False)
    assert (rounds.asked, drained.source_down_since) == ([False, False], first.source_down_since)
    back = carried(tmp_path, rounds := Rounds(RunEnd(0.0), 1))
    assert (rounds.asked, back.source_down_since) == ([True, True], 0.0)

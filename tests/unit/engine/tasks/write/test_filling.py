"""Markers go out until the log ends where the next record belongs, and never beyond."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_pipeline.engine.tasks.write import filling
from mirror_pipeline.engine.tasks.write.filling import MARKERS_A_REQUEST, MAX_FILL, fill_holes
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.halts import Halt
from mirror_pipeline.kafka.answers import OffsetAnswer
from mirror_pipeline.model import MarkerStamp, TopicPartition

STAMP = MarkerStamp(9, 4)


@dataclass
class Slot:
    target: TopicPartition
    end: int
    fill_to: int
    fenced: bool = False
    stopped: bool = False
    halt: Halt | None = None
    error: str = ""
    unknown: bool = False
    refused: int = 0

    def stop(self, *, error: str = "", halt: Halt | None = None, outcome_unknown: bool = True, answered: bool = False) -> None:
        self.stopped, self.error, self.halt, self.unknown = True, error, halt, outcome_unknown

    def refuse(self, error: BrokerError) -> None:
        self.stopped, self.refused = True, error.code


class Target:
    """Logs that only have ends; ``before`` runs ahead of each request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ends: int) -> None:
        self.ends = {TopicPartition(name, 0): end for name, end in ends.items()}
        self.requests: list[dict[TopicPartition, int]] = []
        self.asked = 0
        self.before: Any = lambda: None
        self.errors: dict[TopicPartition, int] = {}
        monkeypatch.setattr(filling, "write_markers", self.write)

    def write(self, _: object, counts: dict[TopicPartition, int], stamp: MarkerStamp) -> dict[TopicPartition, int]:
        assert stamp is STAMP
        self.before()
        self.requests.append(dict(counts))
        for tp, count in counts.items():
            if not self.errors.get(tp):
                self.ends[tp] += count
        return {tp: self.errors.get(tp, 0) for tp in counts}

    def log_ends(self, tps: list[TopicPartition], *, within: float) -> dict[TopicPartition, OffsetAnswer]:
        self.asked += 1
        return {tp: OffsetAnswer(self.ends[tp], -1, 0) for tp in tps}

    def fill(self, *slots: Slot, seconds: float = 60.0) -> None:
        connection = SimpleNamespace(wait_out_throttle=lambda: None)
        fill_holes(self, connection, slots, STAMP, deadline=time.monotonic() + seconds, within=1.0)  # type: ignore[arg-type]


def slot(name: str, end: int, fill_to: int, *, fenced: bool = False) -> Slot:
    return Slot(TopicPartition(name, 0), end, fill_to, fenced)


def test_holes_of_several_partitions_are_filled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, a=3, b=10)
    a, b = slot("a", 3, 4), slot("b", 10, 1300)
    target.fill(a, b)
    assert target.ends == {a.target: 4, b.target: 1300}
    assert (a.end, b.end, a.stopped, b.stopped) == (4, 1300, False, False)
    assert all(sum(request.values()) <= MARKERS_A_REQUEST for request in target.requests)


def test_the_end_of_the_log_is_asked_unless_one_answer_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, a=3)
    target.fill(slot("a", 3, 4, fenced=True))
    assert target.asked == 0
    first = slot("a", 4, 5)
    target.fill(first)
    assert (target.asked, first.fenced) == (1, True)
    target.fill(slot("a", 5, 7, fenced=True))
    assert target.asked == 2


def test_a_late_marker_of_another_process_is_noticed_before_a_record_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, a=3)
    a = slot("a", 3, 5)
    target.before = lambda: target.ends.update({a.target: target.ends[a.target] + 1}) if not target.requests else None
    target.fill(a)
    assert a.stopped
    assert a.halt is not None
    assert a.halt.code == "foreign_writer"


def test_a_late_marker_that_leaves_room_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, a=0)
    a = slot("a", 0, 600)
    target.before = lambda: target.ends.update({a.target: 50}) if not target.requests else None
    target.fill(a)
    assert (a.end, target.ends[a.target], a.stopped) == (600, 600, False)


def test_nothing_is_sent_after_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, a=3)
    a = slot("a", 3, 4)
    target.fill(a, seconds=0.0)
    assert (target.requests, a.stopped, a.unknown) == ([], True, False)


def test_too_long_a_hole_halts_and_the_others_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, a=0, b=1)
    a, b = slot("a", 0, MAX_FILL + 1), slot("b", 1, 2)
    target.fill(a, b)
    assert a.halt is not None
    assert (a.halt.code, target.ends[a.target], b.end) == ("fill_too_large", 0, 2)


@pytest.mark.parametrize(("code", "halt"), [(31, "markers_refused"), (52, ""), (19, "")])
def test_what_the_broker_refuses_stops_the_partition(monkeypatch: pytest.MonkeyPatch, code: int, halt: str) -> None:
    target = Target(monkeypatch, a=3)
    a = slot("a", 3, 4)
    target.errors = {a.target: code}
    target.fill(a)
    assert (a.stopped, a.halt.code if a.halt else "", a.refused) == (True, halt, 0 if halt else code)


def test_markers_that_did_not_arrive_are_sent_again_only_after_the_log_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, a=3)
    a = slot("a", 3, 9)
    target.ends[a.target] = -3  # the broker counts fewer than it acknowledged
    target.fill(a)
    assert a.stopped
    assert len(target.requests) == 1

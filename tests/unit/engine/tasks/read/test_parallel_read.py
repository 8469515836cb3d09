"""Stretches of a range that came over many connections are taken in order, or not at all."""

from __future__ import annotations

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.longlink.segments import Segment
from mirror_pipeline.engine.tasks.read.messages import ReadTask
from mirror_pipeline.engine.tasks.read.parallel_read import take_segment
from mirror_pipeline.engine.tasks.read.range_outcomes import RangeOutcomes
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import OffsetRange
from tests.support.read_tasks import SOURCE, Written, handler_of
from tests.support.source_batches import batch


def read(*stretches: Segment) -> tuple[RangeOutcomes, list[SpanDraft]]:
    """Of a compacted topic, where a hole is nothing unusual."""
    rules = RangeRules(OffsetRange("t", 0, 0, 30, 10**6, "id"), 10**6, True, False)
    task = ReadTask(LaneStore("/nowhere"), ClusterSettings("east", ("a:1",)), 0, 0, (rules,), 1, 1, 10**9, 5.0, 5.0, False)
    written = Written()
    handler, outcomes = handler_of(task, written)
    for stretch in stretches:
        take_segment(stretch, handler, outcomes)
    handler.flush()
    return outcomes, written.spans


def stretch(start: int, end: int, *, read: bool = True, problem: Exception | None = None) -> Segment:
    made = Segment(SOURCE, start, end, 1000, 0, error=problem)
    if read and problem is None:
        made.answers.append(FetchedPartition(0, 30, 30, 0, [], memoryview(batch(start, end - start))))
    return made


def test_stretches_one_behind_the_other_are_one_span() -> None:
    _, spans = read(stretch(0, 10), stretch(10, 20), stretch(20, 30))
    assert [(s.start, s.end, s.records, s.holes) for s in spans] == [(0, 30, 30, ())]


@pytest.mark.parametrize("lost", [stretch(10, 20, read=False), stretch(10, 20, problem=ConnectionLost("gone"))], ids=["not read", "lost"])
def test_nothing_behind_a_missing_stretch_is_taken(lost: Segment) -> None:
    """Else its offsets would pass for compacted ones: lost without a word."""
    outcomes, spans = read(stretch(0, 10), lost, stretch(20, 30))
    assert [(s.start, s.end, s.records, s.holes) for s in spans] == [(0, 10, 10, ())]
    assert [(o.next, bool(o.error)) for o in outcomes.results()] == [(10, lost.error is not None)]


def test_a_problem_that_is_a_fault_of_ours_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        read(stretch(0, 10, problem=ZeroDivisionError()))

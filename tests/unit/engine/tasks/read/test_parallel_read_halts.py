"""A reader that was stopped in the middle of a stretch takes nothing of what lies behind."""

from __future__ import annotations

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.longlink.segments import Segment
from mirror_pipeline.engine.tasks.read.messages import ReadTask
from mirror_pipeline.engine.tasks.read.parallel_read import take_segment
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import OpenRecord, seal, tail_of
from mirror_pipeline.model import OffsetRange
from tests.support.read_tasks import SOURCE, Written, handler_of


@pytest.mark.parametrize("compacted", [False, True])
def test_what_lies_behind_a_record_that_is_too_large_is_not_taken(compacted: bool) -> None:
    large = seal([OpenRecord(0, 0, tail_of(None, bytes(5000)))], codec=0, base_offset=0)
    small = seal([OpenRecord(n, 0, tail_of(None, b"v")) for n in range(1, 10)], codec=0, base_offset=1)
    rules = RangeRules(OffsetRange("t", 0, 0, 10, 10**6, "id"), 1000, compacted, False)
    task = ReadTask(LaneStore("/nowhere"), ClusterSettings("east", ("a:1",)), 0, 0, (rules,), 1, 1, 10**9, 5.0, 5.0, False)
    written = Written()
    handler, outcomes = handler_of(task, written)
    stretch = Segment(SOURCE, 0, 10, 6000, 0)
    stretch.answers += [FetchedPartition(0, 10, 10, 0, [], memoryview(piece)) for piece in (large, small)]
    take_segment(stretch, handler, outcomes)
    handler.flush()
    (outcome,) = outcomes.results()
    assert written.spans == []
    assert (outcome.next, outcome.halt.code if outcome.halt else "") == (0, "oversize")

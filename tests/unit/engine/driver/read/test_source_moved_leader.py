"""A source leader that has just taken over may not tell yet what its log holds: what was read waits, the lane goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.read.loop import ReadLoop
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome, ReadResult
from mirror_pipeline.kafka.answers import EARLIEST_TIME, OffsetAnswer
from mirror_pipeline.kafka.records.header import BatchHeader
from mirror_pipeline.model import BatchMark, TopicPartition
from tests.support.lane_context import context
from tests.support.read_lane import STAGED, Source, halt_code, lane

__all__ = ["context"]

OFFSET_NOT_AVAILABLE, NETWORK_EXCEPTION, AUTHORIZATION_FAILED = 78, 13, 29


class NewLeader(Source):
    """Knows where epochs end; its offsets are what it is told to answer with."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self.error = error

    def epoch_ends(self, epochs: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        return {tp: OffsetAnswer(STAGED + 10, epoch, 0) for tp, epoch in epochs.items()}

    def list_offsets(self, at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        return {tp: OffsetAnswer(-1, -1, self.error) for tp in at}


class GrownLog(Source):
    """A log that goes on after what was staged, and whose epochs end where it is told."""

    def __init__(self, ends: Mapping[int, int], held: BatchMark) -> None:
        super().__init__()
        self.epochs, self.held = ends, held

    def epoch_ends(self, epochs: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        return {tp: OffsetAnswer(self.epochs[epoch], epoch, 0) for tp, epoch in epochs.items()}

    def list_offsets(self, at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        return {tp: OffsetAnswer(0 if time == EARLIEST_TIME else STAGED + 10, -1, 0) for tp, time in at.items()}


@pytest.mark.parametrize(
    ("mark", "ends", "code"),
    [
        (STAGED - 1, {0: STAGED}, ""),
        (STAGED - 1, {0: STAGED - 1}, "truncated"),
        (STAGED - 1, {0: STAGED - 5}, "truncated"),
        (STAGED - 8, {0: STAGED - 5}, ""),
        (STAGED - 8, {0: STAGED - 8}, "truncated"),
    ],
)
def test_only_a_log_that_lost_the_batch_read_last_was_truncated(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, mark: int, ends: dict[int, int], code: str
) -> None:
    """A killed run may have read on, and from another leader, after it reported the batch by which the log is known again."""
    monkeypatch.setattr(divergence, "SECOND_LOOK_SECONDS", 0.0)
    held = BatchMark(mark, 7, 0)
    source = GrownLog(ends, held)
    there = BatchHeader(held.offset, 99, held.epoch, 2, held.crc, 0, 0, 0, 0, -1, -1, -1, 1)
    monkeypatch.setattr(divergence, "_batch_at", lambda *_: there)
    read_on(context, lane(context, source), mark=held)
    assert halt_code(context) == code
    assert len(context.spans.spans()) == (0 if code else 1)


LAST = BatchMark(STAGED - 1, 7, 0)


def read_on(context: LaneContext, staging: ReadLoop, *, mark: BatchMark = LAST) -> None:
    """Another batch, of the next leader's epoch."""
    context.state.topics["t"].partitions[0].reading.mark = mark
    writer = PartFileWriter(context.store, 0, 0, durable=False)
    writer.add(SpanDraft("t", 0, "now", STAGED, STAGED + 10, 10, 1, 0, 0), b"payload")
    found = RangeOutcome("t", 0, STAGED + 10, 10, 7, end=STAGED + 10, first_epoch=1, mark=BatchMark(STAGED, 1, 1))
    staging._commit([ReadResult(writer.close(), (found,), 0.0)], time.monotonic())


@pytest.mark.parametrize("error", [OFFSET_NOT_AVAILABLE, NETWORK_EXCEPTION])
def test_a_leader_that_cannot_tell_yet_delays_what_was_read(context: LaneContext, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(divergence, "SECOND_LOOK_SECONDS", 0.0)
    source = NewLeader(error)
    read_on(context, lane(context, source))
    assert (halt_code(context), context.state.topics["t"].partitions[0].staged, len(context.spans.spans())) == ("", STAGED, 0)


def test_a_leader_that_refuses_for_good_halts_the_topic_alone(context: LaneContext) -> None:
    read_on(context, lane(context, NewLeader(AUTHORIZATION_FAILED)))
    assert (halt_code(context), len(context.spans.spans())) == ("topic_authorization_failed", 0)

"""A fault of ours over one range halts its topic, with its traceback; the lane goes on."""

from __future__ import annotations

import logging
import pickle
import time
from typing import Any

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.tasks.longlink.segments import Segment
from mirror_pipeline.engine.tasks.read import task as read_task
from mirror_pipeline.engine.tasks.read.answer_handler import AnswerHandler
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome, ReadResult, ReadTask
from mirror_pipeline.engine.tasks.read.parallel_read import take_segment
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.span_builder import SpanBuilder
from mirror_pipeline.engine.tasks.read.task import run_read
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.halts import internal
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import OffsetRange, TopicPartition
from tests.support.lane_context import context
from tests.support.read_lane import STAGED, Source, lane
from tests.support.read_tasks import Written, handler_of
from tests.support.source_batches import batch

__all__ = ["context"]

BAD, GOOD = TopicPartition("bad", 0), TopicPartition("good", 0)


def rules(place: TopicPartition) -> RangeRules:
    return RangeRules(OffsetRange(place.topic, place.partition, 0, 20, 10**6, "id"), 10**6, False, False)


def task(store: LaneStore | None = None) -> ReadTask:
    both = rules(BAD), rules(GOOD)
    return ReadTask(store or LaneStore("/nowhere"), ClusterSettings("east", ("a:1",)), 0, 0, both, 1, 1, 10**9, 5.0, 5.0, False)


def fetched(start: int) -> FetchedPartition:
    return FetchedPartition(0, 20, 20, 0, [], memoryview(batch(start, 10)))


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer for the bad topic meets a fault, after it has been taken over in part."""
    take = SpanBuilder.take

    def faulty(reader: SpanBuilder, data: FetchedPartition, **how: Any) -> None:
        take(reader, data, **how)
        if reader.rules.range.topic == "bad" and reader.next == 20:
            raise IndexError("list index\nout of range")

    monkeypatch.setattr(SpanBuilder, "take", faulty)


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("wide", [False, True])
def test_a_fault_over_one_range_halts_its_topic_alone(wide: bool) -> None:
    written = Written()
    handler, outcomes = handler_of(task(), written)
    for start in (0, 10):
        for place in (BAD, GOOD):
            if wide:
                take_segment(Segment(place, start, start + 10, 1, 0, [fetched(start)]), handler, outcomes)
            else:
                handler.take(place, fetched(start))
    handler.flush()
    assert [(span.topic, span.end) for span in written.spans] == [("good", 20)], "what a faulty reader holds is not written"
    bad, good = (pickle.loads(pickle.dumps(found)) for found in outcomes.results())  # noqa: S301 - our own
    assert good.halt is None and bad.halt.code == "internal" and bad.mark is None
    assert bad.halt.message.startswith("bad[0]: unexpected IndexError: list index out of range (test_parallel_read_internal.py:")
    assert "Traceback" in bad.halt.trace and "\n" not in bad.halt.message


def test_a_fault_over_what_came_of_one_stretch_halts_its_topic() -> None:
    handler, outcomes = handler_of(task(), Written())
    broken = Segment(BAD, 0, 10, 1, 0, [fetched(0)], fault=IndexError("x"))
    take_segment(broken, handler, outcomes)
    bad, good = outcomes.results()
    assert bad.halt is not None and (bad.halt.code, bad.records, good.halt) == ("internal", 0, None)


def test_a_fault_of_writing_one_range_halts_its_topic_and_the_rest_is_read_again(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = SpanBuilder.flush

    def faulty(reader: SpanBuilder) -> None:
        if reader.rules.range.topic == "bad":
            raise ZeroDivisionError
        flush(reader)

    def fetch_both(task: ReadTask, client: object, handler: AnswerHandler, *_: Any) -> None:
        for place in (GOOD, BAD):
            handler.take(place, fetched(0))

    monkeypatch.setattr(SpanBuilder, "flush", faulty)
    monkeypatch.setattr(read_task, "_fetch", fetch_both)
    result = run_read(task(context.store))
    worker_cache.close()
    codes = {outcome.topic: outcome.halt.code if outcome.halt else outcome.error for outcome in result.outcomes}
    assert result.part is None and codes["bad"] == "internal" and "read again" in codes["good"]


def test_the_traceback_is_logged_and_the_lane_goes_on(context: LaneContext, caplog: pytest.LogCaptureFixture) -> None:
    staging = lane(context, Source())
    try:
        raise IndexError("x")
    except IndexError as problem:
        halt = internal(TopicPartition("t", 0), problem)
    with caplog.at_level(logging.ERROR):
        staging._commit([ReadResult(None, (RangeOutcome("t", 0, STAGED, 0, 0, halt=halt),), 0.0)], time.monotonic())
    run = context.state.topics["t"]
    assert run.halted is halt and context.state.failure is None
    assert "Traceback" in caplog.text and "IndexError: x" in caplog.text

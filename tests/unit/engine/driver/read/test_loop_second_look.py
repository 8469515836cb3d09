"""No topic halts because of one answer: it may be old, of a leader that lags, or of a broker that leads no more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.read.loop import ReadLoop
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome, ReadResult, ReadTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.kafka.answers import EARLIEST_TIME, OffsetAnswer
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import BatchMark, OffsetRange, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import context
from tests.support.read_lane import PLACE, STAGED, Source, halt_code, lane
from tests.support.read_tasks import Written, handler_of

__all__ = ["context"]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "SECOND_LOOK_SECONDS", 0.0, raising=False)


def fetched(stable: int, error: int = 0) -> dict[TopicPartition, FetchedPartition]:
    return {PLACE: FetchedPartition(error, stable, stable, 0, [], memoryview(b""))}


def test_an_old_answer_about_the_end_neither_halts_nor_lowers_it(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that was left open is answered when the lane has long read on."""
    staging = lane(context, Source())
    for stable in (STAGED - 9, STAGED + 5, STAGED + 2):
        monkeypatch.setattr(staging._source._watch, "wait", lambda at, stable=stable, **_: fetched(stable))
        staging._source.await_news()
    assert halt_code(context) == ""
    assert context.state.topics["t"].partitions[0].reading.end == STAGED + 5


def test_an_end_that_only_one_answer_puts_too_low_halts_nothing(context: LaneContext) -> None:
    source = Source(ends=[STAGED - 9, STAGED + 1])
    lane(context, source).refresh_ends()
    assert (halt_code(context), source.asked, source.forgotten) == ("", 2, [PLACE])


@pytest.mark.parametrize("second", ["no leader", STAGED])
def test_a_second_look_that_cannot_be_had_halts_nothing(context: LaneContext, second: int | str) -> None:
    lane(context, Source(ends=[STAGED - 9, second])).refresh_ends()
    assert halt_code(context) == ""


def test_a_log_that_ends_too_early_twice_was_truncated(context: LaneContext) -> None:
    lane(context, Source(ends=[STAGED - 9, STAGED - 10])).refresh_ends()
    halt = context.state.topics["t"].halted
    assert halt is not None and (halt.code, halt.span) == ("truncated", (STAGED - 10, STAGED))


@pytest.mark.parametrize(("ids", "code"), [(["another"], "recreated"), (["now"], "truncated")])
def test_a_recreated_topic_is_never_called_truncated(context: LaneContext, ids: list[str], code: str) -> None:
    lane(context, Source(ends=[STAGED - 9], ids=ids)).refresh_ends()
    assert halt_code(context) == code


def outcome(**more: Any) -> list[ReadResult]:
    return [ReadResult(None, (RangeOutcome("t", 0, STAGED, 0, 0, **more),), 0.0)]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize(("ends", "code"), [([STAGED - 9, STAGED + 1], ""), ([STAGED + 1], ""), ([STAGED - 9, STAGED - 9], "truncated")])
def test_an_offset_that_a_leader_does_not_know_makes_the_run_look_twice(
    context: LaneContext, ends: list[int | str], code: str, once: bool
) -> None:
    staging = lane(context, Source(ends=ends), once=once)
    context.stop.wait = lambda timeout=None: False  # type: ignore[method-assign]
    staging._commit(outcome(error="the broker has no data", beyond=True), time.monotonic())
    assert halt_code(context) == code


class Leader(Source):
    """Its log begins at 0 and ends before what is asked for, or it cannot be asked."""

    def __init__(self, start: int | str) -> None:
        super().__init__()
        self.start = start

    def list_offsets(self, at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        """Only the start is asked for: -1 with an error is no offset."""
        assert set(at.values()) == {EARLIEST_TIME}
        return {tp: OffsetAnswer(-1, -1, 13) if isinstance(self.start, str) else OffsetAnswer(self.start, -1, 0) for tp in at}


@pytest.mark.parametrize("start", [0, "silent"])
def test_out_of_range_is_no_halt_of_the_task(start: int | str) -> None:
    rules = RangeRules(OffsetRange("t", 0, STAGED, STAGED + 9, 10**6, "id"), 10**6, False, False)
    task = ReadTask(LaneStore("/nowhere"), ClusterSettings("east", ("a:1",)), 0, 0, (rules,), 1, 1, 10**9, 5.0, 5.0, False)
    handler, outcomes = handler_of(task, Written(), Leader(start))
    handler.take(PLACE, fetched(STAGED - 9, 1)[PLACE])
    (found,) = outcomes.results()
    assert found.halt is None and found.error and found.beyond is (start == 0)


def staged_file(context: LaneContext, staging: ReadLoop) -> None:
    writer = PartFileWriter(context.store, 0, 0, durable=False)
    writer.add(SpanDraft("t", 0, "now", STAGED, STAGED + 10, 10, 1, 0, 0), b"payload")
    found = RangeOutcome("t", 0, STAGED + 10, 10, 7, end=STAGED + 10, first_epoch=0, mark=BatchMark(STAGED, 1, 0))
    staging._commit([ReadResult(writer.close(), (found,), 0.0)], time.monotonic())


def test_another_topic_id_that_one_broker_tells_halts_nothing_and_commits_nothing(context: LaneContext) -> None:
    source = Source(ids=["another", "now"])
    staging = lane(context, source)
    staged_file(context, staging)
    part = context.state.topics["t"].partitions[0]
    assert (halt_code(context), part.staged, len(context.spans.spans()), source.elsewhere) == ("", STAGED, 0, 1)
    staged_file(context, staging)
    assert (halt_code(context), part.staged, len(context.spans.spans())) == ("", STAGED + 10, 1)


def test_another_topic_id_that_is_told_twice_halts(context: LaneContext) -> None:
    staging = lane(context, Source(ids=["another"]))
    staged_file(context, staging)
    assert (halt_code(context), len(context.spans.spans())) == ("recreated", 0)


class NoTarget:
    """Not asked: what is looked at is the source."""

    admin = None


@pytest.mark.parametrize(("ids", "code"), [(["another", "now"], ""), (["another", "another"], "recreated"), (["now"], "")])
def test_a_run_does_not_begin_with_a_halt_that_one_broker_told(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, ids: list[str], code: str
) -> None:
    source = Source(ids=ids)
    monkeypatch.setattr("mirror_pipeline.engine.driver.topics.prepare.WireClient", lambda *_, **__: source)
    for name in ("Admin", "TargetSide"):
        monkeypatch.setattr(f"mirror_pipeline.engine.driver.topics.prepare.{name}", lambda *_: NoTarget())
    monkeypatch.setattr("mirror_pipeline.engine.driver.topics.prepare.source_policies", lambda *_: {})
    preparation = Preparation(context)
    for _ in range(2):
        preparation.update([LaneTopic("t", "east.t")])
    refused = {**context.state.refused, **{name: run.halted for name, run in context.state.topics.items() if run.halted}}
    assert [halt.code for halt in refused.values()] == ([code] if code else [])
    assert bool(context.state.live()) is not bool(code)

"""What was read while a topic was made anew under the same name never becomes part of its copy."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.read.loop import ReadLoop
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome, ReadResult
from mirror_pipeline.halts import trimmed
from mirror_pipeline.kafka.answers import ClusterMetadata, TopicMetadata
from mirror_pipeline.model import BatchMark, Quarantined, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context

__all__ = ["context"]


class Source:
    """A source whose topic has some id now."""

    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id

    def metadata(self, names: list[str]) -> ClusterMetadata:
        return ClusterMetadata("east-id", 1, {}, {name: TopicMetadata(name, self.topic_id, 0, False, {}) for name in names})

    def ask_elsewhere(self) -> None:
        """There is one broker."""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "SECOND_LOOK_SECONDS", 0.0)


def staged(context: LaneContext, topic_id: str, **outcome: Any) -> tuple[int, str]:
    """Commit one micro-batch that was read just now; spans in the buffer after it, and the code of the topic's halt."""
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    staging = ReadLoop(context, Source(topic_id))  # type: ignore[arg-type]
    writer = PartFileWriter(context.store, 0, 0, durable=False)
    writer.add(SpanDraft("t", 0, "now", 10, 20, 10, 1, 0, 0), b"payload")
    size = outcome.pop("bytes", 7)
    found = RangeOutcome("t", 0, 20, 10, size, end=20, first_epoch=0, **outcome)
    staging._commit([ReadResult(writer.close(), (found,), 0.0)], time.monotonic())
    halt = context.state.topics["t"].halted
    return len(context.spans.spans()), halt.code if halt is not None else ""


MARK = BatchMark(10, 1, 0)


def test_a_micro_batch_of_the_topic_as_it_was_is_committed(context: LaneContext) -> None:
    assert staged(context, "now", mark=MARK) == (1, "")
    assert context.state.topics["t"].partitions[0].staged == 20


TRIMMED = trimmed(TopicPartition("t", 0), 10, 20)
QUARANTINED = Quarantined("t", 0, "now", 10, 11, "too large", b"")


@pytest.mark.parametrize("outcome", [{"mark": MARK}, {"quarantined": (QUARANTINED,)}, {"halt": TRIMMED}])
def test_a_micro_batch_of_the_topic_that_took_its_name_is_not(context: LaneContext, outcome: dict[str, Any]) -> None:
    assert staged(context, "another", **outcome) == (0, "recreated")
    assert context.state.topics["t"].partitions[0].staged == 10


def test_merging_does_not_change_what_is_known_of_the_sources_batches(context: LaneContext) -> None:
    """How much a fetch asks for, and how long links are cut into stretches, follows from the batches that the source has."""
    staged(context, "now", mark=MARK, bytes=8000, batches=16)  # one in the buffer
    assert context.state.topics["t"].partitions[0].reading.bytes_per_batch == 500

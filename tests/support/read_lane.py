"""A read loop against a source whose answers the test sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read.loop import ReadLoop
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.kafka.answers import ClusterMetadata, OffsetAnswer, TopicMetadata
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE

PLACE = TopicPartition("t", 0)
STAGED = 30


class Source:
    """A source with prepared answers, one for each request; the last one is repeated."""

    def __init__(self, ends: list[int | str] | None = None, ids: list[str] | None = None) -> None:
        self.ends, self.ids = ends or [STAGED], ids or ["now"]
        self.asked = 0
        self.forgotten: list[TopicPartition] = []
        self.elsewhere = 0

    def metadata(self, names: list[str]) -> ClusterMetadata:
        topic_id = self.ids.pop(0) if len(self.ids) > 1 else self.ids[0]
        return ClusterMetadata("east-id", 1, {}, {name: TopicMetadata(name, topic_id, 0, False, {}) for name in names})

    def list_offsets(self, at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        self.asked += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        return {tp: OffsetAnswer(-1, -1, 5) if isinstance(end, str) else OffsetAnswer(end, -1, 0) for tp in at}

    def forget(self, tp: TopicPartition) -> None:
        self.forgotten.append(tp)

    def ask_elsewhere(self) -> None:
        self.elsewhere += 1

    def known_leader(self, tp: TopicPartition) -> int:
        return 1

    def take_silent(self) -> dict[int, str]:
        return {}

    round_trip = 0.0


def lane(context: LaneContext, source: Source, *, once: bool = False) -> ReadLoop:
    """Everything up to ``STAGED`` has been read."""
    context.once = once
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    part = context.state.topics["t"].partitions[0]
    part.staged, part.reading.end, part.reading.end_known = STAGED, STAGED, True
    return ReadLoop(context, source)  # type: ignore[arg-type]


def halt_code(context: LaneContext) -> str:
    halt = context.state.topics["t"].halted
    return halt.code if halt is not None else ""

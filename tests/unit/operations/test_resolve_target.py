"""Accepting a target as it is now: only where it still is not as it should be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.topics.target import TargetSide
from mirror_pipeline.errors import UsageError
from mirror_pipeline.kafka.answers import ClusterMetadata, OffsetAnswer, PartitionMetadata, TopicMetadata
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.resolve import _look_at_target
from tests.support.lane_context import LIFE, context, send

__all__ = ["context"]


class Target:
    """Tells one topic id after the other, the last again and again, and one end."""

    def __init__(self, *ids: str, end: int = 0) -> None:
        self._ids, self._end = list(ids), end
        self.asked = self.elsewhere = 0

    def metadata(self, names: Iterable[str]) -> ClusterMetadata:
        self.asked += 1
        topic_id = self._ids.pop(0) if len(self._ids) > 1 else self._ids[0]
        part = {0: PartitionMetadata(1, 0, (1,), (1,), 0)}
        return ClusterMetadata("west-id", 1, {}, {name: TopicMetadata(name, topic_id, 0, False, part) for name in names})

    def list_offsets(self, at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        return {tp: OffsetAnswer(self._end, -1, 0) for tp in at}

    def ask_elsewhere(self) -> None:
        self.elsewhere += 1

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("topic_id", "end", "accepted"), [("target-id", 10, False), ("target-id", 9, True), ("another-id", 10, True)])
def test_only_a_target_that_lost_records_or_is_another_one_is_copied_to_again(
    context: LaneContext, topic_id: str, end: int, accepted: bool
) -> None:
    context.ledger.record(0, [send(10, 20)])
    target: Any = Target(topic_id, end=end)
    if accepted:
        _look_at_target(target, context.ledger, LIFE)
        return
    with pytest.raises(UsageError, match="holds what was copied") as caught:
        _look_at_target(target, context.ledger, LIFE)
    assert "run the mirror again" in caught.value.hint


@pytest.mark.parametrize(
    ("ids", "codes"), [(("old-id", "target-id"), []), (("old-id", "old-id"), ["target_recreated"]), (("target-id",), [])]
)
def test_no_target_counts_as_recreated_by_one_answer(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, ids: tuple[str, ...], codes: list[str]
) -> None:
    monkeypatch.setattr(divergence, "SECOND_LOOK_SECONDS", 0.0)
    side = TargetSide(context)
    target: Any = Target(*ids)
    side._client, side.cluster_id = target, "west-id"
    assert [halt.code for halt in side.changed([LIFE]).values()] == codes
    assert target.elsewhere == len(ids) - 1

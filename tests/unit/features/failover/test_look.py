"""What a failover sees of a source that answers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_pipeline.features.failover import look
from mirror_pipeline.features.failover.look import Situation, still_written
from mirror_pipeline.kafka.answers import ClusterMetadata, PartitionMetadata, TopicMetadata
from mirror_pipeline.model import Incarnation, Position, TopicPartition

TP = TopicPartition("orders", 0)


@pytest.mark.parametrize(("topic_id", "missing"), [("copied", []), ("anew", ["orders[0]: 100 offsets up to 100 are not on the target"])])
def test_a_topic_that_was_made_anew_is_not_on_the_target(topic_id: str, missing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its predecessor was copied up to offset 400; the new one ends at 100."""
    parts = {0: PartitionMetadata(1, 0, (1,), (1,), 0)}
    source: Any = SimpleNamespace(
        metadata=lambda names: ClusterMetadata("east", 1, {}, {"orders": TopicMetadata("orders", topic_id, 0, False, parts)}),
        describe_producers=lambda parts: {tp: [] for tp in parts},
    )
    monkeypatch.setattr(look, "offsets_or_errors", lambda client, parts, at, isolation: dict.fromkeys(parts, 100))
    monkeypatch.setattr(Situation, "positions", lambda self: {TP: Position(400, 400, 400)})
    generation = Incarnation("orders", "copied", "east", "west", "orders", "t", {0: 0}, {0: 0}, 0)
    flow: Any = SimpleNamespace(source_client=lambda: nullcontext(source))
    store: Any = SimpleNamespace(lane="lane-0")
    said = [text.partition(";")[0] for _, text in still_written(Situation(flow, {"orders": (store, generation)}, True))]
    assert said == missing

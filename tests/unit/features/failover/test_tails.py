"""What a failback knows of records that never came over, from the looks that it has noted."""

from __future__ import annotations

from typing import Any

from mirror_pipeline.buffer.ledger.promotions import FailoverStep, Promotion, PromotionState
from mirror_pipeline.features.failover.report import TailPartition
from mirror_pipeline.features.failover.tails import NotedLook, _since, merged, noted_looks
from mirror_pipeline.model import TopicPartition

TP = TopicPartition("orders", 0)
PROMOTED = {0: Promotion("orders", 0, "id/7", PromotionState.PROMOTED, 100, 100, "orders", "me", 1)}


def step(number: int, name: str, **detail: Any) -> FailoverStep:
    return FailoverStep(number, "failback", name, detail, "me", 0)


def look(start: int, end: int, topic_id: str = "id") -> NotedLook:
    return NotedLook(2, [TailPartition("orders", 0, start, end)], {"orders": topic_id}, True)


def test_a_look_is_done_once_its_records_are_copied() -> None:
    detail = look(100, 120).detail()
    steps = [step(2, "begun"), step(2, "tail", **detail), step(2, "copied"), step(2, "tail", **detail), step(3, "copied")]
    assert [(found.number, found.aside, found.copied) for found in noted_looks(steps, "failback")] == [(2, True, True), (2, True, False)]
    assert noted_looks(steps, "failover") == []


def test_what_is_copied_aside_is_not_new_in_the_same_topic() -> None:
    assert _since(TP, "id", PROMOTED, []) == 100
    assert _since(TP, "id", PROMOTED, [look(100, 120), look(120, 145)]) == 145
    assert _since(TopicPartition("orders", 1), "id", PROMOTED, [look(100, 120)]) == 0, "a partition that was added"


def test_a_topic_that_was_made_again_holds_other_records_at_the_same_offsets() -> None:
    assert _since(TP, "other", PROMOTED, [look(100, 120)]) == 0
    assert _since(TP, "other", PROMOTED, [look(0, 20, "other"), look(0, 40)]) == 20


def test_looks_are_listed_as_one_row_for_each_partition() -> None:
    rows = [TailPartition("orders", 0, 100, 120, 3), TailPartition("orders", 1, 5, 6), TailPartition("orders", 0, 120, 145)]
    assert merged(rows) == [TailPartition("orders", 0, 100, 145, 3), TailPartition("orders", 1, 5, 6)]

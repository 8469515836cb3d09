"""Successive generations of a topic, each accepted by an operator: recreated, truncated, another target topic."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.state import TopicRun
from mirror_pipeline.model import DecisionKind, Gap, HoleCause, Incarnation, Position, TopicPartition


def follows(context: LaneContext, known: Incarnation, found_topic_id: str) -> bool:
    """Whether an operator has accepted the source topic as it is now as the successor of ``known``.

    A truncation was accepted of the topic that it happened to: it does not join a topic that was created since.
    """
    if known.topic_id == found_topic_id:
        return bool(context.permits.accepted(DecisionKind.TRUNCATED, known.incarnation))
    return bool(context.permits.accepted(DecisionKind.RECREATED, known.incarnation, found_topic_id))


def drained(run: TopicRun, recorded: Mapping[TopicPartition, Position]) -> bool:
    """Whether everything staged of this generation is known to be on the target, and recorded: the next one continues after that."""
    return not any(
        part.pending
        or part.writing.outcome_unknown
        or recorded.get(part.source, part.writing.position).source_next < part.writing.position.source_next
        for part in run.partitions.values()
    )


def successor_of(
    context: LaneContext, known: Incarnation, run: TopicRun, topic_id: str, earliest: Mapping[int, int]
) -> Incarnation:
    """The generation that follows a drained one in the same target topic, still without its place there.

    Args:
        context: the lane; the gaps of truncated logs are recorded here.
        known: the generation that ends.
        run: its positions.
        topic_id: id of the source topic now.
        earliest: first source offset of each partition as it is now.
    """
    if topic_id == known.topic_id:
        starts = {number: part.writing.position.source_next for number, part in run.partitions.items()} | _cut(context, known)
    else:
        starts = dict(earliest)
    return replace(
        known,
        incarnation=known.next_generation(topic_id),
        starts=starts,
        target_starts={},
        ordinals={},
        kept={},
        at=bound_at(known),
    )


def restarted(known: Incarnation, target_topic_id: str) -> Incarnation:
    """The generation that starts over in an empty target topic, still without its place there: another one, or the same one emptied.

    The brokers still know our last sequence in an emptied topic, and a sender of the last generation may be late. The next
    epoch may begin at sequence 0 (KIP-360), and from its first batch on brokers refuse the old epoch (error 47).
    """
    return replace(
        known,
        incarnation=known.next_generation(known.topic_id),
        target_topic_id=target_topic_id,
        target_starts={},
        ordinals={},
        kept={},
        producer_epoch=known.producer_epoch + 1,
        at=bound_at(known),
    )


def _cut(context: LaneContext, known: Incarnation) -> dict[int, int]:
    """Where truncated partitions continue; what was copied beyond is recorded as a gap."""
    starts = {}
    for decision in context.permits.accepted(DecisionKind.TRUNCATED, known.incarnation):
        starts[decision.partition] = decision.start
        context.ledger.add_gap(
            Gap(
                context.mirror.name, known.topic, decision.partition, known.incarnation, decision.start, decision.end,
                HoleCause.TRUNCATION, decision.decided_by, decision.at,
            )
        )  # fmt: skip
    return starts


def bound_at(known: Incarnation | None) -> int:
    """The time of a new row, after that of the row before it whatever this host's clock says: older versions order by it."""
    now = int(time.time() * 1000)
    return now if known is None else max(now, known.at + 1)

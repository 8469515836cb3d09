"""From one life of a topic to the next, after a person has accepted it: recreated, truncated, another target topic."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from mirror_pipeline.engine.context import LaneContext
from mirror_pipeline.engine.state import TopicRun
from mirror_pipeline.model import DecisionKind, Gap, HoleCause, Incarnation


def follows(context: LaneContext, known: Incarnation, found_topic_id: str) -> bool:
    """Whether a person has decided that the source topic as it is now goes on behind ``known``."""
    recreated = known.topic_id != found_topic_id and context.accepted(DecisionKind.RECREATED, known.incarnation, found_topic_id)
    return bool(recreated or context.accepted(DecisionKind.TRUNCATED, known.incarnation))


def drained(run: TopicRun) -> bool:
    """Whether everything staged of this life is on the target, for certain."""
    return not any(part.pending or part.outcome_unknown for part in run.partitions.values())


def successor_of(
    context: LaneContext, known: Incarnation, run: TopicRun, topic_id: str, earliest: Mapping[int, int], ends: Mapping[int, int]
) -> Incarnation:
    """The life that follows a drained one in the same target topic.

    Args:
        context: the lane; truncated logs get their gaps written down here.
        known: the life that ends.
        run: where it stands.
        topic_id: id of the source topic now.
        earliest: first source offset of each partition as it is now.
        ends: the target's end offsets.
    """
    stands = {number: part.position for number, part in run.partitions.items()}
    if topic_id == known.topic_id:
        starts = {number: position.source_next for number, position in stands.items()} | _cut(context, known)
    else:
        starts = dict(earliest)
    return replace(
        known,
        incarnation=known.next_generation(topic_id),
        starts=starts,
        target_starts={number: stands[number].target_next if number in stands else ends[number] for number in starts},
        ordinals={number: stands[number].ordinal for number in starts if number in stands},
        at=_after(known),
    )


def restarted(known: Incarnation, target_topic_id: str, ends: Mapping[int, int]) -> Incarnation:
    """The life that begins again in an empty target topic: another one, or the same one emptied.

    Of a topic that was emptied the brokers still know our last sequence, and a sender of the life before may be late. The next
    epoch may begin at sequence 0 (KIP-360), and from its first batch on the old one is refused (47).
    """
    return replace(
        known,
        incarnation=known.next_generation(known.topic_id),
        target_topic_id=target_topic_id,
        target_starts={number: ends[number] for number in known.starts},
        ordinals={},
        producer_epoch=known.producer_epoch + 1,
        at=_after(known),
    )


def _cut(context: LaneContext, known: Incarnation) -> dict[int, int]:
    """Where truncated partitions go on; what was copied beyond is named in the gap ledger."""
    starts = {}
    for decision in context.accepted(DecisionKind.TRUNCATED, known.incarnation):
        starts[decision.partition] = decision.start
        context.ledger.add_gap(
            Gap(
                context.mirror.name, known.topic, decision.partition, known.incarnation, decision.start, decision.end,
                HoleCause.TRUNCATION, decision.decided_by, decision.at,
            )
        )  # fmt: skip
    return starts


def _after(known: Incarnation) -> int:
    """The latest life counts, whatever the clock says."""
    return max(int(time.time() * 1000), known.at + 1)

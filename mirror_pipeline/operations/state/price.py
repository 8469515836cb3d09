"""What a copy would cost: bytes by samples of the source's logs, time at the rate of the last run, disk on the target."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_pipeline.lags import MirrorLag, TopicLag
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state.log_samples import Looks, sampled
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import PlanPrice
from mirror_pipeline.topics.plan import TargetPlan

# Of each topic these partitions, those with most to copy, are looked at; of more topics than this the largest.
SAMPLED_PARTITIONS, SAMPLED_TOPICS = 2, 500
# A run that copied less says nothing about the rate.
FEWEST_BYTES, FEWEST_SECONDS = 10_000_000, 0.5


def backlog_sizes(snapshot: Snapshot, lag: MirrorLag) -> dict[str, int]:
    """About how many bytes of each topic are to be copied; without those that could not be looked at.

    Raises:
        ClusterUnreachable, ConnectionLost: the source does not answer.
    """
    behind = sorted((row for row in lag.topics if row.lag_records), key=lambda row: -row.lag_records)[:SAMPLED_TOPICS]
    looks: Looks = {tp: bounds for row in behind for tp, bounds in _most(row).items()}
    samples = sampled(snapshot.source, [looks]) if looks else {}
    sizes = {row.topic: 0 for row in lag.topics if not row.lag_records}
    known = {row.topic: sample for row in behind if (sample := samples.get(row.topic)) is not None and sample.offsets}
    return sizes | {row.topic: round(row.lag_records * s.bytes / s.offsets) for row in behind if (s := known.get(row.topic)) is not None}


def _most(row: TopicLag) -> dict[TopicPartition, tuple[int, int]]:
    parts = sorted((part for part in row.partitions if part.lag), key=lambda part: -part.lag)[:SAMPLED_PARTITIONS]
    return {TopicPartition(row.topic, part.partition): (part.position, part.end) for part in parts}


def price_of(snapshot: Snapshot, plans: Mapping[str, TargetPlan], sizes: Mapping[str, int]) -> PlanPrice:
    """The price of the topics that are to be copied. Raises ClusterUnreachable."""
    there = [made.target_topic for name, made in plans.items() if not made.create and sizes.get(name)]
    held = snapshot.target.admin.topics(there) if there else {}
    factors = {
        name: held[made.target_topic].replication_factor if made.target_topic in held else made.replication_factor
        for name, made in plans.items()
    }
    total = sum(sizes.get(name, 0) for name in plans)
    runs = [lane.file.progress for lane in snapshot.ledger.lanes]
    rates = [run.bytes / run.seconds for run in runs if run.bytes >= FEWEST_BYTES and run.seconds >= FEWEST_SECONDS]
    rate = sum(rates) if rates else None
    return PlanPrice(
        bytes=total,
        target_bytes=sum(sizes.get(name, 0) * factors[name] for name in plans),
        buffer_bytes=min(total, snapshot.flow.config.buffer.max_bytes),
        bytes_per_second=rate,
        seconds=None if rate is None else total / rate,
    )

"""What clusters of ``sources`` hold of what a mirror has to copy; no record is read."""

from __future__ import annotations

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_ranges
from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.reports import CopyPlan

Wanted = dict[TopicPartition, tuple[int, int]]


def copy_plans(flow: Flow, lag: MirrorLag) -> tuple[CopyPlan, ...]:
    """A row for each cluster of ``sources``."""
    behind = [(TopicPartition(row.topic, part.partition), part) for row in lag.topics for part in row.partitions if part.lag]
    wanted = {tp: (part.position, part.end) for tp, part in behind}
    return tuple(_copy_plan(copy, wanted) for copy in flow.copies)


def _copy_plan(copy: ClusterSettings, wanted: Wanted) -> CopyPlan:
    try:
        with WireClient(copy) as client:
            metadata = client.metadata(sorted({tp.topic for tp in wanted}))
            there = [tp for tp in wanted if tp.partition in metadata.topics[tp.topic].partitions]
            held = log_ranges(client, there, isolation=1)
    except MirrorError as error:
        return CopyPlan(copy.alias, None, error.message)
    both = [(held[tp], wanted[tp]) for tp in there]
    return CopyPlan(copy.alias, sum(max(0, min(log[1], end) - max(log[0], at)) for log, (at, end) in both if isinstance(log, tuple)))

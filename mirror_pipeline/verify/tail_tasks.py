"""A task that looks behind the end of what was copied: records that no lane of the mirror wrote. Runs in a Spark worker."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.fold_tasks import TARGET_LINE
from mirror_pipeline.verify.log_walk import READ_UNCOMMITTED, read_log


@dataclass(frozen=True, slots=True)
class TailTask:
    """Target offsets ``[start, end)`` of one partition, and the producer ids that may have written there."""

    cluster: ClusterSettings
    source: TopicPartition
    target: TopicPartition
    start: int
    end: int
    ours: frozenset[int]
    limit: int
    timeout: float


def run_tail(task: TailTask) -> tuple[TopicPartition, list[int]]:
    """Target offsets of foreign records, at most ``limit``."""
    client = worker_cache.client_of(task.cluster, timeout=task.timeout)
    found: list[int] = []
    pieces = read_log(
        client, task.target, task.start, task.end, isolation=READ_UNCOMMITTED, line=TARGET_LINE, deleted=lambda _: None
    )
    for piece in pieces:
        if piece.header.producer_id not in task.ours:
            found += [record.offset for record in piece.opened()]
        if len(found) >= task.limit:
            break
    return task.source, found[: task.limit]

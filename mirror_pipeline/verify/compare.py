"""Compare mirrored topics with their source, record by record, independently of the engine that copied them.

Both logs are read raw. Source records are those a read_committed consumer sees; target records those a
read_uncommitted consumer sees, because that is what the mirror promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verdicts import DIFFERENT, IDENTICAL, UNREADABLE, Difference
from mirror_pipeline.verify.align import align
from mirror_pipeline.verify.classify import Found, judge
from mirror_pipeline.verify.log_walk import READ_COMMITTED, READ_UNCOMMITTED, log_range, read_log
from mirror_pipeline.verify.pieces import Piece

# A partition is given up after so many differences: the first ones tell what is wrong.
DIFFERENCES_PER_PARTITION = 50

Offsets = Mapping[TopicPartition, int]
ProgressCallback = Callable[[str, int, int, int], None]


@dataclass(frozen=True, slots=True)
class TopicComparison:
    """The verdict on one topic: identical, different or unreadable; ``records`` and ``bytes`` are what the source holds."""

    topic: str
    target_topic: str
    partitions: int
    records: int
    bytes: int
    seconds: float
    verdict: str
    differences: tuple[Difference, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether every record is there once, in order and unaltered, and nothing else."""
        return self.verdict == IDENTICAL

    def to_json(self) -> dict[str, Any]:
        """Plain values for printing as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Sides:
    source: WireClient
    target: WireClient
    source_from: Offsets
    source_to: Offsets
    target_from: Offsets
    target_to: Offsets


def compare_topics(
    source: ClusterSettings,
    target: ClusterSettings,
    pairs: Mapping[str, str],
    *,
    source_from: Offsets | None = None,
    source_to: Offsets | None = None,
    target_from: Offsets | None = None,
    target_to: Offsets | None = None,
    progress: ProgressCallback | None = None,
) -> list[TopicComparison]:
    """Compare each source topic with its target topic: key, value, headers, timestamp and order, per partition.

    Memory stays bounded (some tens of megabytes for each side), whatever the size of the topics. Each partition is
    compared up to the offsets found at its turn; with ``*_from`` and ``*_to`` from and up to (exclusive) those given.

    Args:
        source: cluster that was copied.
        target: cluster that was copied to.
        pairs: source topic to target topic.
        source_from: first source offset to look at, for the partitions named.
        source_to: source offset to stop in front of.
        target_from: first target offset to look at.
        target_to: target offset to stop in front of.
        progress: called with topic, partition, records and bytes compared so far in that partition.

    Returns:
        One comparison for each pair, in the order given. A topic that cannot be read is ``unreadable``.

    Raises:
        ClusterUnreachable: No broker of a cluster answers.
    """
    with closing(WireClient(source)) as left, closing(WireClient(target)) as right:
        sides = _Sides(left, right, source_from or {}, source_to or {}, target_from or {}, target_to or {})
        partitions = _partition_counts(left, list(pairs)), _partition_counts(right, list(pairs.values()))
        return [
            _compare_topic(sides, topic, name, partitions[0].get(topic, 0), partitions[1].get(name, 0), progress)
            for topic, name in pairs.items()
        ]


def _partition_counts(client: WireClient, topics: list[str]) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in client.metadata(topics).topics.items() if not topic.error}


def _compare_topic(
    sides: _Sides, topic: str, target: str, count: int, target_count: int, progress: ProgressCallback | None
) -> TopicComparison:
    began = time.monotonic()
    if not count or not target_count:
        side, name = ("source", topic) if not count else ("target", target)
        missing = Difference("missing", topic, -1, None, None, f"topic {name} does not exist on the {side}")
        return TopicComparison(topic, target, count, 0, 0, time.monotonic() - began, DIFFERENT, (missing,))
    records = size = 0
    differences: list[Difference] = []
    verdict = IDENTICAL
    try:
        for partition in range(max(count, target_count)):
            found = _compare_partition(sides, topic, target, partition, count, target_count, progress)
            records, size = records + found.records, size + found.bytes
            differences += [Difference(d.kind, topic, partition, d.source_offset, d.target_offset, d.detail) for d in found.differences]
        verdict = DIFFERENT if differences else IDENTICAL
    except MirrorError as error:
        verdict = UNREADABLE
        differences.append(Difference("missing", topic, -1, None, None, str(error)))
    return TopicComparison(topic, target, count, records, size, time.monotonic() - began, verdict, tuple(differences))


def _compare_partition(
    sides: _Sides, topic: str, target: str, partition: int, count: int, target_count: int, progress: ProgressCallback | None
) -> Found:
    """A partition that one side lacks counts as empty there: then every record of the other is a difference."""
    ours, theirs = TopicPartition(topic, partition), TopicPartition(target, partition)
    start, end = log_range(sides.source, [ours], isolation=READ_COMMITTED)[ours] if partition < count else (0, 0)
    low, high = log_range(sides.target, [theirs], isolation=READ_UNCOMMITTED)[theirs] if partition < target_count else (0, 0)
    start, end = max(start, sides.source_from.get(ours, start)), min(end, sides.source_to.get(ours, end))
    low, high = max(low, sides.target_from.get(theirs, low)), min(high, sides.target_to.get(theirs, high))

    def source() -> Iterator[Piece]:
        return read_log(sides.source, ours, start, end, isolation=READ_COMMITTED)

    def other() -> Iterator[Piece]:
        return read_log(sides.target, theirs, low, high, isolation=READ_UNCOMMITTED)

    def tell(records: int, size: int) -> None:
        if progress is not None:
            progress(topic, partition, records, size)

    return judge(align(source(), other(), limit=DIFFERENCES_PER_PARTITION, progress=tell), source, limit=DIFFERENCES_PER_PARTITION)

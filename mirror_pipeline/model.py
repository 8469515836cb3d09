"""Facts that travel through the data path: offset ranges, spans, sends, gaps.

Everything here is immutable, picklable (it crosses into Spark tasks) and free of I/O.
Offsets are Kafka offsets; an ``end`` is always exclusive. Times are milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class HoleCause(StrEnum):
    """Why a source offset holds no record that must be copied."""

    MARKER = "transaction_marker"
    ABORTED = "aborted"
    COMPACTION = "compaction"
    RETENTION = "retention"
    TRUNCATION = "truncation"
    QUARANTINED = "quarantined"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Hole:
    """Source offsets ``[start, end)`` inside a span that carry no copied record."""

    start: int
    end: int
    cause: HoleCause


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What a plan hands to a stage task: source offsets ``[start, end)`` of one partition.

    A range without ``hard_end`` may overrun ``end`` to the end of the batch that holds it, and may stop
    before it once ``max_bytes`` are read. With ``hard_end`` the batch that straddles ``end`` is split.
    """

    topic: str
    partition: int
    start: int
    end: int
    max_bytes: int
    incarnation: str
    hard_end: bool = False

    @property
    def source(self) -> TopicPartition:
        """The source partition that is read."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class SpanRef:
    """One row of the buffer without its payload, and where the payload lies.

    The span stands for source offsets ``[start, end)``; ``records`` of them are in the payload, in order,
    the others are named by ``holes``. ``path`` is relative to the span table, ``row_group`` the Parquet
    row group that holds exactly this span.
    """

    topic: str
    partition: int
    incarnation: str
    micro_batch: int
    start: int
    end: int
    records: int
    batches: int
    bytes: int
    min_timestamp: int
    max_timestamp: int
    holes: tuple[Hole, ...]
    path: str
    row_group: int

    @property
    def source(self) -> TopicPartition:
        """The source partition that was read."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class PartFile:
    """A written, not yet committed, Parquet part file of the span table."""

    path: str
    size: int
    micro_batch: int
    spans: tuple[SpanRef, ...]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Producer id and epoch that every batch of a lane carries on the target (KIP-98)."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Send:
    """One stretch of the offset map: source ``[source_start, source_end)`` is target ``[target_start, target_end)``.

    Either dense (both stretches are ``records`` long, ``cause`` is None) or a hole (``records`` is 0, the
    target stretch is empty, ``cause`` says why). The sends of a partition tile its source offsets without
    overlap. ``ordinal`` is the number of records the lane has put into that target partition before.
    """

    topic: str
    partition: int
    incarnation: str
    source_start: int
    source_end: int
    target_topic: str
    target_start: int
    target_end: int
    records: int
    ordinal: int
    micro_batch: int
    cause: HoleCause | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Source offsets ``[start, end)`` that are not, and will not be, on the target; with who decided it."""

    mirror: str
    topic: str
    partition: int
    incarnation: str
    start: int
    end: int
    cause: HoleCause
    decided_by: str
    at: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where a partition stands: next source offset, next target offset, records put there so far."""

    source_next: int
    target_next: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a source topic as a lane copies it, and the target topic it is bound to.

    ``incarnation`` is the source's topic id (KIP-516). ``starts`` and ``target_starts`` give, for each
    partition, the first source offset copied and the target's end offset at that moment.
    """

    topic: str
    incarnation: str
    source_cluster_id: str
    target_cluster_id: str
    target_topic: str
    target_topic_id: str
    starts: dict[int, int]
    target_starts: dict[int, int]
    at: int

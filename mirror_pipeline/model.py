"""Facts that travel through the data path: offset ranges, spans, sends, gaps.

Everything here is immutable, picklable (it crosses into Spark tasks) and free of I/O.
Offsets are Kafka offsets; an ``end`` is always exclusive. Times are milliseconds since the epoch, UTC.

Over 300 lines: the types that rooms share stand in one file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

NO_TIMESTAMP = -1
"""Kafka's timestamp of a record that has none."""
UNKNOWN_BYTES_PER_OFFSET = 1024.0
"""What an offset is taken to weigh before anything of its partition was read."""
ESTIMATE_SLACK = 1.25
"""How much more than estimated a range may bring."""
LEAST_BYTES_PER_OFFSET = 50.0
"""What it weighs at least, compressed records of 100 bytes for instance: for decisions that pay only if much is waiting."""


class TopicPartition(NamedTuple):
    """One partition of one topic; a tuple, as it is the key of every table of the data path."""

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
    NO_RECORD = "no_record"


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
    ``bytes_per_offset`` is an estimate, and so is ``bytes_per_batch``, 0 when nothing is known.
    """

    topic: str
    partition: int
    start: int
    end: int
    max_bytes: int
    incarnation: str
    hard_end: bool = False
    bytes_per_offset: float = 1024.0
    bytes_per_batch: float = 0.0

    @property
    def source(self) -> TopicPartition:
        """The source partition that is read."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class LeafDigest:
    """Sum of the digests of batches whose base offset lies in leaf number ``leaf``, with how many records they hold."""

    leaf: int
    digest: bytes
    records: int


@dataclass(frozen=True, slots=True)
class SpanRef:
    """One row of the buffer without its payload, and where the payload lies.

    The span stands for source offsets ``[start, end)``; ``records`` of them are in the payload, in order,
    the others are named by ``holes``. ``path`` is relative to the span table, ``row_group`` the Parquet
    row group that holds exactly this span. ``digests`` are those of its batches, by leaf (empty in a buffer of an
    older version). ``at`` is where in the file the payload begins, -1 where only the file tells.
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
    digests: tuple[LeafDigest, ...] = ()
    at: int = field(default=-1, compare=False)

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
class MarkerStamp:
    """Whose control markers fill holes (``offsets: exact``), and the coordinator epoch by which a broker refuses older ones (KIP-98)."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Send:
    """One stretch of the offset map: source ``[source_start, source_end)`` is target ``[target_start, target_end)``.

    Either dense (both stretches are ``records`` long, ``cause`` is None) or a hole (``records`` is 0, ``cause`` says why, and the target
    stretch is empty or, with ``offsets: exact``, as long and full of control markers). The sends of a partition tile its source offsets
    without overlap. ``ordinal`` is the number of records the lane has put into that target partition before; below 0 in the part of a
    topic that was adopted, where it counts up to the first record that the lane puts there itself. ``delay_ms`` is from the oldest
    record's timestamp until the target's confirmation was known; None where that is unknown, and for holes.
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
    delay_ms: int | None = field(default=None, compare=False)


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
    """One generation of a source topic as a lane copies it, and the target topic it is bound to.

    ``incarnation`` is the source's topic id (KIP-516), with ``/2``, ``/3`` appended for later generations under the
    same id (after a truncation, or in another target topic), or the time of an adoption. ``starts`` and ``target_starts``
    give, for each partition, the first source offset copied or adopted and the target's end offset at that moment;
    ``ordinals`` the number of records that earlier generations have written to that target partition (default 0).
    ``producer_epoch`` is added to the epoch of the lane's producer id: a copy that starts over in an emptied topic, or is
    adopted anew, uses the next epoch, from sequence 0. ``kept``: with ``offsets: exact``, from which offset on the target's log held
    the source's records when the copy began without a ledger; below its start offsets are their own translation there.
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
    ordinals: dict[int, int] = field(default_factory=dict)
    producer_epoch: int = 0
    kept: dict[int, int] = field(default_factory=dict)

    @property
    def topic_id(self) -> str:
        """The source topic's id."""
        return topic_id_of(self.incarnation)

    def next_generation(self, topic_id: str) -> str:
        """Name of the incarnation that follows this one, under the same or another topic id."""
        if topic_id != self.topic_id:
            return topic_id
        return f"{topic_id}/{int(self.incarnation.partition('/')[2] or 1) + 1}"

    def ended(self) -> Incarnation:
        """The row that ends the topic in the ledger, because its copy is deleted: a generation without a target topic.

        It follows directly, so that a topic of the same name that begins later is later, also after the clock was set back.
        """
        ended = self.next_generation(self.topic_id)
        nowhere: dict[int, int] = {}
        return replace(
            self, incarnation=ended, target_topic="", target_topic_id="", starts=nowhere, target_starts=nowhere, ordinals=nowhere,
            kept=nowhere, at=self.at + 1,
        )  # fmt: skip


def topic_id_of(incarnation: str) -> str:
    """The topic id in an incarnation's name."""
    return incarnation.partition("/")[0]


class DecisionKind(StrEnum):
    """What an operator has accepted by ``mirror resolve``, or ordered by ``mirror pause``."""

    GAP = "gap"
    RECREATED = "recreated"
    TRUNCATED = "truncated"
    TARGET = "target"
    SOURCE_GONE = "source_gone"
    DELETION = "deletion"
    PAUSED = "paused"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class Decision:
    """An operator's answer to a halt.

    ``gap``: source offsets ``[start, end)`` of ``partition`` may be missing on the target. ``recreated``: the source
    topic may continue as ``subject``, its new topic id. ``truncated``: the source's log ended at ``start``, records up
    to ``end`` were copied before; continue at ``start``. ``target``: copy everything again into the target topic whose
    id is ``subject``. ``source_gone``: the source topic was deleted, leave it out; ``[start, end)`` of ``partition`` was
    never read (``partition`` -1: nothing is known to be lost). ``deletion``: the source topic was deleted, and the mirror is about
    to delete its copy, the target topic whose id is ``subject``. ``paused`` and ``resumed``: whether the topic, or with an empty one the
    mirror, is copied; without a generation. ``incarnation`` is the topic generation concerned.
    ``revision`` orders decisions, whichever host made them (-1: made by an older version, before all others).
    """

    topic: str
    partition: int
    incarnation: str
    kind: DecisionKind
    start: int
    end: int
    subject: str
    decided_by: str
    at: int
    revision: int = field(default=-1, compare=False)

    def allows(self, topic: str, partition: int, start: int, end: int) -> bool:
        """Whether these source offsets may be missing."""
        same = self.kind is DecisionKind.GAP and (self.topic, self.partition) == (topic, partition)
        return same and self.start <= start and end <= self.end


@dataclass(frozen=True, slots=True)
class BatchMark:
    """A source batch by which the log can be known again: its base offset, CRC and leader epoch."""

    offset: int
    crc: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A source record, or a damaged batch, that was left out of the copy; ``payload`` is its RecordBatch as it was read."""

    topic: str
    partition: int
    incarnation: str
    start: int
    end: int
    reason: str
    payload: bytes


class Verdict(StrEnum):
    """What a verification says of a source range."""

    SAME = "same"
    DIFFERENT = "different"
    DELETED_ON_TARGET = "deleted_on_target"
    NOT_STAGED = "not_staged"


@dataclass(frozen=True, slots=True)
class Verification:
    """Source offsets ``[source_start, source_end)`` of one partition were compared with the target.

    ``kind`` says against what: ``staged`` digests of the buffer, or the ``source``'s log. ``root`` folds the digests
    of all ``leaves`` of the range as they were staged or read from the source. ``at`` is milliseconds since the epoch;
    ``revision`` orders verifications, whichever host made them (-1: made by an older version, before all others).
    """

    topic: str
    partition: int
    incarnation: str
    source_start: int
    source_end: int
    leaves: int
    records: int
    root: str
    verdict: Verdict
    kind: str
    at: int
    revision: int = field(default=-1, compare=False)

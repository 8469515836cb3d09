"""Segments: pieces of a range that are read at the same time and taken over in offset order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import headers
from mirror_pipeline.model import OffsetRange, TopicPartition

SEGMENT_BYTES = 384 * 1024
SEGMENT_BATCHES = 8
"""A segment has at least this many bytes, and batches: those at its edges are read twice."""
UNKNOWN_BATCH_BYTES = 32 * 1024
MOST_OVER = 1.25
"""A segment with this many times the bytes that were expected of it ends where it has come to."""
SLACK_BATCHES = 1.5
"""Asked for on top of what is left of a segment, so that its first and last batches come whole: that takes one on average, two at most."""
PROBES = 2
"""Segments by which a partition is looked at of which nothing is known."""
LATE, LATE_WHILE_IDLE, LEAST_LATE_SECONDS = 3.0, 2.0, 0.25
"""A segment is late after this many times the usual time for its bytes, sooner where connections have nothing else to do."""
MOST_ATTEMPTS = 3
"""At once, of a segment that is asked for before it is late because everything waits for it."""
LEARNING = 0.02
"""What is usual is the median: each answer moves it by so much."""
EMPTY_ANSWERS = 3


@dataclass(slots=True, eq=False)
class Segment:
    """Offsets ``[start, end)`` of one partition, on their way; ``answers`` begin at or before ``start``.

    One that turns out to be larger than expected is cut: ``end`` is less then, and ``rest`` continues to where it ended at first,
    ``upto``. ``known``: ``size`` is an estimate by what was read of the partition. ``held`` are the bytes of its answers
    while they count as read ahead; ``passed`` says that it is no longer needed, ``fault`` what was raised over its answers, which
    is a fault of ours. ``alias`` is the copy that it is read from, "" for the source; ``moves`` how often it was given to another cluster
    because it was late.
    """

    source: TopicPartition
    start: int
    end: int
    size: int
    slack: int
    answers: list[FetchedPartition] = field(default_factory=list)
    error: Exception | None = None
    fault: Exception | None = None
    known: bool = True
    ready: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    rest: Segment | None = None
    losses: int = 0
    held: int = 0
    passed: bool = False
    alias: str = ""
    moves: int = 0
    upto: int = field(init=False)

    def __post_init__(self) -> None:
        self.upto = self.end

    def attempt(self) -> Attempt:
        """Read it, perhaps once more."""
        attempt = Attempt(self, self.start)
        self.attempts.append(attempt)
        return attempt

    def cut(self, at: int, estimate: Estimate) -> Segment:
        """End it at ``at``; returns the rest."""
        rest = estimate.segment(self.source, at, self.end)
        rest.rest, rest.upto, rest.alias = self.rest, self.upto, self.alias
        self.rest, self.end = rest, at
        return rest


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of a partition: for each offset, and of a batch. ``known`` unless it is a guess."""

    per_offset: float
    batch: int
    known: bool = True

    @property
    def usual(self) -> int:
        """Bytes of a segment."""
        return max(SEGMENT_BYTES, SEGMENT_BATCHES * self.batch)

    @property
    def step(self) -> int:
        """Offsets of a segment."""
        return max(1, round(self.usual / max(1.0, self.per_offset)))

    def steps(self, start: int, end: int) -> int:
        """Segments of this many offsets."""
        return -(-(end - start) // self.step)

    def size(self, offsets: int) -> int:
        """Bytes of this many offsets."""
        return int(offsets * max(1.0, self.per_offset))

    def segment(self, source: TopicPartition, start: int, end: int) -> Segment:
        """A segment of this many offsets, whatever their bytes."""
        return Segment(source, start, end, self.size(end - start), int(SLACK_BATCHES * self.batch), known=self.known)


@dataclass(slots=True, eq=False)
class Attempt:
    """One connection's way through a segment. The first attempt that comes to the end gives its answers to the segment.

    ``asked`` is when it was last asked for, ``since`` when its connection began to work on nothing else; ``late`` that
    others may try as well; ``batch`` the size of the largest batch that came, ``per_offset`` the bytes for each offset of the
    last answer. ``charge`` are the bytes that may come of what was asked for, ``received`` those that came.
    """

    segment: Segment
    next: int
    answers: list[FetchedPartition] = field(default_factory=list)
    empty: int = 0
    asked: float = 0.0
    since: float = 0.0
    late: bool = False
    batch: int = 0
    per_offset: float = 0.0
    charge: int = 0
    received: int = 0
    probing: bool = False

    @property
    def overflows(self) -> bool:
        """Whether so much has come that the segment should end here."""
        return self.next > self.segment.start and self.received >= MOST_OVER * self.segment.size

    def left(self, batch: float) -> int:
        """Bytes to ask for next, by the estimate, if batches have this many (0: as was thought when the segment was cut)."""
        segment = self.segment
        share = (segment.end - self.next) / max(1, segment.end - segment.start)
        return int(segment.size * share) + (int(SLACK_BATCHES * batch) or segment.slack)

    def take(self, answer: FetchedPartition) -> bool:
        """Keep an answer; whether it was the last."""
        self.answers.append(answer)
        before = first = self.next
        size = 0
        try:
            for _, header in headers(answer.records):
                first = min(first, header.base_offset)
                self.next = max(self.next, header.next_offset)
                self.batch = max(self.batch, header.size)
                size += header.size
        except CorruptBatch:
            return True  # whoever reads it says what is wrong, and what it means
        self.per_offset = size / (self.next - first) if self.next > first else 0.0
        self.empty = self.empty + 1 if self.next == before else 0
        return bool(answer.error) or self.next >= self.segment.end or self.empty >= EMPTY_ANSWERS


def in_turn(rows: Sequence[Sequence[Segment]]) -> list[Segment]:
    """The order in which segments are read: all partitions in turn."""
    return [row[turn] for turn in range(max(map(len, rows), default=0)) for row in rows if turn < len(row)]


def stop_of(planned: OffsetRange) -> int:
    """The offset up to which a range's bytes will last, by the estimate."""
    return min(planned.end, planned.start + max(1, round(planned.max_bytes / _per_offset(planned))))


def beyond(planned: OffsetRange, stop: int, room: int) -> int:
    """How far to read after a range that ends at ``stop``: as much again, and at least ``room`` bytes."""
    return min(planned.end, stop + max(stop - planned.start, round(room / _per_offset(planned))))


def cut(planned: OffsetRange, start: int, stop: int) -> list[Segment]:
    """Segments of a range's partition that tile the offsets ``[start, stop)``; of one of which nothing is known a few of the
    usual size, whose answers show how to cut the rest."""
    known = planned.bytes_per_batch > 0
    batch = int(planned.bytes_per_batch) if known else UNKNOWN_BATCH_BYTES
    estimate = Estimate(planned.bytes_per_offset, batch, known)
    ends = list(range(start, stop, estimate.step)[1:])
    if not known:
        del ends[PROBES:]
    starts = [start] if start < stop else []
    return [estimate.segment(planned.source, at, end) for at, end in zip([*starts, *ends], [*ends, stop], strict=False)]


def _per_offset(planned: OffsetRange) -> float:
    return max(1.0, planned.bytes_per_offset)


class Pace:
    """The seconds a byte usually takes on one connection: the median over all of them."""

    def __init__(self) -> None:
        self._usual = 0.0

    def learn(self, seconds_per_byte: float, *, busy: bool) -> None:
        """Take an answer into account, unless connections lack work: then most answers come from slow connections."""
        if not self._usual:
            self._usual = seconds_per_byte
        elif busy:
            self._usual *= 1 + LEARNING if seconds_per_byte > self._usual else 1 - LEARNING

    def is_late(self, attempt: Attempt, now: float, *, busy: bool) -> bool:
        """Whether an answer takes so much longer than usual that the segment should be asked for over another connection, too."""
        allowed = max(LEAST_LATE_SECONDS, (LATE if busy else LATE_WHILE_IDLE) * self._usual * attempt.segment.size)
        return bool(self._usual) and now - attempt.since > allowed * max(1, len(attempt.segment.attempts))

    def keeps_waiting(self, segment: Segment, now: float) -> bool:
        """Whether a segment that everything waits for has been asked for longer ago than one usually takes, wherever it stands."""
        if not self._usual or not 0 < len(segment.attempts) < MOST_ATTEMPTS:
            return False
        return now - segment.attempts[-1].asked > max(LEAST_LATE_SECONDS, self._usual * segment.size)

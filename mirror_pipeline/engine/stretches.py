"""Stretches: ranges cut into pieces that are read at the same time and taken over one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.model import OffsetRange, TopicPartition
from mirror_pipeline.wire.batch import headers
from mirror_pipeline.wire.fetch import FetchedPartition

STRETCH_BYTES = 384 * 1024
STRETCH_BATCHES = 8
"""A stretch has at least so many bytes, and batches: those at its edges are read twice."""
UNKNOWN_BATCH_BYTES = 32 * 1024
SLACK_BATCHES = 1.5
"""Asked for on top of what is left of a stretch, so that its first and last batches come whole: that takes one on average, two at most."""
EMPTY_ANSWERS = 3


@dataclass(slots=True, eq=False)
class Stretch:
    """Offsets ``[start, end)`` of one partition, on their way; ``answers`` begin at or before ``start``.

    ``counted`` while it takes room among what is read ahead, ``passed`` once its reader needs no more of it for now,
    ``fault`` what was raised over its answers, which is a fault of ours.
    """

    source: TopicPartition
    start: int
    end: int
    size: int
    slack: int
    answers: list[FetchedPartition] = field(default_factory=list)
    problem: Exception | None = None
    fault: Exception | None = None
    ready: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    losses: int = 0
    counted: bool = False
    passed: bool = False

    def attempt(self) -> Attempt:
        """Read it, perhaps once more."""
        attempt = Attempt(self, self.start)
        self.attempts.append(attempt)
        return attempt


@dataclass(slots=True, eq=False)
class Attempt:
    """One connection's way through a stretch. The first attempt that comes to the end gives its answers to the stretch.

    ``asked`` is when it was last asked for, ``since`` when its connection began to work on nothing else; ``late`` that
    others may try as well; ``batch`` the size of the largest batch that came.
    """

    stretch: Stretch
    next: int
    answers: list[FetchedPartition] = field(default_factory=list)
    empty: int = 0
    asked: float = 0.0
    since: float = 0.0
    late: bool = False
    batch: int = 0

    def left(self, batch: float) -> int:
        """Bytes to ask for next, by the estimate, if batches have so many (0: as was thought when the stretch was cut)."""
        stretch = self.stretch
        share = (stretch.end - self.next) / max(1, stretch.end - stretch.start)
        return int(stretch.size * share) + (int(SLACK_BATCHES * batch) or stretch.slack)

    def take(self, answer: FetchedPartition) -> bool:
        """Keep an answer; whether it was the last."""
        self.answers.append(answer)
        before = self.next
        try:
            for _, header in headers(answer.records):
                self.next = max(self.next, header.next_offset)
                self.batch = max(self.batch, header.size)
        except CorruptBatch:
            return True  # whoever reads it says what is wrong, and what it means
        self.empty = self.empty + 1 if self.next == before else 0
        return bool(answer.error) or self.next >= self.stretch.end or self.empty >= EMPTY_ANSWERS


def in_turn(rows: Sequence[Sequence[Stretch]]) -> list[Stretch]:
    """The order in which stretches are read: all partitions in turn."""
    return [row[turn] for turn in range(max(map(len, rows), default=0)) for row in rows if turn < len(row)]


def stop_of(planned: OffsetRange) -> int:
    """The offset up to which a range's bytes will last, by the estimate."""
    return min(planned.end, planned.start + max(1, round(planned.max_bytes / _per_offset(planned))))


def beyond(planned: OffsetRange, stop: int, room: int) -> int:
    """How far to read behind a range that ends at ``stop``: as much again, and never less than ``room`` bytes."""
    return min(planned.end, stop + max(stop - planned.start, round(room / _per_offset(planned))))


def cut(planned: OffsetRange, start: int, stop: int) -> list[Stretch]:
    """Stretches of a range's partition that tile the offsets ``[start, stop)``."""
    per_offset = _per_offset(planned)
    batch = planned.bytes_per_batch or UNKNOWN_BATCH_BYTES
    step = max(1, round(max(STRETCH_BYTES, STRETCH_BATCHES * batch) / per_offset))
    slack = int(SLACK_BATCHES * batch)
    ends = [(at, min(at + step, stop)) for at in range(start, stop, step)]
    return [Stretch(planned.source, at, end, int((end - at) * per_offset), slack) for at, end in ends]


def _per_offset(planned: OffsetRange) -> float:
    return max(1.0, planned.bytes_per_offset)

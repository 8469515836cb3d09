"""Which source offset is which target offset, where a target's log is the beginning of its source's. Pure.

Both streams are aligned as for any comparison. Meanwhile the offsets of their records are noted: the records that matched are the same
ones in the same order on both sides, so the first one of the source is the first one of the target, and so on.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.offset_runs import Runs
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.verify.align import Alignment
from mirror_pipeline.verify.pieces import Piece

Stretch = tuple[int, int]
"""Offset of a record, and how many records follow each other from there on without a hole."""


def _longs() -> array[int]:
    return array("q")


@dataclass(slots=True)
class NotedPieces:
    """A stream of batches that keeps the offsets of all their records, as stretches without holes."""

    pieces: Iterable[Piece]
    _firsts: array[int] = field(default_factory=_longs)
    _lengths: array[int] = field(default_factory=_longs)

    def __iter__(self) -> Iterator[Piece]:
        for piece in self.pieces:
            header = piece.header
            # The record count of older formats is not in their headers.
            if header.magic == 2 and piece.whole and header.records == header.next_offset - header.base_offset:
                self._add(header.base_offset, header.records)
            else:
                for record in piece.opened():
                    self._add(record.offset, 1)
            yield piece

    def _add(self, first: int, length: int) -> None:
        if self._firsts and self._firsts[-1] + self._lengths[-1] == first:
            self._lengths[-1] += length
        else:
            self._firsts.append(first)
            self._lengths.append(length)

    def before(self, end: int, without: Collection[int]) -> Iterator[Stretch]:
        """The stretches below an offset, less the records at some offsets."""
        left = sorted(without, reverse=True)
        for first, length in zip(self._firsts, self._lengths, strict=True):
            stop = min(end, first + length)
            while left and left[-1] < stop:
                out = left.pop()
                if first < out:
                    yield first, out - first
                first = max(first, out + 1)
            if first < stop:
                yield first, stop - first


def matched_runs(source: NotedPieces, target: NotedPieces, found: Alignment, ends: tuple[int, int]) -> Runs:
    """The offset map of the records that matched.

    Args:
        source: the source's stream, as far as it was read.
        target: the target's.
        found: how the two were aligned; not one that was stopped.
        ends: source and target offset up to which they were aligned.

    Raises:
        ProblemFound: the two sides do not have equally many records, which an alignment rules out.
    """
    lost = {candidate.source.offset for candidate in found.candidates if candidate.source is not None}
    more = {candidate.target.offset for candidate in found.candidates if candidate.target is not None}
    runs = Runs()
    left, right = source.before(ends[0], lost), target.before(ends[1], more)
    a, b = next(left, None), next(right, None)
    while a is not None and b is not None:
        length = min(a[1], b[1])
        runs.add(a[0], b[0], length)
        a = (a[0] + length, a[1] - length) if a[1] > length else next(left, None)
        b = (b[0] + length, b[1] - length) if b[1] > length else next(right, None)
    if a is not None or b is not None:
        raise ProblemFound("both sides were aligned, but one has more records than the other", hint="report this")
    return runs

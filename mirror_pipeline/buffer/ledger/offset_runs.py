"""The offset map of one partition as dense runs: source offsets to target offsets and back. Pure, picklable."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pipeline.buffer.spans.eviction import SpanKey


def _longs() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Runs:
    """Ranges in which the offset map is linear, in order: ``source[i] + n`` is at ``target[i] + n``, n < ``length[i]``.

    Source offsets between runs hold no record that was copied. ``target_end`` is where the next record would go.
    """

    source: array[int] = field(default_factory=_longs)
    target: array[int] = field(default_factory=_longs)
    length: array[int] = field(default_factory=_longs)
    target_end: int = 0

    def add(self, source: int, target: int, length: int) -> None:
        """Append a run; it extends the last one where both are contiguous."""
        if length <= 0:
            return
        last = len(self.source) - 1
        if last >= 0 and source - self.source[last] == target - self.target[last] == self.length[last]:
            self.length[last] += length
        else:
            self.source.append(source)
            self.target.append(target)
            self.length.append(length)
        self.target_end = target + length

    def to_target(self, offset: int) -> int:
        """Target offset of the first record whose source offset is ``offset`` or greater; ``target_end`` when there is none."""
        found = self.from_source(offset)
        return self.target_end if found is None else found[1]

    def to_source(self, offset: int) -> int | None:
        """Source offset of the record at a target offset; None when it is not in the map."""
        found = self.from_target(offset)
        return found[0] if found is not None and found[1] == offset else None

    def from_source(self, offset: int) -> tuple[int, int] | None:
        """Source and target offset of the first record whose source offset is ``offset`` or greater; None when there is none."""
        return self._first(self.source, offset)

    def from_target(self, offset: int) -> tuple[int, int] | None:
        """Source and target offset of the first record whose target offset is ``offset`` or greater; None when there is none."""
        return self._first(self.target, offset)

    def _first(self, starts: array[int], offset: int) -> tuple[int, int] | None:
        run = bisect_right(starts, offset) - 1
        if run >= 0 and offset < starts[run] + self.length[run]:
            into = offset - starts[run]
            return self.source[run] + into, self.target[run] + into
        return (self.source[run + 1], self.target[run + 1]) if run + 1 < len(starts) else None

    def source_at_or_after(self, offset: int, otherwise: int) -> int:
        """Source offset of the first record at or after ``offset`` of the target; ``otherwise`` when there is none."""
        found = self.from_target(offset)
        return otherwise if found is None else found[0]

    def slice(self, low: int, high: int) -> Runs:
        """The runs of source offsets ``[low, high)``; ``target_end`` is the target offset of the record at ``high``."""
        part = Runs()
        for source, target, length in self.between(low, high):
            part.add(source, target, length)
        part.target_end = self.to_target(high)
        return part

    def between(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Source, target and length of every run, cut to source offsets ``[low, high)``."""
        for index in range(max(0, bisect_right(self.source, low) - 1), len(self.source)):
            first, end = max(low, self.source[index]), min(high, self.source[index] + self.length[index])
            if self.source[index] >= high:
                return
            if first < end:
                yield first, self.target[index] + first - self.source[index], end - first

    def records(self, low: int, high: int) -> int:
        """How many copied records have source offsets in ``[low, high)``."""
        return sum(length for _, _, length in self.between(low, high))


def runs_of(sends: pa.Table) -> dict[SpanKey, Runs]:
    """The runs of every partition and incarnation.

    Args:
        sends: rows of the sends table, ordered by source offset inside a partition (``Ledger.sends_table``).
    """
    dense = sends.filter(pc.is_null(sends["cause"]))
    names = ("topic", "partition", "incarnation", "source_start", "target_start", "records")
    found: dict[SpanKey, Runs] = {}
    for topic, partition, incarnation, source, target, records in zip(*(dense[name].to_pylist() for name in names), strict=True):
        key = (topic, partition, incarnation)
        if key not in found:
            found[key] = Runs()
        found[key].add(source, target, records)
    return found

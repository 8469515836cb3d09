"""Digest source batches as the target holds them: batches that the mirror merged count as the one batch they became."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.digest import LeafSums
from mirror_pipeline.kafka.records.header import BatchHeader
from mirror_pipeline.kafka.records.merge import merge_whole

Extents = deque[tuple[int, int]]
"""Source offset ranges ``[first, end)`` of the target's batches, in order."""


class Matching:
    """Adds source batches to leaf sums.

    Merging depends on the records alone, so the same batches merged again give the target's bytes if the records are the
    same. Otherwise the sums differ, and records are compared.

    Args:
        sums: where digests go.
        extents: the target's batches read so far; those that have been passed are removed.
        more: reads more of the target, which adds to ``extents``.
    """

    def __init__(self, sums: LeafSums, extents: Extents, more: Iterator[object]) -> None:
        self._sums, self._extents, self._more = sums, extents, more
        self._held: list[tuple[BatchHeader, memoryview]] = []

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        """Add one batch; in the order of offsets."""
        start, end = header.base_offset, header.next_offset
        first, stop = self._whole(start, end)
        due = self._held[-1][0].next_offset if self._held else first
        if start != due or end > stop or (start, end) == (first, stop):
            self.close()
            self._sums.add(header, batch, start)
            return
        self._held.append((header, batch))
        if end == stop:
            self._merge()

    def close(self) -> None:
        """Add the held batches unmerged."""
        for header, batch in self._held:
            self._sums.add(header, batch, header.base_offset)
        self._held = []

    def _whole(self, start: int, end: int) -> tuple[int, int]:
        """The target's batch that a source batch should lie in; ``(-1, -1)`` if there is none."""
        while (not self._extents or self._extents[-1][1] < end) and next(self._more, None) is not None:
            pass
        while self._extents and self._extents[0][1] <= start:
            self._extents.popleft()
        return self._extents[0] if self._extents else (-1, -1)

    def _merge(self) -> None:
        run = memoryview(b"".join(batch for _, batch in self._held))
        try:
            merged = merge_whole(run, records=sum(header.records for header, _ in self._held))
        except CorruptBatch:  # its checksum is right: the comparison of records reports what is wrong in it
            self.close()
            return
        self._held = []
        self._sums.add_all([merged])

"""Batches of the source counted in as the target holds them: those that were merged on the way as the one batch they became."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.digest import LeafSums
from mirror_pipeline.kafka.records.header import BatchHeader
from mirror_pipeline.kafka.records.merge import merge_whole

Extents = deque[tuple[int, int]]
"""Source offsets, first and behind the last, of the target's batches, in order."""


class Matching:
    """Counts source batches into leaf sums.

    Merging is a matter of the records alone, so the same batches merged again give the target's bytes if the records are the
    same. Where they do not, or nothing fits, the sums differ and whoever compares will look at records.

    Args:
        sums: where digests go.
        extents: what is known of the target's batches so far; those that are passed are taken away.
        more: reads on on the target, which adds to ``extents``.
    """

    def __init__(self, sums: LeafSums, extents: Extents, more: Iterator[object]) -> None:
        self._sums, self._extents, self._more = sums, extents, more
        self._held: list[tuple[BatchHeader, memoryview]] = []

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        """Count in one batch; in the order of offsets."""
        start, end = header.base_offset, header.next_offset
        first, behind = self._whole(start, end)
        due = self._held[-1][0].next_offset if self._held else first
        if start != due or end > behind or (start, end) == (first, behind):
            self.close()
            self._sums.add(header, batch, start)
            return
        self._held.append((header, batch))
        if end == behind:
            self._merge()

    def close(self) -> None:
        """Count in what is held back, as it is."""
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
        except CorruptBatch:  # its checksum was right: what is wrong in it will be told where records are compared
            self.close()
            return
        self._held = []
        self._sums.add_all([merged])

"""The archive's part of a maintenance round: spans that are due move there, old ones leave, small files are joined.

The archive is never the reason that replication waits. It does not count towards `buffer.max_bytes`; on a full disk its oldest files
are deleted first; and where no space is left for a copy, a span leaves the buffer without one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.archive.merged import day_of
from mirror_pipeline.buffer.archive.move import move, settle
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.space import SPARE_BYTES
from mirror_pipeline.buffer.place.usage import free_bytes
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.upkeep import Upkeep
from mirror_pipeline.config import BufferConfig
from mirror_pipeline.topics.lanes import BACKFILL_PREFIX

log = logging.getLogger(__name__)

# Moved in one transaction: so much is on the disk twice for a moment.
MOVE_BYTES = 256 * 2**20
# Less than this waits until something is late, for each move adds files: one for each topic.
LEAST_ARCHIVED_BYTES = 64 * 2**20
# Late is what is due for a tenth of the retention, at most this many seconds.
LATE_SECONDS = 3600.0
# Files joined in one round.
JOIN_BYTES = 1024 * 2**20
DAY_SECONDS = 86_400


@dataclass(slots=True)
class Archiving:
    """Moves one lane's spans into its archive.

    Args:
        archive, spans: the lane's tables.
        retention: seconds that spans stay in the buffer.
        seconds: after which they leave the archive, counted from when they were staged.
    """

    archive: Archive
    spans: SpanTable
    retention: int
    seconds: int
    unarchived: int = 0

    def settle(self) -> None:
        """Complete what a killed process had begun to move. Raises BufferUnusable."""
        if self.archive.exists():
            settle(self.archive, self.spans)

    def free(self, size: int) -> int:
        """Delete the oldest archived files because the disk is full; the bytes deleted."""
        if size <= 0 or not self.archive.exists():
            return 0
        freed = self.archive.drop_oldest(size)
        if freed:
            log.warning("archive of lane %s: the disk is full, the oldest %d bytes were deleted", self.archive.store.lane, freed)
        return freed

    def evict(self, safe: Collection[int], *, older_than: int, target_bytes: int | None) -> list[int]:
        """Move what :meth:`SpanTable.evict` would take, with the same arguments; the micro-batches that left the buffer."""
        due = self.spans.demanded(safe, older_than=older_than, target_bytes=target_bytes)
        if not due or (target_bytes is None and self._early(safe, due, older_than)):
            return []
        self.archive.ensure()
        gone: list[int] = []
        for piece, size in self._pieces(due):
            if self._space_for(size):
                gone += move(self.archive, self.spans, piece)
            else:
                self.unarchived += size
                gone += self.spans.evict(piece, target_bytes=0)
            if target_bytes is not None:
                self.spans.vacuum(grace=0.0)
        if self.unarchived:
            log.warning("lane %s: %d bytes left the buffer without a copy in the archive: the disk is full", self._lane, self.unarchived)
        return gone

    @property
    def _lane(self) -> str:
        return self.archive.store.lane

    def _early(self, safe: Collection[int], due: Collection[int], older_than: int) -> bool:
        """Whether so little is due that it can wait."""
        late = int(1000 * min(LATE_SECONDS, self.retention / 10))
        crowded = self.spans.demanded(safe)
        overdue = self.spans.demanded(safe, older_than=older_than - late, target_files=None, target_spans=None)
        return not crowded and not overdue and self.spans.bytes_of(due) < LEAST_ARCHIVED_BYTES

    def _pieces(self, due: Collection[int]) -> Iterator[tuple[list[int], int]]:
        piece: list[int] = []
        size = 0
        for number in sorted(due):
            piece.append(number)
            size += self.spans.bytes_of([number])
            if size >= MOVE_BYTES:
                yield piece, size
                piece, size = [], 0
        if piece:
            yield piece, size

    def _space_for(self, size: int) -> bool:
        """Whether ``size`` bytes may be written; the oldest archived ones make room for them."""
        lacking = size + SPARE_BYTES - free_bytes(self.archive.store)
        return lacking <= 0 or self.free(lacking) >= lacking

    def upkeep(self, *, orphan_age: float) -> Upkeep:
        """Let old files leave, join small ones, delete dead ones. Raises BufferUnusable."""
        if not self.archive.exists():
            return Upkeep()
        now = time.time()
        self.archive.expire(int(1000 * (now - self.seconds)))
        over = day_of(int(1000 * (now - self.retention - DAY_SECONDS)))
        space = min(JOIN_BYTES, free_bytes(self.archive.store) - SPARE_BYTES - MOVE_BYTES)
        return self.archive.maintain(over=over, orphan_age=orphan_age, space=space)


def archiving_of(store: LaneStore, spans: SpanTable, buffer: BufferConfig) -> Archiving | None:
    """The archiving of a lane; None without ``buffer.archive``, and for a backfill, whose records another lane archives."""
    if buffer.archive is None or store.lane.startswith(BACKFILL_PREFIX):
        return None
    return Archiving(Archive(store, durable=buffer.durable), spans, buffer.retention, buffer.archive)

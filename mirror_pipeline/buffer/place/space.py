"""Room in the buffer: whether another micro-batch fits under the cap and on the disk, and what must go if it does not."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.usage import buffer_use, free_bytes
from mirror_pipeline.units import rounded_size

LOOK_SECONDS = 1.0
"""Between two looks at a local folder; what was staged meanwhile is added."""
OVERRUN = 1.25
"""A micro-batch may become larger than planned: a range takes whole fetches. The largest one seen counts, and a bit more."""
SPARE_BYTES = 16 * 2**20
"""Left on the disk for the ledger and the tables' logs, without which nothing can be freed."""
ROOM_SHARE = 0.8
"""Once it is short of room the buffer is emptied to this share, so that it is not full again at once."""
NEAR_SHARE = 0.9
"""From here on old micro-batches are evicted before staging has to wait."""
BALLAST = "ballast"
BALLAST_BYTES = 4 * 2**20
BALLAST_SHARE = 64
"""... but no more than this part of the cap."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a lane may use: bytes the whole buffer takes, its cap, free bytes of its disk, the size of the next micro-batch."""

    used: int
    cap: int
    free: int
    reserve: int

    @property
    def limit(self) -> int:
        """The buffer may take so much before the next micro-batch is staged."""
        return max(0, self.cap - self.reserve)

    @property
    def why_full(self) -> str:
        """Why another micro-batch does not fit; empty when it does."""
        if self.used > self.limit:
            taken = f"{rounded_size(self.used)} of {rounded_size(self.cap)} (buffer.max_bytes) are taken"
            return f"{taken}, and the next micro-batch may need {rounded_size(self.reserve)}"
        if self.free < self.reserve + SPARE_BYTES:
            return f"its disk is full: {rounded_size(self.free)} left, and the next micro-batch may need {rounded_size(self.reserve)}"
        return ""

    @property
    def near(self) -> bool:
        """Whether it will be full soon."""
        return self.used > NEAR_SHARE * self.limit or NEAR_SHARE * self.free < self.reserve + SPARE_BYTES

    @property
    def excess(self) -> int:
        """Bytes that should go; 0 when nothing must."""
        if not self.near:
            return 0
        return max(0, self.used - int(ROOM_SHARE * self.limit), int((self.reserve + SPARE_BYTES) / ROOM_SHARE) - self.free)


class RoomWatch:
    """Looks at the buffer for one lane; its staging and its housekeeper share one.

    Args:
        store: the lane.
        cap: of the whole buffer, bytes.
        micro_batch: planned size of a micro-batch, bytes.
    """

    def __init__(self, store: LaneStore, *, cap: int, micro_batch: int) -> None:
        self._store = store
        self._cap = cap
        self._micro_batch = int(OVERRUN * micro_batch)
        self._largest = 0
        self._running = 1
        self._staged = 0
        self._fixed = 0
        self._seen: Room | None = None
        self._at = 0.0
        self._lock = threading.Lock()

    def look(self) -> Room:
        """The room as it is now. Raises BufferUnusable."""
        with self._lock:
            staged = self._staged
        with explained(self._store.uri):
            lanes = buffer_use(self._store)
            free = free_bytes(self._store)
        used = sum(lane.total for lane in lanes.values())
        with self._lock:
            self._running = max(1, sum(lane.running for lane in lanes.values()))
            self._fixed = used - sum(lane.spans for lane in lanes.values())
            since = self._staged - staged  # while the folder was read: it may have been missed, and counting it twice does no harm
            self._seen = Room(used + since, self._cap, free - since, self._reserve)
            self._at = time.monotonic()
            return self._seen

    @property
    def _reserve(self) -> int:
        """Every running lane may be staging now; but never so much that nobody could once all spans have left."""
        most = min(self._cap * 3 // 4, self._cap - self._fixed)
        return min(max(self._micro_batch, self._largest) * self._running, max(self._micro_batch, most))

    def glance(self, staged: int) -> Room:
        """The room as of a moment ago, less ``staged`` bytes that were written since (0 looks again when it is time)."""
        with self._lock:
            self._staged += staged
            self._largest = max(self._largest, int(OVERRUN * staged))
            room = self._seen
            if room is not None:
                room = self._seen = Room(room.used + staged, room.cap, room.free - staged, self._reserve)
            fresh = room is not None and time.monotonic() - self._at < self._store.spaced(LOOK_SECONDS) and not room.why_full
        return room if room is not None and fresh else self.look()


def lay_ballast(store: LaneStore, *, cap: int) -> None:
    """Keep some bytes of the disk for the moment when it is full; no error when there are none. A bucket is never full."""
    if not store.local:
        return
    path = store.file(BALLAST)
    with contextlib.suppress(OSError):
        if not path.exists() and free_bytes(store) > SPARE_BYTES:
            path.write_bytes(os.urandom(min(BALLAST_BYTES, cap // BALLAST_SHARE)))


def drop_ballast(store: LaneStore) -> bool:
    """Give them up, so that what is needed to free more can be written; whether there were any."""
    if not store.local:
        return False
    try:
        store.file(BALLAST).unlink()
    except OSError:
        return False
    return True

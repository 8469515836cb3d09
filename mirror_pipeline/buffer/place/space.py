"""Buffer space: whether another micro-batch fits under the cap and on the disk, and how many bytes must be freed if it does not."""

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

# Between two measurements of a local folder; bytes staged in between are added. A measurement walks all files of all lanes, so it
# comes rarer, up to the longest time, where even this many bytes a second from other lanes would not fill the buffer meanwhile.
SPACE_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 10.0
OTHERS_BYTES_PER_SECOND = 2_000_000_000
# A micro-batch may become larger than planned, because a range takes whole fetches. The largest one seen counts, times this factor.
OVERRUN = 1.25
# Kept free on the disk for the ledger and the tables' logs: freeing anything needs them.
SPARE_BYTES = 16 * 2**20
# A buffer that is short of space is emptied to this share, so that it does not fill up again at once.
EMPTIED_SHARE = 0.8
# From this share on old micro-batches are evicted, before staging has to wait.
NEAR_SHARE = 0.9
# File whose bytes are given up when the disk is full, so that the writes that free more can succeed.
RESERVED_FILE = "ballast"
RESERVED_FILE_BYTES = 4 * 2**20
# The reserved file takes at most this fraction (1/N) of the cap.
RESERVED_FILE_SHARE = 64


@dataclass(frozen=True, slots=True)
class BufferSpace:
    """What a lane may use: bytes the whole buffer takes, its cap, free bytes of its disk, the size of the next micro-batch."""

    used: int
    cap: int
    free: int
    reserve: int

    @property
    def limit(self) -> int:
        """Bytes the buffer may hold before the next micro-batch is staged."""
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
    def look_seconds(self) -> float:
        """How long this measurement may count."""
        left = min(self.limit - self.used, self.free - self.reserve - SPARE_BYTES)
        return min(LONGEST_LOOK_SECONDS, max(SPACE_LOOK_SECONDS, left / OTHERS_BYTES_PER_SECOND))

    @property
    def near(self) -> bool:
        """Whether it will be full soon."""
        return self.used > NEAR_SHARE * self.limit or NEAR_SHARE * self.free < self.reserve + SPARE_BYTES

    @property
    def excess(self) -> int:
        """Bytes that should be freed; 0 when there is enough space."""
        if not self.near:
            return 0
        return max(0, self.used - int(EMPTIED_SHARE * self.limit), self.disk_excess)

    @property
    def disk_excess(self) -> int:
        """Those of them that its disk lacks, whatever the cap."""
        return max(0, int((self.reserve + SPARE_BYTES) / EMPTIED_SHARE) - self.free) if self.near else 0


class SpaceWatch:
    """Measures the buffer for one lane; the read loop and maintenance share one.

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
        self._room: int | None = None  # what its disk has left without spans, once it is measured
        self._seen: BufferSpace | None = None
        self._at = 0.0
        self._lock = threading.Lock()

    def measure(self) -> BufferSpace:
        """The space as it is now, measured. Raises BufferUnusable."""
        with self._lock:
            staged = self._staged
        with explained(self._store.uri):
            lanes = buffer_use(self._store)
            free = free_bytes(self._store)
        used = sum(lane.total for lane in lanes.values())
        with self._lock:
            self._running = max(1, sum(lane.running for lane in lanes.values()))
            spans = sum(lane.spans for lane in lanes.values())
            self._fixed, self._room = used - spans, free + spans
            since = self._staged - staged  # staged during the scan: the scan may have missed it, and counting it twice does no harm
            self._seen = BufferSpace(used + since, self._cap, free - since, self._reserve)
            self._at = time.monotonic()
            return self._seen

    @property
    def _reserve(self) -> int:
        """Every running lane may be staging now; but one micro-batch must still fit into a buffer that holds no spans."""
        most = min(self._cap * 3 // 4, self._cap - self._fixed)
        if self._room is not None:  # a batch that was larger than planned must not make a small disk look full for ever
            most = min(most, self._room * 3 // 4 - SPARE_BYTES)
        return min(max(self._micro_batch, self._largest) * self._running, max(self._micro_batch, most))

    def cached(self, staged: int) -> BufferSpace:
        """The space as last measured, less ``staged`` bytes written since; 0 measures again when that is due."""
        with self._lock:
            self._staged += staged
            self._largest = max(self._largest, int(OVERRUN * staged))
            space = self._seen
            if space is not None:
                space = self._seen = BufferSpace(space.used + staged, space.cap, space.free - staged, self._reserve)
            fresh = space is not None and time.monotonic() - self._at < self._store.spaced(space.look_seconds) and not space.why_full
        return space if space is not None and fresh else self.measure()


def lay_reserved_file(store: LaneStore, *, cap: int) -> None:
    """Reserve some bytes for the moment the disk is full; failing to is no error. A bucket is never full."""
    if not store.local:
        return
    path = store.file(RESERVED_FILE)
    with contextlib.suppress(OSError):
        if not path.exists() and free_bytes(store) > SPARE_BYTES:
            path.write_bytes(os.urandom(min(RESERVED_FILE_BYTES, cap // RESERVED_FILE_SHARE)))


def drop_reserved_file(store: LaneStore) -> bool:
    """Give up the reserved bytes, so that the writes that free more can succeed. True when there were any."""
    if not store.local:
        return False
    try:
        store.file(RESERVED_FILE).unlink()
    except OSError:
        return False
    return True

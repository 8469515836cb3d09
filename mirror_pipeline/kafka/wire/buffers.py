"""Receive buffers that are reused only once no view of them is left."""

from __future__ import annotations

import math
from collections import deque
from threading import Lock

KEPT_BUFFERS = 2  # one in use, one to receive into
TRIED_BUFFERS = 64
"""Of many, those not tried for longest: if they are in use, so are most."""
# Buffer sizes are multiples of it, so that a later request of a slightly different size still fits.
STEP = 64 * 1024
CHUNK_BYTES = 4 * 2**20


class BufferPool:
    """Hands out writable views; a buffer returns by itself when the last view of it is gone.

    A bytearray refuses to change its size while a view of it exists; that refusal is the test, so a view that
    is still held by anyone (a slice, an Arrow buffer) is never overwritten by a later response. ``most`` are kept for use again, as
    far as there is ``room`` for their bytes; a small response gets one of at most ``pinned`` bytes.
    What it saves is the kernel's work for fresh memory, which is several times that of a copy. Any thread may ask.
    """

    def __init__(self, most: float = KEPT_BUFFERS, *, room: float = math.inf, pinned: int = 1 << 20) -> None:
        self._most, self._room, self._pinned = most, room, pinned
        self._bytes = 0
        self._kept: deque[bytearray] = deque()
        self._lock = Lock()

    def take(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes, content undefined."""
        with self._lock:
            return self._take(size)

    def _take(self, size: int) -> memoryview:
        needed, kept = -(-size // STEP) * STEP, self._kept
        for _ in range(min(TRIED_BUFFERS, len(kept))):
            buffer = kept[0]
            unused, fits = _unused(buffer), size <= len(buffer) <= max(4 * size, self._pinned)
            if unused and not fits and not self._has_room(needed):
                self._bytes -= len(kept.popleft())
                continue
            kept.rotate(-1)
            if unused and fits:
                return memoryview(buffer)[:size]
        buffer = bytearray(needed)
        if self._has_room(needed):
            kept.append(buffer)
            self._bytes += needed
        return memoryview(buffer)[:size]

    def _has_room(self, needed: int) -> bool:
        return len(self._kept) < self._most and self._bytes + needed <= self._room


class Arena:
    """Hands out consecutive writable views in chunks of 4 MiB; a chunk is reused once all its views are gone.

    For what is made piece by piece, held for a while and let go together. ``most`` chunks are kept. Any thread may ask.
    """

    def __init__(self, most: int) -> None:
        self._chunks = BufferPool(most)
        self._rest = memoryview(b"")
        self._lock = Lock()

    def take(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes, content undefined."""
        with self._lock:
            if size > len(self._rest):
                self._rest = self._chunks.take(max(size, CHUNK_BYTES))
            taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


def _unused(buffer: bytearray) -> bool:
    try:
        buffer.pop()  # shrinks in place; to grow first would move it
    except BufferError:
        return False
    buffer.append(0)
    return True

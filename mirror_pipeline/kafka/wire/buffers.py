"""Receive buffers that are reused only once no view of them is left."""

from __future__ import annotations

import math
from collections import deque
from threading import Lock

KEPT_BUFFERS = 2  # one in use, one to receive into
TRIED_BUFFERS = 4
"""Of many those that were handed out longest ago: if they are in use, so are most."""
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
        at, unfit = 0, False
        for _ in range(TRIED_BUFFERS):
            if at == len(self._kept):
                break
            buffer = self._kept[at]
            if not _unused(buffer):
                at += 1
                continue
            del self._kept[at]
            self._kept.append(buffer)
            if size <= len(buffer) <= max(4 * size, self._pinned):
                return memoryview(buffer)[:size]
            unfit = True
        buffer = bytearray(-(-size // STEP) * STEP)
        if unfit and not self._has_room(buffer):
            self._bytes -= len(self._kept.pop())
        if self._has_room(buffer):
            self._kept.append(buffer)
            self._bytes += len(buffer)
        return memoryview(buffer)[:size]

    def _has_room(self, buffer: bytearray) -> bool:
        return len(self._kept) < self._most and self._bytes + len(buffer) <= self._room


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
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True

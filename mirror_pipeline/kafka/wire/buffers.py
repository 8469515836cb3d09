"""Receive buffers that are reused only once no view of them is left."""

from __future__ import annotations

from threading import Lock

KEPT_BUFFERS = 2  # one in use, one to receive into
# Buffer sizes are multiples of it, so that a later request of a slightly different size still fits.
STEP = 64 * 1024
CHUNK_BYTES = 4 * 2**20


class BufferPool:
    """Hands out writable views; a buffer returns by itself when the last view of it is gone.

    A bytearray refuses to change its size while a view of it exists; that refusal is the test, so a view that
    is still held by anyone (a slice, an Arrow buffer) is never overwritten by a later response. ``most`` are kept for use again.
    What it saves is the kernel's work for fresh memory, which is several times that of a copy. Any thread may ask.
    """

    def __init__(self, most: int = KEPT_BUFFERS) -> None:
        self._most = most
        self._kept: list[bytearray] = []
        self._lock = Lock()

    def take(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes, content undefined."""
        with self._lock:
            return self._take(size)

    def _take(self, size: int) -> memoryview:
        free = [buffer for buffer in self._kept if _unused(buffer)]
        for buffer in free:
            if size <= len(buffer) <= max(4 * size, 1 << 20):
                return memoryview(buffer)[:size]
        buffer = bytearray(-(-size // STEP) * STEP)
        if len(self._kept) < self._most:
            self._kept.append(buffer)
        elif free:
            self._kept[next(i for i, kept in enumerate(self._kept) if kept is free[0])] = buffer
        return memoryview(buffer)[:size]


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

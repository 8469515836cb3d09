"""Receive buffers that are used again only when nobody looks at them any more."""

from __future__ import annotations

KEPT = 2  # one being worked on, one being received into


class BufferPool:
    """Hands out writable views; a buffer returns by itself when the last view of it is gone.

    A bytearray refuses to change its size while a view of it exists; that refusal is the test, so a view that
    is still held by anyone (a slice, an Arrow buffer) is never overwritten by a later response. ``most`` are kept for use again.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes, content undefined."""
        free = [buffer for buffer in self._kept if _unused(buffer)]
        for buffer in free:
            if size <= len(buffer) <= max(4 * size, 1 << 20):
                return memoryview(buffer)[:size]
        buffer = bytearray(size)
        if len(self._kept) < self._most:
            self._kept.append(buffer)
        elif free:
            self._kept[next(i for i, kept in enumerate(self._kept) if kept is free[0])] = buffer
        return memoryview(buffer)


def _unused(buffer: bytearray) -> bool:
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True

"""A frame of Kafka's protocol on its way: waited for, or put together from what has arrived so far."""

from __future__ import annotations

import struct

from mirror_pipeline.errors import WireError
from mirror_pipeline.kafka.wire.buffers import BufferPool
from mirror_pipeline.kafka.wire.transport import Transport

SIZE = struct.Struct(">i")


class Arriving:
    """First its size, then, in a buffer of ``pool``, its bytes; a size outside ``[least, most]`` is no broker's."""

    def __init__(self, pool: BufferPool, *, least: int, most: int) -> None:
        self._pool = pool
        self._least = least
        self._most = most
        self._view = memoryview(bytearray(SIZE.size))
        self._filled = 0
        self._sized = False

    def receive(self, transport: Transport, wait: float | None) -> memoryview | None:
        """The whole frame, or None while some of it is still to come.

        Args:
            transport: where it comes from.
            wait: seconds until its first byte must be there, then it is waited for to the end; None never waits.

        Raises:
            ConnectionLost: it does not come.
            WireError: this is not a Kafka broker's answer.
        """
        if not self._sized:
            if not self._fill(transport, wait):
                return None
            size = SIZE.unpack(self._view)[0]
            if not self._least <= size <= self._most:
                raise WireError(f"{transport.peer}: this is not a Kafka broker's answer", hint="check port and security.protocol")
            self._view, self._filled, self._sized = self._pool.take(size), 0, True
        return self._view if self._fill(transport, wait) else None

    def _fill(self, transport: Transport, wait: float | None) -> bool:
        rest = self._view[self._filled :]
        if wait is None:
            self._filled += transport.receive_ready(rest)
        else:
            transport.receive_into(rest, idle=None if self._sized else wait)
            self._filled = self._view.nbytes
        return self._filled == self._view.nbytes

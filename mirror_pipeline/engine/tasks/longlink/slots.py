"""The open connections to one broker, and which of them can take another request."""

from __future__ import annotations

import math
import selectors
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from mirror_pipeline.engine.tasks.longlink.segments import Attempt
from mirror_pipeline.kafka.client import Connection

# Requests in flight on one connection.
ASKED = 2


@dataclass(slots=True, eq=False)
class Slot:
    """A connection and the requests in flight on it, the oldest first.

    ``moved`` is when it last sent or received something, ``pace`` the seconds per byte of its last answer.
    """

    connection: Connection
    fileno: int
    asked: deque[Attempt] = field(default_factory=deque)
    moved: float = 0.0
    connected: bool = True
    pace: float = math.inf

    @property
    def slow(self) -> bool:
        """Whether the answer that is due is late."""
        return bool(self.asked) and self.asked[0].late


class Slots:
    """Slots by what they can take: ``idle`` ones have no request in flight, ``half`` busy ones have one.

    Args:
        wake: ends a wait for input when it becomes readable.
    """

    def __init__(self, wake: socket.socket) -> None:
        self.idle: dict[Slot, None] = {}
        self.half: dict[Slot, None] = {}
        self._slots: dict[int, Slot] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(wake, selectors.EVENT_READ)

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    @property
    def due(self) -> bool:
        """Whether an answer is due on any of them."""
        return len(self._slots) > len(self.idle)

    def ready(self, seconds: float) -> list[Slot]:
        """Wait until some have input, for ``seconds`` at most."""
        return [key.data for key, _ in self._selector.select(seconds) if key.data is not None]

    def add(self, connection: Connection) -> None:
        """Use a connection."""
        slot = Slot(connection, connection.fileno())
        self._slots[slot.fileno] = slot
        self._selector.register(slot.fileno, selectors.EVENT_READ, slot)
        self.idle[slot] = None

    def place(self, slot: Slot) -> None:
        """Sort a slot by its requests in flight."""
        self.idle.pop(slot, None)
        self.half.pop(slot, None)
        if len(slot.asked) < ASKED:
            (self.half if slot.asked else self.idle)[slot] = None

    def remove(self, slot: Slot) -> None:
        """Close a connection."""
        self.idle.pop(slot, None)
        self.half.pop(slot, None)
        del self._slots[slot.fileno]
        self._selector.unregister(slot.fileno)
        slot.connected = False
        slot.connection.close()

    def shrink(self, count: int) -> None:
        """The slowest beyond ``count`` get no more requests; those without any in flight are closed."""
        excess = len(self._slots) - count
        if excess <= 0:
            return
        for slot in sorted(self, key=lambda each: each.pace, reverse=True)[:excess]:
            self.half.pop(slot, None)
            if not slot.asked:
                self.remove(slot)

    def release(self) -> list[Connection]:
        """Use none any more: those without a request in flight are returned, the others closed."""
        self._selector.close()
        for slot in self:
            if slot.asked:
                slot.connection.close()
        return [slot.connection for slot in self if not slot.asked]

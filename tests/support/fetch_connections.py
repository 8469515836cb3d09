"""Connections for parallel fetch whose answers the test sets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from mirror_pipeline.engine.tasks.longlink.segments import Segment
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import TopicPartition
from tests.support.source_batches import batch

SOURCE = TopicPartition("t", 0)
EACH = 10
SIZE = len(batch(0, EACH))


class FakeConnection:
    """Stands in for a connection: a socket that becomes readable when an answer has arrived."""

    timeout = 30.0
    round_trip = 0.01
    ends_soon = False
    muted_until = throttle = 0.0
    peer = "a:1"

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.free = 0.0

    def fileno(self) -> int:
        return self.near.fileno()


class Line(FakeConnection):
    """``answer`` gets each requested offset and returns the seconds until its answer arrives, an error, or None for silence."""

    def __init__(self, answer: Callable[[Line, int], float | Exception | None]) -> None:
        super().__init__()
        self.answer = answer
        self.asked: deque[int] = deque()
        self.due: deque[float | Exception] = deque()
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self.near.close()

    def ask(self, offset: int) -> None:
        found = self.answer(self, offset)
        if isinstance(found, Exception):
            self.due.append(found)
            self.far.send(b"x")
        elif found is not None:
            self.asked.append(offset)
            self.due.append(0.0)
            now = time.monotonic()
            self.free = max(now, self.free) + found  # answers arrive one after the other
            threading.Timer(self.free - now, self._ring).start()

    def _ring(self) -> None:
        if not self.closed:
            with contextlib.suppress(BrokenPipeError):  # closed since
                self.far.send(b"x")

    def arrived(self) -> dict[TopicPartition, FetchedPartition] | None:
        try:
            self.near.recv(1)
        except BlockingIOError:
            return None
        found = self.due.popleft()
        if isinstance(found, Exception):
            raise found
        offset = self.asked.popleft()
        return {SOURCE: FetchedPartition(0, 10**6, 10**6, 0, [], memoryview(batch(offset, EACH)))}


def stretches(count: int, *, size: int = SIZE) -> list[Segment]:
    return [Segment(SOURCE, n * EACH, (n + 1) * EACH, size, 0) for n in range(count)]


def assert_read(wanted: list[Segment]) -> None:
    for stretch in wanted:
        assert stretch.error is None
        assert [answer.records.obj for answer in stretch.answers] == [batch(stretch.start, EACH)]

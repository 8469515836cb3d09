"""Reading over a long link: many connections, each with another stretch of offsets, taken over in order.

A connection carries at most its send buffer per round trip (brokers set 100 KiB by default), whatever the line could
do: 0.5 MB/s at 200 ms. So a partition's range is cut into stretches of offsets by an estimate of their size, many are
read at once, and the reader gets them one behind the other, as if they had come over one connection.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.model import OffsetRange, TopicPartition
from mirror_pipeline.wire.batch import headers
from mirror_pipeline.wire.connection import Connection
from mirror_pipeline.wire.fetch import FetchedPartition, receive_fetch, send_fetch

STRETCH_BYTES = 256 * 1024
STRETCH_BATCHES = 8
"""A stretch has at least so many bytes, and batches: those at its edges are read twice."""
UNKNOWN_BATCH_BYTES = 32 * 1024
SLACK_BATCHES = 2
"""Asked for on top of what is left of a stretch, so that its first and last batches come whole."""
AHEAD = 2
"""Requests on the way on one connection, and stretches read or being read for each connection."""
WAIT_MS = 500
EMPTY_ANSWERS = 3


Line = Connection | Callable[[], Connection]
"""A connection, or what opens it: opening takes round trips, too, and is done by all threads at once."""


@dataclass(slots=True, eq=False)
class Stretch:
    """Offsets ``[start, end)`` of one partition, on their way; ``answers`` begin at or before ``start``."""

    source: TopicPartition
    start: int
    end: int
    size: int
    slack: int
    answers: list[FetchedPartition] = field(default_factory=list)
    problem: Exception | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    next: int = 0
    empty: int = 0
    begun: bool = False

    @property
    def left(self) -> int:
        """Bytes to ask for next, by the estimate."""
        share = (self.end - self.next) / max(1, self.end - self.start)
        return int(self.size * share) + self.slack


def stretches(ranges: Iterable[OffsetRange]) -> list[Stretch]:
    """Cut ranges into stretches, in the order in which they are read: all partitions in turn."""
    cut = [list(_cut(planned)) for planned in ranges]
    return [row[turn] for turn in range(max(map(len, cut), default=0)) for row in cut if turn < len(row)]


def _cut(planned: OffsetRange) -> Iterator[Stretch]:
    per_offset = max(1.0, planned.bytes_per_offset)
    stop = min(planned.end, planned.start + max(1, round(planned.max_bytes / per_offset)))
    batch = planned.bytes_per_batch or UNKNOWN_BATCH_BYTES
    step = max(1, round(max(STRETCH_BYTES, STRETCH_BATCHES * batch) / per_offset))
    for start in range(planned.start, stop, step):
        end = min(start + step, stop)
        yield Stretch(planned.source, start, end, int((end - start) * per_offset), int(SLACK_BATCHES * batch), next=start)


class Gathering:
    """Reads the stretches of one broker's partitions over several connections, each in a thread of its own."""

    def __init__(self, waiting: Sequence[Stretch], lines: Sequence[Line], *, deadline: float, pause: Callable[[int], None]) -> None:
        self._waiting = deque(waiting)
        self._deadline = deadline
        self._pause = pause
        self._lock = threading.Lock()
        self._room = threading.Semaphore(AHEAD * max(1, len(lines)))
        self._over = threading.Event()
        self._reading = len(lines)
        self.open: list[Connection] = []
        self._threads = [threading.Thread(target=self._work, args=(line,), daemon=True) for line in lines]
        for thread in self._threads:
            thread.start()

    def taken(self) -> None:
        """The oldest stretch has been taken over: there is room for another."""
        self._room.release()

    def end(self) -> None:
        """Begin nothing more and wait for what is on the way."""
        self._over.set()
        for _ in self._threads:
            self._room.release()
        for thread in self._threads:
            thread.join()

    def _next(self, *, wait: bool) -> Stretch | None:
        """The next stretch to ask for; None when there is none, no time or, unless ``wait``, no room now.

        A connection with an answer due must not wait for room: its answer may be the one that makes it.
        """
        if not self._room.acquire(blocking=wait):
            return None
        with self._lock:
            if self._over.is_set() or time.monotonic() >= self._deadline or not self._waiting:
                for stretch in self._waiting:
                    stretch.ready.set()  # nobody begins it: whoever waits for it shall see that
                self._waiting.clear()
                self._room.release()
                return None
            stretch = self._waiting.popleft()
            stretch.begun = True
            return stretch

    def _work(self, line: Line) -> None:
        asked: deque[Stretch] = deque()
        try:
            connection = line if isinstance(line, Connection) else line()
        except Exception as problem:  # noqa: BLE001 - raised, or told, by the thread that waits for the stretch
            self._lost(problem, asked)
            return
        try:
            self._read(connection, asked)
            with self._lock:
                self._reading -= 1
                self.open.append(connection)
        except Exception as problem:  # noqa: BLE001 - as above
            connection.close()
            self._lost(problem, asked)

    def _lost(self, problem: Exception, asked: Iterable[Stretch]) -> None:
        """This connection reads no more; others go on, unless it was the last."""
        for stretch in asked:
            stretch.problem = problem
            stretch.ready.set()
        with self._lock:
            self._reading -= 1  # counted, not looked up: a thread that has just given up is still alive for a moment
            if self._reading:
                return
            for stretch in self._waiting:
                stretch.problem = problem
                stretch.ready.set()
            self._waiting.clear()

    def _read(self, connection: Connection, asked: deque[Stretch]) -> None:
        while True:
            while len(asked) < AHEAD and (stretch := self._next(wait=not asked)) is not None:
                _ask(connection, stretch)
                asked.append(stretch)
            if not asked:
                return
            self._receive(connection, asked)

    def _receive(self, connection: Connection, asked: deque[Stretch]) -> None:
        stretch = asked[0]
        answer = receive_fetch(connection).get(stretch.source)
        if answer is None:
            raise ConnectionLost(f"{connection.peer}: the answer leaves {stretch.source} out")
        asked.popleft()
        self._pause(len(answer.records))
        stretch.answers.append(answer)
        before = stretch.next
        for _, header in headers(answer.records):
            stretch.next = max(stretch.next, header.next_offset)
        stretch.empty = stretch.empty + 1 if stretch.next == before else 0
        if answer.error or stretch.next >= stretch.end or stretch.empty >= EMPTY_ANSWERS:
            stretch.ready.set()
        else:
            _ask(connection, stretch)
            asked.append(stretch)


def _ask(connection: Connection, stretch: Stretch) -> None:
    wants = {stretch.source: (stretch.next, stretch.left)}
    send_fetch(connection, wants, max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=stretch.left)


class Throttle:
    """Keeps the bytes of all threads together below a rate; no limit when the rate is None."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def pause(self, size: int) -> None:
        """Account for ``size`` bytes that have come, and wait as long as they should have taken."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)

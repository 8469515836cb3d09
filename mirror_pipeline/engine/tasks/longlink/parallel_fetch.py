"""Reads over a long link: many connections, each with its own segment of offsets, delivered in offset order.

Invariant: the reader gets a partition's segments without a gap and in order, however the connections finish.

    offsets      0 ........ 100 ........ 200 ........ 300
    segments     [    A    ) [    B    ) [    C    )
    connections   1: A       2: B, late  3: C, ready
                             4: B again
    reader       A, then B from 2 or 4 (whichever is first), then C

A connection carries at most its send buffer per round trip (brokers set 100 KiB by default), whatever the capacity of the link:
0.5 MB/s at 200 ms. So a partition's range is cut into segments by an estimate of their size, and many are read at once.

One thread serves all connections to a broker: with hundreds of threads, waiting for the interpreter costs more than the work.
Some connections are slow for seconds, after a loss or a bad guess of the sender's congestion control, and everything would wait for
their segments. A segment that takes much longer than usual is requested again over another connection. An overtaken
connection is kept, because a new one starts even more slowly; once it is silent it is replaced.

``admission.py`` decides which segment starts, by the memory available; ``connection_watch.py`` finds slow connections, ``repeats.py``
what to request again. A segment that brings more bytes than expected ends where it has arrived; the rest becomes new segments.
A broker that throttles answers at once, without records, and stops reading from that connection for a while (KIP-219). Until that
is over it gets no request over any connection.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from mirror_pipeline.engine.tasks.longlink.admission import Admission
from mirror_pipeline.engine.tasks.longlink.connection_count import Throughput
from mirror_pipeline.engine.tasks.longlink.connection_watch import CONNECTION_LOOK_SECONDS, WAIT_MS, ConnectionWatch
from mirror_pipeline.engine.tasks.longlink.dialer import Dialer
from mirror_pipeline.engine.tasks.longlink.repeats import Repeats
from mirror_pipeline.engine.tasks.longlink.segments import Attempt, Pace, Segment
from mirror_pipeline.engine.tasks.longlink.slots import Slot, Slots
from mirror_pipeline.errors import ConnectionLost, MirrorError
from mirror_pipeline.kafka.client import Connection
from mirror_pipeline.kafka.fetch import FetchedPartition, arrived_fetch, held_back, send_fetch
from mirror_pipeline.model import TopicPartition

# The longest wait while no answer is due.
WORKLESS_SECONDS = 1.0


class ParallelFetch:
    """Reads the segments of one broker's partitions over several connections, in a thread of its own.

    Args:
        kept: connections that are open already.
        open_connection: opens another; called in other threads.
        news: set whenever a segment becomes ready.
        pause: called with the number of bytes received; may wait.

    ``muted_until`` is when (monotonic seconds) a broker that throttles us may be asked again.
    """

    def __init__(
        self, kept: Sequence[Connection], open_connection: Callable[[], Connection], *, news: threading.Event, pause: Callable[[int], None]
    ) -> None:
        self.pause = pause
        self._news = news
        self.throughput = Throughput()
        self.admission = Admission()
        self._lock = threading.Lock()
        self._muted: deque[Attempt] = deque()
        self.muted_until = max((connection.muted_until for connection in kept), default=0.0)
        self.most = self._count = len(kept)
        self._over = self._ended = self._starved = self._pauses = False
        self._more: list[Slot] = []
        self._pace = Pace()
        self._repeats = Repeats(self.admission, self._pace, news)
        self._heard = time.monotonic()
        self._error: Exception = ConnectionLost("the read ended before the response arrived")
        self._dialer = Dialer(open_connection)
        self._slots = Slots(self._dialer.news)
        self._watch = ConnectionWatch(self._slots, self._repeats, self._pace, self._dialer, lost=self._lost)
        for connection in kept:
            self._slots.add(connection)
        self.open: list[Connection] = []
        self._thread = threading.Thread(target=self._work, name="parallel-fetch", daemon=True)

    def start(self, count: int) -> None:
        """Begin to read over ``count`` connections."""
        self.resize(count)
        self._thread.start()

    @property
    def count(self) -> int:
        """Connections in use, including those that are being opened."""
        return self._count

    @property
    def connected(self) -> int:
        """Connections that are open."""
        return len(self._slots)

    def resize(self, count: int) -> None:
        """Use ``count`` connections: open more now, or close the excess once they have no request in flight.

        If there turn out to be more segments than expected, the count grows by itself, up to ``most``.
        """
        more, self._count = count - self._count, count
        if more > 0:
            self.throughput.starts()
        self._dialer.want(more)

    def add(self, segments: Iterable[Segment], stops: Mapping[TopicPartition, int] | None = None) -> None:
        """Read these as well, after all others; ``stops`` says up to where each partition is needed now."""
        with self._lock:
            self.admission.add(segments, stops)
            if self._ended:
                self._give_up_waiting()
        self._dialer.wake()

    def passed(self, segment: Segment, *, rest: bool = False) -> None:
        """The reader has taken over this segment, with ``rest`` also what was cut off it: its memory is free."""
        (self.admission.passed_all if rest else self.admission.passed)(segment)
        if self._starved:
            self._dialer.wake()

    def prioritise(self, segment: Segment) -> None:
        """The reader waits for this segment: it starts whether or not there is memory for it, and while memory runs out for those
        after it, it is requested again sooner than others."""
        self.admission.wait_for(segment)
        if self._starved:
            self._dialer.wake()

    def quiet(self, now: float) -> float:
        """Seconds without input from the broker, while this thread was ready for it."""
        return 0.0 if self._pauses else max(0.0, now - max(self._heard, self.muted_until))

    @property
    def reads(self) -> bool:
        """False once it has ended or lost its last connection."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Stop reading. Connections that are being opened, or have an answer due, are dropped."""
        self._over = True
        self._dialer.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        self._watch.looked = time.monotonic()
        try:
            while not self._over and (len(self._slots) or self._dialer.busy):
                self._turn()
        except Exception as fault:  # noqa: BLE001 - raised by the thread that waits for a segment
            self._error = fault
        finally:
            self._finish()

    def _turn(self) -> None:
        """Send requests, wait a moment for answers, take them."""
        self._ask_all()
        due = self._slots.due
        more, self._more = self._more, []
        wait = 0.0 if more else CONNECTION_LOOK_SECONDS if due or self._muted else WORKLESS_SECONDS
        for slot in dict.fromkeys([*more, *self._slots.ready(wait)]):
            if self._over:
                return  # a rate limit can make this loop slow
            if slot.connected:
                self._serve(slot)
        for opened in self._dialer.opened():
            if isinstance(opened, Exception):
                self._error = opened
                self._count -= 1
            else:
                self._slots.add(opened)
        now = time.monotonic()
        self.throughput.stands(len(self._slots.idle) / max(1, len(self._slots)) if self._starved else 0.0, now)
        self._watch.look(now, due=due, busy=not self._starved)

    def _finish(self) -> None:
        """Give up every segment that is not ready: no thread reads it any more."""
        self._dialer.end()
        begun = [*(attempt for slot in self._slots for attempt in slot.asked), *self._muted]
        self.open += self._slots.release()
        for attempt in begun:
            self._repeats.give_up(attempt.segment, self._error)
        self._repeats.give_up_all(self._error)
        with self._lock:
            self._ended = True
            self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        for segment in self.admission.close():
            self._repeats.give_up(segment, self._error)

    def _ask_all(self) -> None:
        """Every connection gets one request before any gets a second."""
        self._starved = False
        self._slots.shrink(self._count)
        if time.monotonic() < self.muted_until:
            self._starved = True
            return
        for row in (self._slots.idle, self._slots.half):
            for slot in [*row]:
                if slot not in row:
                    continue  # it got a repeated segment, as the fastest of the row
                if slot.slow or slot.connection.ends_soon:
                    self._watch.rest(slot)
                    continue
                if self._muted:
                    attempt = self._muted.popleft()  # the broker no longer throttles
                    if not attempt.segment.ready:
                        self._ask(slot, attempt)
                    continue
                if (segment := self._repeats.next()) is not None:
                    slot = min((each for each in row if not each.slow), key=lambda each: each.pace)
                else:
                    segment = self.admission.next()
                if segment is None:
                    self._starved = True
                    return
                self._ask(slot, segment.attempt())

    def _ask(self, slot: Slot, attempt: Attempt) -> None:
        source, size = attempt.segment.source, self.admission.ask(attempt)
        now = time.monotonic()
        if not slot.asked:
            attempt.since = slot.moved = now
        attempt.asked = now
        slot.asked.append(attempt)
        try:
            send_fetch(slot.connection, {source: (attempt.next, size)}, max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=size)
        except MirrorError as error:
            self._lost(slot, error)
            return
        self._slots.place(slot)

    def _serve(self, slot: Slot) -> None:
        """Take the input of a connection."""
        slot.moved = self._heard = time.monotonic()
        try:
            if not slot.asked:
                raise ConnectionLost(f"{slot.connection.peer}: the broker closed the connection")
            answers = arrived_fetch(slot.connection)
            if answers is not None:
                self._answered(slot, answers)
                if slot.connected and slot.asked:
                    self._more.append(slot)  # TLS may hold another answer that the selector does not see; others first
        except MirrorError as error:
            self._lost(slot, error)

    def _answered(self, slot: Slot, answers: dict[TopicPartition, FetchedPartition]) -> None:
        attempt = slot.asked[0]
        segment = attempt.segment
        if held_back(slot.connection, answers, [segment.source]):
            self._throttled(slot)
            return
        answer = answers[segment.source]
        try:
            over = attempt.take(answer)
        except Exception as fault:  # noqa: BLE001 - halts that topic: the reader of the segment raises it
            segment.fault, over = fault, True
        size = len(answer.records)
        self._grow(self.admission.came(attempt, size))
        self._pauses = True
        self.pause(size)
        self._pauses = False
        now = self._heard = time.monotonic()
        self.throughput.brought(size, now, connections=self._count)
        slot.asked.popleft()
        if size:
            slot.pace = (now - attempt.since) / size
            self._pace.learn(slot.pace, busy=not self._starved)
        if slot.asked:
            slot.asked[0].since = now
        if not segment.ready and (over or attempt.overflows or segment.passed):
            self._grow(self.admission.complete(attempt, cut=not over))
            self._news.set()
        if segment.ready:
            self._slots.place(slot)  # possibly by another connection
        else:
            self._ask(slot, attempt)

    def _throttled(self, slot: Slot) -> None:
        """The broker answered without records, and reads no later request from this connection until its throttling is over."""
        until, attempt = slot.connection.muted_until, slot.asked.popleft()
        self.admission.throttled(attempt)
        self._muted.append(attempt)
        self.muted_until = max(self.muted_until, until)
        slot.moved = until
        for later in slot.asked:
            later.since = later.asked = until
        self._slots.place(slot)

    def _grow(self, more: int) -> None:
        """There are ``more`` segments than expected when connections were opened: open more."""
        if more and self._count < self.most:
            self.resize(min(self.most, self._count + more))

    def _lost(self, slot: Slot, error: Exception) -> None:
        """A connection is lost; the others continue. The next ``resize`` replaces it."""
        self._error = error
        self._count -= 1
        self._slots.remove(slot)
        for place, attempt in enumerate(slot.asked):
            self._repeats.release(attempt, error if place == 0 else None)  # later requests are not to blame

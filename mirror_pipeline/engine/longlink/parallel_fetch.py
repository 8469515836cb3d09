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

``admission.py`` decides which segment starts, by the memory available. A segment that brings more bytes than expected ends where it
has arrived; the rest becomes new segments. A broker that throttles answers at once, without records, and stops reading from that
connection for a while (KIP-219). Until then it gets no request over any connection.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from mirror_pipeline.engine.longlink.admission import Admission
from mirror_pipeline.engine.longlink.connection_count import Throughput
from mirror_pipeline.engine.longlink.dialer import Dialer
from mirror_pipeline.engine.longlink.pace import Pace, Slot
from mirror_pipeline.engine.longlink.segments import Attempt, Segment
from mirror_pipeline.errors import ConnectionLost, MirrorError
from mirror_pipeline.kafka.connection import Connection
from mirror_pipeline.kafka.fetch import FetchedPartition, arrived_fetch, held_back, send_fetch
from mirror_pipeline.model import TopicPartition

ASKED = 2
"""Requests on the way on one connection."""
WAIT_MS = 500
LOOK_SECONDS, IDLE_SECONDS = 0.1, 1.0
"""Between two looks for connections that crawl, and while nothing is due."""
SILENT_SECONDS = 2.0
"""Of a connection that was beaten, until it is replaced."""
LOSSES = 3
"""So many connections lost over its answer are the end of a segment."""


class ParallelFetch:
    """Reads the segments of one broker's partitions over several connections, in a thread of its own.

    Args:
        kept: connections that are open already.
        open_line: opens another; called in other threads.
        news: is set whenever a segment has become ready.
        pause: told how many bytes have come; may wait.

    ``muted_until`` is when (monotonic seconds) a broker that throttles us may be asked again.
    """

    def __init__(
        self, kept: Sequence[Connection], open_connection: Callable[[], Connection], *, news: threading.Event, pause: Callable[[int], None]
    ) -> None:
        self.pause = pause
        self._news = news
        self.throughput = Throughput()
        self.admission = Admission()
        self.most = len(kept)
        self._lock = threading.Lock()
        self._again: deque[Segment] = deque()
        self._muted: deque[Attempt] = deque()
        self.muted_until = max((connection.muted_until for connection in kept), default=0.0)
        self._count = len(kept)
        self._over = self._ended = self._starved = False
        self._slots: dict[int, Slot] = {}
        self._idle: dict[Slot, None] = {}
        self._half: dict[Slot, None] = {}
        self._more: list[Slot] = []
        self._pace = Pace()
        self._looked = 0.0
        self._heard = time.monotonic()
        self._pauses = False
        self._error: Exception = ConnectionLost("reading ended before the answer came")
        self._selector = selectors.DefaultSelector()
        self._dialer = Dialer(open_connection)
        self._selector.register(self._dialer.news, selectors.EVENT_READ)
        for connection in kept:
            self._add(connection)
        self.open: list[Connection] = []
        self._thread = threading.Thread(target=self._work, name="parallel-fetch", daemon=True)

    def start(self, count: int) -> None:
        """Begin to read, over so many connections."""
        self.resize(count)
        self._thread.start()

    @property
    def count(self) -> int:
        """Connections it uses, or will once they are open."""
        return self._count

    def resize(self, count: int) -> None:
        """Use so many connections: more are opened now, those that are too many are closed when they have nothing to do.

        Where segments turn out to be more than was thought, ``most`` connections at most are used.
        """
        more, self._count = count - self._count, count
        if more > 0:
            self.throughput.starts()
        self._dialer.want(more)

    def add(self, segments: Iterable[Segment], stops: Mapping[TopicPartition, int] | None = None) -> None:
        """Read these as well, behind all others; ``stops`` says up to where each partition is needed now."""
        with self._lock:
            self.admission.add(segments, stops)
            if self._ended:
                self._give_up_waiting()
        self._dialer.wake()

    def passed(self, segment: Segment, *, rest: bool = False) -> None:
        """This segment, with ``rest`` what was cut off it as well, has been taken over: there is room for another."""
        (self.admission.passed_all if rest else self.admission.passed)(segment)
        if self._starved:
            self._dialer.wake()

    def prioritise(self, segment: Segment) -> None:
        """The reader waits for this segment: it is begun whether there is room or not, and while room runs out behind it, it is asked
        for again sooner than others are."""
        self.admission.wait_for(segment)
        if self._starved:
            self._dialer.wake()

    def quiet(self, now: float) -> float:
        """Seconds for which nothing has come from the broker, although this thread would have taken it."""
        return 0.0 if self._pauses else max(0.0, now - max(self._heard, self.muted_until))

    @property
    def reads(self) -> bool:
        """False once it was ended or has lost its last connection."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Read nothing more. Connections that are still being opened, or have an answer due, are given up."""
        self._over = True
        self._dialer.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        self._looked = time.monotonic()
        try:
            while not self._over and (self._slots or self._dialer.busy):
                self._turn()
        except Exception as fault:  # noqa: BLE001 - raised by the thread that waits for a segment
            self._error = fault
        finally:
            self._finish()

    def _turn(self) -> None:
        """Ask, wait a moment for answers, take them."""
        self._ask_all()
        due = len(self._slots) > len(self._idle)
        more, self._more = self._more, []
        wait = 0.0 if more else LOOK_SECONDS if due or self._muted else IDLE_SECONDS
        ready = dict.fromkeys([*more, *(key.data for key, _ in self._selector.select(wait) if key.data is not None)])
        for slot in ready:
            if self._over:
                return  # a limit may make this take long
            if slot.connected:
                self._serve(slot)
        for opened in self._dialer.opened():
            if isinstance(opened, Exception):
                self._error = opened
                self._count -= 1
            else:
                self._add(opened)
        now = time.monotonic()
        self.throughput.stands(len(self._idle) / max(1, len(self._slots)) if self._starved else 0.0, now)
        if now - self._looked >= LOOK_SECONDS:
            stood = max(0.0, now - self._looked - 2 * LOOK_SECONDS) if due else 0.0
            self._looked = now
            for slot in list(self._slots.values()):
                self._look(slot, now, stood)
            self._repeat_urgent(now)

    def _finish(self) -> None:
        """Whoever waits for a segment that nobody reads any more shall see that."""
        self._dialer.end()
        self._selector.close()
        for slot in self._slots.values():
            if slot.asked:
                slot.connection.close()
            else:
                self.open.append(slot.connection)
        begun = (*(attempt for slot in self._slots.values() for attempt in slot.asked), *self._muted)
        for segment in (*(attempt.segment for attempt in begun), *self._again):
            self._give_up(segment, self._error)
        with self._lock:
            self._ended = True
            self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        for segment in self.admission.close():
            self._give_up(segment, self._error)

    def _add(self, connection: Connection) -> None:
        slot = Slot(connection, connection.fileno())
        self._slots[slot.fileno] = slot
        self._selector.register(slot.fileno, selectors.EVENT_READ, slot)
        self._idle[slot] = None

    def _ask_all(self) -> None:
        """Every connection gets something to do before one gets more."""
        self._starved = False
        self._shrink()
        if time.monotonic() < self.muted_until:
            self._starved = True
            return
        for row in (self._idle, self._half):
            for slot in [*row]:
                if slot not in row:
                    continue  # a late segment went to the fastest of them
                if slot.slow or slot.connection.ends_soon:
                    self._rest(slot)
                    continue
                if self._muted:
                    self._ask_once_more(slot, self._muted.popleft())
                    continue
                if (segment := self._late()) is not None:
                    slot = min((each for each in row if not each.slow), key=lambda each: each.pace)
                else:
                    segment = self.admission.next()
                if segment is None:
                    self._starved = True
                    return
                self._ask(slot, segment.attempt())

    def _late(self) -> Segment | None:
        self._again = deque(segment for segment in self._again if not (segment.ready or segment.passed))
        for segment in self._again:
            if self.admission.may_repeat(segment):
                self._again.remove(segment)
                return segment
        return None

    def _shrink(self) -> None:
        """The slowest of those that are too many get nothing more to do; then they are closed."""
        excess = len(self._slots) - self._count
        if excess <= 0:
            return
        for slot in sorted(self._slots.values(), key=lambda each: each.pace, reverse=True)[:excess]:
            self._half.pop(slot, None)
            if not slot.asked:
                self._remove(slot)

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
        self._place(slot)

    def _ask_once_more(self, slot: Slot, attempt: Attempt) -> None:
        """The time for which the broker was to be left alone is over."""
        if not attempt.segment.ready:
            self._ask(slot, attempt)

    def _place(self, slot: Slot) -> None:
        self._idle.pop(slot, None)
        self._half.pop(slot, None)
        if len(slot.asked) < ASKED:
            (self._half if slot.asked else self._idle)[slot] = None

    def _serve(self, slot: Slot) -> None:
        """Take what has come over a connection."""
        slot.moved = self._heard = time.monotonic()
        try:
            if not slot.asked:
                raise ConnectionLost(f"{slot.connection.peer}: the broker closed the connection")
            answers = arrived_fetch(slot.connection)
            if answers is not None:
                self._answered(slot, answers)
                if slot.connected and slot.asked:
                    self._more.append(slot)  # TLS may hold the next, of which the selector knows nothing; but others come first
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
        except Exception as fault:  # noqa: BLE001 - that topic's trouble; whoever reads the segment says so
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
            self._complete(attempt, cut=not over)
        if segment.ready:
            self._place(slot)  # perhaps another connection was faster
        else:
            self._ask(slot, attempt)

    def _throttled(self, slot: Slot) -> None:
        """The broker has answered without records, and does not read what was asked behind that before its time is over."""
        until, attempt = slot.connection.muted_until, slot.asked.popleft()
        self.admission.throttled(attempt)
        self._muted.append(attempt)
        self.muted_until = max(self.muted_until, until)
        slot.moved = until
        for behind in slot.asked:
            behind.since = behind.asked = until
        self._place(slot)

    def _complete(self, attempt: Attempt, *, cut: bool) -> None:
        self._grow(self.admission.complete(attempt, cut=cut))
        self._news.set()

    def _grow(self, more: int) -> None:
        """There are so many more segments than was thought when connections were opened."""
        if more and self._count < self.most:
            self.resize(min(self.most, self._count + more))

    def _look(self, slot: Slot, now: float, stood: float) -> None:
        """Is an answer late, or has the connection fallen silent? Seconds in which this thread stood still do not count."""
        if not slot.asked:
            return
        slot.asked[0].since += stood
        slot.moved += stood
        for attempt in slot.asked:
            attempt.asked += stood
        if now - slot.moved > slot.connection.timeout + WAIT_MS / 1000:
            self._lost(slot, ConnectionLost(f"{slot.connection.peer}: timed out while receiving"))
            return
        attempt = slot.asked[0]
        if attempt.late and attempt.segment.ready:
            self._overtaken(slot, now)
        elif not attempt.late and self._pace.is_late(attempt, now, busy=not self._starved):
            self._half.pop(slot, None)
            self._ask_elsewhere(attempt)

    def _overtaken(self, slot: Slot, now: float) -> None:
        """Another connection was faster: what was asked for behind that must not wait as well."""
        if now - slot.moved > SILENT_SECONDS:
            self._replace(slot)
            return
        for behind in slot.asked:
            if not behind.late:
                self._ask_elsewhere(behind)

    def _ask_elsewhere(self, attempt: Attempt) -> None:
        attempt.late = True
        if not attempt.segment.ready and all(other.late for other in attempt.segment.attempts):
            self._again.append(attempt.segment)

    def _repeat_urgent(self, now: float) -> None:
        """On a line slower than its reader everything is waited for: asking twice is worth it only where room runs out."""
        urgent = self.admission.urgent
        if urgent is None or urgent in self._again or self.admission.held <= self.admission.room // 2:
            return
        if not self._pace.keeps_waiting(urgent, now):
            return
        for attempt in urgent.attempts:
            attempt.late = True
        self._again.append(urgent)

    def _rest(self, slot: Slot) -> None:
        """Ask it nothing more for now. Where its session ends soon, a new connection is opened beside the work, not in front of it."""
        self._half.pop(slot, None)
        if not slot.asked:
            self._replace(slot)

    def _replace(self, slot: Slot) -> None:
        self._remove(slot)
        for attempt in slot.asked:
            self._release(attempt, None)
        self._dialer.want(1)

    def _lost(self, slot: Slot, error: Exception) -> None:
        """This connection reads no more; others go on, unless it was the last. The next ``resize`` makes up for it."""
        self._error = error
        self._count -= 1
        self._remove(slot)
        for place, attempt in enumerate(slot.asked):
            self._release(attempt, error if place == 0 else None)  # what was asked for behind it is not to blame

    def _remove(self, slot: Slot) -> None:
        self._idle.pop(slot, None)
        self._half.pop(slot, None)
        del self._slots[slot.fileno]
        self._selector.unregister(slot.fileno)
        slot.connected = False
        slot.connection.close()

    def _release(self, attempt: Attempt, error: Exception | None) -> None:
        """An attempt that will not come to its end: another goes on, or is made."""
        segment = attempt.segment
        self.admission.lost(attempt)
        if attempt in segment.attempts:
            segment.attempts.remove(attempt)
        if segment.ready or segment.attempts:
            return
        segment.losses += error is not None
        if error is not None and segment.losses >= LOSSES:
            self._give_up(segment, error)
        else:
            self._again.append(segment)

    def _give_up(self, segment: Segment, error: Exception) -> None:
        if not segment.ready:
            for attempt in segment.attempts:
                self.admission.lost(attempt)
            segment.error = error
            segment.ready = True
            self._news.set()

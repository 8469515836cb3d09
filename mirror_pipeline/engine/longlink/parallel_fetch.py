"""Reading over a long link: many connections, each with another stretch of offsets, taken over in order.

A connection carries at most its send buffer per round trip (brokers set 100 KiB by default), whatever the line could
do: 0.5 MB/s at 200 ms. So a partition's range is cut into stretches of offsets by an estimate of their size, many are
read at once, and the reader gets them one behind the other, as if they had come over one connection.

One thread serves all connections to a broker: hundreds of threads would spend more on waiting for the interpreter than on
what arrives. Some of many connections crawl for seconds, after a loss or a bad guess of the sender's congestion control, and
everything would wait for their stretches: what takes much longer than usual is asked for again over another
connection. One that was beaten is kept, as a new one would begin more slowly still; once it is silent it is replaced.

What is begun is decided in ``admission.py``, by the memory there is. A stretch that brings more than was thought ends where it
has come to; what lies behind it becomes stretches of their own. A broker that throttles answers at once, without records, and
reads no more from that connection for a while (KIP-219): it is asked for nothing more until then, over whatever connection.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from mirror_pipeline.engine.longlink.admission import Admission
from mirror_pipeline.engine.longlink.connection_count import Flow
from mirror_pipeline.engine.longlink.dialer import Dialling
from mirror_pipeline.engine.longlink.pace import Line, Pace
from mirror_pipeline.engine.longlink.segments import Attempt, Stretch
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
"""So many connections lost over its answer are the end of a stretch."""


class Gathering:
    """Reads the stretches of one broker's partitions over several connections, in a thread of its own.

    Args:
        kept: connections that are open already.
        open_line: opens another; called in other threads.
        news: is set whenever a stretch has become ready.
        pause: told how many bytes have come; may wait.

    ``muted_until`` is when (monotonic seconds) a broker that throttles us may be asked again.
    """

    def __init__(
        self, kept: Sequence[Connection], open_line: Callable[[], Connection], *, news: threading.Event, pause: Callable[[int], None]
    ) -> None:
        self.pause = pause
        self._news = news
        self.flow = Flow()
        self.admission = Admission()
        self.most = len(kept)
        self._lock = threading.Lock()
        self._again: deque[Stretch] = deque()
        self._muted: deque[Attempt] = deque()
        self.muted_until = max((connection.muted_until for connection in kept), default=0.0)
        self._count = len(kept)
        self._over = self._ended = self._starved = False
        self._lines: dict[int, Line] = {}
        self._idle: dict[Line, None] = {}
        self._half: dict[Line, None] = {}
        self._more: list[Line] = []
        self._pace = Pace()
        self._looked = 0.0
        self._heard = time.monotonic()
        self._pauses = False
        self._problem: Exception = ConnectionLost("reading ended before the answer came")
        self._selector = selectors.DefaultSelector()
        self._dialling = Dialling(open_line)
        self._selector.register(self._dialling.news, selectors.EVENT_READ)
        for connection in kept:
            self._add(connection)
        self.open: list[Connection] = []
        self._thread = threading.Thread(target=self._work, name="wide", daemon=True)

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

        Where stretches turn out to be more than was thought, ``most`` connections at most are used.
        """
        more, self._count = count - self._count, count
        if more > 0:
            self.flow.starts()
        self._dialling.want(more)

    def add(self, stretches: Iterable[Stretch], stops: Mapping[TopicPartition, int] | None = None) -> None:
        """Read these as well, behind all others; ``stops`` says up to where each partition is needed now."""
        with self._lock:
            self.admission.add(stretches, stops)
            if self._ended:
                self._give_up_waiting()
        self._dialling.wake()

    def passed(self, stretch: Stretch, *, rest: bool = False) -> None:
        """This stretch, with ``rest`` what was cut off it as well, has been taken over: there is room for another."""
        (self.admission.passed_all if rest else self.admission.passed)(stretch)
        if self._starved:
            self._dialling.wake()

    def hurry(self, stretch: Stretch) -> None:
        """The reader waits for this stretch: it is begun whether there is room or not, and while room runs out behind it, it is asked
        for again sooner than others are."""
        self.admission.wait_for(stretch)
        if self._starved:
            self._dialling.wake()

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
        self._dialling.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        self._looked = time.monotonic()
        try:
            while not self._over and (self._lines or self._dialling.busy):
                self._turn()
        except Exception as fault:  # noqa: BLE001 - raised by the thread that waits for a stretch
            self._problem = fault
        finally:
            self._finish()

    def _turn(self) -> None:
        """Ask, wait a moment for answers, take them."""
        self._ask_all()
        due = len(self._lines) > len(self._idle)
        more, self._more = self._more, []
        wait = 0.0 if more else LOOK_SECONDS if due or self._muted else IDLE_SECONDS
        ready = dict.fromkeys([*more, *(key.data for key, _ in self._selector.select(wait) if key.data is not None)])
        for line in ready:
            if self._over:
                return  # a limit may make this take long
            if line.connected:
                self._serve(line)
        for opened in self._dialling.opened():
            if isinstance(opened, Exception):
                self._problem = opened
                self._count -= 1
            else:
                self._add(opened)
        now = time.monotonic()
        self.flow.stands(len(self._idle) / max(1, len(self._lines)) if self._starved else 0.0, now)
        if now - self._looked >= LOOK_SECONDS:
            stood = max(0.0, now - self._looked - 2 * LOOK_SECONDS) if due else 0.0
            self._looked = now
            for line in list(self._lines.values()):
                self._look(line, now, stood)
            self._hurry(now)

    def _finish(self) -> None:
        """Whoever waits for a stretch that nobody reads any more shall see that."""
        self._dialling.end()
        self._selector.close()
        for line in self._lines.values():
            if line.asked:
                line.connection.close()
            else:
                self.open.append(line.connection)
        begun = (*(attempt for line in self._lines.values() for attempt in line.asked), *self._muted)
        for stretch in (*(attempt.stretch for attempt in begun), *self._again):
            self._give_up(stretch, self._problem)
        with self._lock:
            self._ended = True
            self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        for stretch in self.admission.close():
            self._give_up(stretch, self._problem)

    def _add(self, connection: Connection) -> None:
        line = Line(connection, connection.fileno())
        self._lines[line.fileno] = line
        self._selector.register(line.fileno, selectors.EVENT_READ, line)
        self._idle[line] = None

    def _ask_all(self) -> None:
        """Every connection gets something to do before one gets more."""
        self._starved = False
        self._shrink()
        if time.monotonic() < self.muted_until:
            self._starved = True
            return
        for row in (self._idle, self._half):
            for line in [*row]:
                if line not in row:
                    continue  # a late stretch went to the fastest of them
                if line.crawls or line.connection.ends_soon:
                    self._rest(line)
                    continue
                if self._muted:
                    self._ask_once_more(line, self._muted.popleft())
                    continue
                if (stretch := self._late()) is not None:
                    line = min((each for each in row if not each.crawls), key=lambda each: each.pace)
                else:
                    stretch = self.admission.next()
                if stretch is None:
                    self._starved = True
                    return
                self._ask(line, stretch.attempt())

    def _late(self) -> Stretch | None:
        self._again = deque(stretch for stretch in self._again if not (stretch.ready or stretch.passed))
        for stretch in self._again:
            if self.admission.may_repeat(stretch):
                self._again.remove(stretch)
                return stretch
        return None

    def _shrink(self) -> None:
        """The slowest of those that are too many get nothing more to do; then they are closed."""
        excess = len(self._lines) - self._count
        if excess <= 0:
            return
        for line in sorted(self._lines.values(), key=lambda each: each.pace, reverse=True)[:excess]:
            self._half.pop(line, None)
            if not line.asked:
                self._remove(line)

    def _ask(self, line: Line, attempt: Attempt) -> None:
        source, size = attempt.stretch.source, self.admission.ask(attempt)
        now = time.monotonic()
        if not line.asked:
            attempt.since = line.moved = now
        attempt.asked = now
        line.asked.append(attempt)
        try:
            send_fetch(line.connection, {source: (attempt.next, size)}, max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=size)
        except MirrorError as problem:
            self._lost(line, problem)
            return
        self._place(line)

    def _ask_once_more(self, line: Line, attempt: Attempt) -> None:
        """The time for which the broker was to be left alone is over."""
        if not attempt.stretch.ready:
            self._ask(line, attempt)

    def _place(self, line: Line) -> None:
        self._idle.pop(line, None)
        self._half.pop(line, None)
        if len(line.asked) < ASKED:
            (self._half if line.asked else self._idle)[line] = None

    def _serve(self, line: Line) -> None:
        """Take what has come over a connection."""
        line.moved = self._heard = time.monotonic()
        try:
            if not line.asked:
                raise ConnectionLost(f"{line.connection.peer}: the broker closed the connection")
            answers = arrived_fetch(line.connection)
            if answers is not None:
                self._answered(line, answers)
                if line.connected and line.asked:
                    self._more.append(line)  # TLS may hold the next, of which the selector knows nothing; but others come first
        except MirrorError as problem:
            self._lost(line, problem)

    def _answered(self, line: Line, answers: dict[TopicPartition, FetchedPartition]) -> None:
        attempt = line.asked[0]
        stretch = attempt.stretch
        if held_back(line.connection, answers, [stretch.source]):
            self._throttled(line)
            return
        answer = answers[stretch.source]
        try:
            over = attempt.take(answer)
        except Exception as fault:  # noqa: BLE001 - that topic's trouble; whoever reads the stretch says so
            stretch.fault, over = fault, True
        size = len(answer.records)
        self._grow(self.admission.came(attempt, size))
        self._pauses = True
        self.pause(size)
        self._pauses = False
        now = self._heard = time.monotonic()
        self.flow.brought(size, now, lines=self._count)
        line.asked.popleft()
        if size:
            line.pace = (now - attempt.since) / size
            self._pace.learn(line.pace, busy=not self._starved)
        if line.asked:
            line.asked[0].since = now
        if not stretch.ready and (over or attempt.overflows or stretch.passed):
            self._complete(attempt, cut=not over)
        if stretch.ready:
            self._place(line)  # perhaps another connection was faster
        else:
            self._ask(line, attempt)

    def _throttled(self, line: Line) -> None:
        """The broker has answered without records, and does not read what was asked behind that before its time is over."""
        until, attempt = line.connection.muted_until, line.asked.popleft()
        self.admission.throttled(attempt)
        self._muted.append(attempt)
        self.muted_until = max(self.muted_until, until)
        line.moved = until
        for behind in line.asked:
            behind.since = behind.asked = until
        self._place(line)

    def _complete(self, attempt: Attempt, *, cut: bool) -> None:
        self._grow(self.admission.complete(attempt, cut=cut))
        self._news.set()

    def _grow(self, more: int) -> None:
        """There are so many more stretches than was thought when connections were opened."""
        if more and self._count < self.most:
            self.resize(min(self.most, self._count + more))

    def _look(self, line: Line, now: float, stood: float) -> None:
        """Is an answer late, or has the connection fallen silent? Seconds in which this thread stood still do not count."""
        if not line.asked:
            return
        line.asked[0].since += stood
        line.moved += stood
        for attempt in line.asked:
            attempt.asked += stood
        if now - line.moved > line.connection.timeout + WAIT_MS / 1000:
            self._lost(line, ConnectionLost(f"{line.connection.peer}: timed out while receiving"))
            return
        attempt = line.asked[0]
        if attempt.late and attempt.stretch.ready:
            self._beaten(line, now)
        elif not attempt.late and self._pace.is_late(attempt, now, busy=not self._starved):
            self._half.pop(line, None)
            self._ask_elsewhere(attempt)

    def _beaten(self, line: Line, now: float) -> None:
        """Another connection was faster: what was asked for behind that must not wait as well."""
        if now - line.moved > SILENT_SECONDS:
            self._replace(line)
            return
        for behind in line.asked:
            if not behind.late:
                self._ask_elsewhere(behind)

    def _ask_elsewhere(self, attempt: Attempt) -> None:
        attempt.late = True
        if not attempt.stretch.ready and all(other.late for other in attempt.stretch.attempts):
            self._again.append(attempt.stretch)

    def _hurry(self, now: float) -> None:
        """On a line slower than its reader everything is waited for: asking twice is worth it only where room runs out."""
        urgent = self.admission.urgent
        if urgent is None or urgent in self._again or self.admission.held <= self.admission.room // 2:
            return
        if not self._pace.keeps_waiting(urgent, now):
            return
        for attempt in urgent.attempts:
            attempt.late = True
        self._again.append(urgent)

    def _rest(self, line: Line) -> None:
        """Ask it nothing more for now. Where its session ends soon, a new connection is opened beside the work, not in front of it."""
        self._half.pop(line, None)
        if not line.asked:
            self._replace(line)

    def _replace(self, line: Line) -> None:
        self._remove(line)
        for attempt in line.asked:
            self._release(attempt, None)
        self._dialling.want(1)

    def _lost(self, line: Line, problem: Exception) -> None:
        """This connection reads no more; others go on, unless it was the last. The next ``resize`` makes up for it."""
        self._problem = problem
        self._count -= 1
        self._remove(line)
        for place, attempt in enumerate(line.asked):
            self._release(attempt, problem if place == 0 else None)  # what was asked for behind it is not to blame

    def _remove(self, line: Line) -> None:
        self._idle.pop(line, None)
        self._half.pop(line, None)
        del self._lines[line.fileno]
        self._selector.unregister(line.fileno)
        line.connected = False
        line.connection.close()

    def _release(self, attempt: Attempt, problem: Exception | None) -> None:
        """An attempt that will not come to its end: another goes on, or is made."""
        stretch = attempt.stretch
        self.admission.lost(attempt)
        if attempt in stretch.attempts:
            stretch.attempts.remove(attempt)
        if stretch.ready or stretch.attempts:
            return
        stretch.losses += problem is not None
        if problem is not None and stretch.losses >= LOSSES:
            self._give_up(stretch, problem)
        else:
            self._again.append(stretch)

    def _give_up(self, stretch: Stretch, problem: Exception) -> None:
        if not stretch.ready:
            for attempt in stretch.attempts:
                self.admission.lost(attempt)
            stretch.problem = problem
            stretch.ready = True
            self._news.set()

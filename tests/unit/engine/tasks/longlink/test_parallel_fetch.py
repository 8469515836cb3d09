"""One thread reads over many connections: what is slow, lost or beaten, and what is held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mirror_pipeline.engine.tasks.longlink import admission, connection_watch, parallel_fetch, segments
from mirror_pipeline.engine.tasks.longlink.dialer import MOST_OPENING, Dialer
from mirror_pipeline.engine.tasks.longlink.parallel_fetch import ParallelFetch
from mirror_pipeline.engine.tasks.longlink.repeats import CONNECTION_LOSSES
from mirror_pipeline.engine.tasks.longlink.segments import LEAST_LATE_SECONDS, MOST_ATTEMPTS, Segment
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import TopicPartition
from tests.support.fetch_connections import EACH, SIZE, SOURCE, Line, assert_read, stretches

pytestmark = pytest.mark.timeout(60)




@pytest.fixture(autouse=True)
def wire(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(line: Line, wants: dict[TopicPartition, tuple[int, int]], **_: Any) -> None:
        line.ask(wants[SOURCE][0])

    monkeypatch.setattr(parallel_fetch, "send_fetch", send)
    monkeypatch.setattr(parallel_fetch, "arrived_fetch", Line.arrived)




class Reader:
    """A gathering of lines that all answer as ``answer`` says."""

    def __init__(self, answer: Callable[[Line, int], float | Exception | None], count: int) -> None:
        self.answer = answer
        self.lines: list[Line] = []
        self.news = threading.Event()
        self.gathering = ParallelFetch([], self.open, news=self.news, pause=lambda size: None)
        self.count = count

    def open(self) -> Any:
        self.lines.append(Line(self.answer))
        return self.lines[-1]

    def read(self, wanted: list[Segment], seconds: float = 20.0) -> None:
        self.gathering.add(wanted)
        self.gathering.start(self.count)
        self.wait(wanted, seconds)

    def wait(self, wanted: list[Segment], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        for stretch in wanted:
            while not stretch.ready:
                assert time.monotonic() < deadline, f"{stretch.start} is not ready"
                self.news.clear()
                if not stretch.ready:
                    self.news.wait(0.2)


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(answer: Callable[[Line, int], float | Exception | None], count: int) -> Reader:
        made.append(Reader(answer, count))
        return made[-1]

    yield make
    for each in made:
        each.gathering.end()




def test_every_stretch_gets_its_own_answer(reader: Callable[..., Reader]) -> None:
    wanted = stretches(50)
    made = reader(lambda line, offset: 0.001 * (offset % 7), 5)
    made.read(wanted)
    assert_read(wanted)
    made.gathering.end()
    assert len(made.gathering.open) == len(made.lines) == 5, "all connections can be used again"


def within_a_while(holds: Callable[[], bool]) -> None:
    """Come back once it holds; what is asserted next fails if it never does."""
    deadline = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_connection_that_was_beaten_and_is_silent_is_replaced(reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_watch, "SILENT_CONNECTION_SECONDS", 0.5)
    wanted = stretches(60)
    made = reader(lambda line, offset: None if line is made.lines[0] else 0.01, 4)
    made.read(wanted)
    assert_read(wanted)
    within_a_while(lambda: len(made.lines) >= 5)
    assert made.lines[0].closed
    assert len(made.lines) == 5, "another was opened in its place"


def test_a_connection_that_is_only_slow_is_overtaken_and_kept(reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one would begin more slowly still."""
    monkeypatch.setattr(connection_watch, "SILENT_CONNECTION_SECONDS", 60.0)
    answers: list[float] = []

    def delay(line: Line, offset: int) -> float:
        if line is not made.lines[0]:
            return 0.01
        answers.append(time.monotonic() + 5.0)
        return 5.0

    wanted = stretches(60)
    made = reader(delay, 4)
    made.read(wanted)
    assert_read(wanted)
    assert time.monotonic() < answers[0], "all has arrived without the slow connection's first answer"
    time.sleep(answers[-1] - time.monotonic() + 0.5)
    more = stretches(120)[60:]
    made.gathering.add(more)
    made.wait(more)
    assert len(made.lines) == 4
    assert not made.lines[0].closed


@pytest.fixture
def never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LATE", 1e9)
    monkeypatch.setattr(segments, "LATE_WHILE_IDLE", 1e9)


class Waiting:
    """A reader in order over ``count`` lines, of which those of ``silent`` never answer once they are asked for offset 100."""

    def __init__(self, reader: Callable[..., Reader], count: int, silent: int) -> None:
        self.asked, self.silent = 0, list[Line]()
        self.most = silent
        self.made = reader(self._answer, count)
        self.wanted = stretches(40)
        self.made.gathering.add(self.wanted)
        self.made.gathering.start(count)

    def _answer(self, line: Line, offset: int) -> float | None:
        self.asked += offset == 100
        if offset == 100 and len(self.silent) < self.most:
            self.silent.append(line)
        return None if line in self.silent else 0.01

    def read(self, count: int) -> None:
        for stretch in self.wanted[:count]:
            self.made.gathering.prioritise(stretch)
            self.made.wait([stretch])
            self.made.gathering.passed(stretch)


@pytest.mark.usefixtures("never_late")
def test_what_the_reader_waits_for_while_room_runs_out_is_asked_for_again(
    reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "ROOM_BYTES", 8 * SIZE)
    monkeypatch.setattr(connection_watch, "SILENT_CONNECTION_SECONDS", 0.2)
    waiting = Waiting(reader, 3, silent=1)
    waiting.read(40)
    assert_read(waiting.wanted)
    within_a_while(lambda: waiting.silent[0].closed)
    assert waiting.silent[0].closed, "it was beaten"


@pytest.mark.usefixtures("never_late")
@pytest.mark.parametrize(("room", "asked"), [(8, MOST_ATTEMPTS), (10**6, 1)])
def test_it_is_asked_for_a_few_times_at_most_and_once_while_there_is_room(
    reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch, room: int, asked: int
) -> None:
    monkeypatch.setattr(admission, "ROOM_BYTES", room * SIZE)
    waiting = Waiting(reader, 9, silent=9)
    waiting.read(10)
    waiting.made.gathering.prioritise(waiting.wanted[10])
    deadline = time.monotonic() + 20
    while waiting.asked < asked and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(4 * LEAST_LATE_SECONDS)
    assert waiting.asked == asked


def test_what_a_lost_connection_was_asked_for_is_read_over_another(reader: Callable[..., Reader]) -> None:
    wanted = stretches(40)
    made = reader(lambda line, offset: ConnectionLost("gone") if line is made.lines[0] else 0.005, 3)
    made.read(wanted)
    assert_read(wanted)
    assert made.lines[0].closed


def test_a_stretch_that_loses_every_connection_is_given_up_and_no_other(reader: Callable[..., Reader]) -> None:
    """Connections come one after the other, so that the second stretch is asked for behind the first every time."""
    wanted = stretches(2)
    made = reader(lambda line, offset: ConnectionLost("gone") if offset == 0 else 0.005, CONNECTION_LOSSES + 1)
    opened, one_by_one = made.open, threading.Lock()

    def open_next() -> Any:
        with one_by_one:
            while not all(line.closed for line in made.lines):
                time.sleep(0.001)
            return opened()

    made.gathering._dialer._open_connection = open_next
    made.read(wanted)
    assert isinstance(wanted[0].error, ConnectionLost)
    assert_read(wanted[1:])
    assert len(made.lines) == CONNECTION_LOSSES + 1


def test_when_no_connection_is_left_nobody_waits_for_ever(reader: Callable[..., Reader]) -> None:
    wanted = stretches(20)
    made = reader(lambda line, offset: ConnectionLost("gone"), 3)
    made.read(wanted)
    assert all(isinstance(stretch.error, ConnectionLost) for stretch in wanted)


def test_what_is_added_after_the_last_connection_was_lost_is_given_up(reader: Callable[..., Reader]) -> None:
    made = reader(lambda line, offset: ConnectionLost("gone"), 2)
    made.read(stretches(5))
    made.gathering._thread.join(10)
    assert not made.gathering.reads
    more = stretches(3)
    made.gathering.add(more)
    assert [str(stretch.error) for stretch in more] == ["gone"] * 3


def test_the_next_micro_batch_opens_connections_for_those_that_were_lost(reader: Callable[..., Reader]) -> None:
    wanted = stretches(40)
    made = reader(lambda line, offset: ConnectionLost("gone") if line is made.lines[0] else 0.005, 3)
    made.read(wanted)
    assert (made.gathering.count, len(made.lines)) == (2, 3)
    made.gathering.resize(3)
    within_a_while(lambda: len(made.lines) >= 4)
    assert (made.gathering.count, len(made.lines)) == (3, 4)


def test_a_limit_makes_no_connection_silent(reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    """While the thread waits for the limit's sake, answers lie in the sockets: nobody has fallen silent."""
    monkeypatch.setattr(Line, "timeout", 0.4)
    monkeypatch.setattr(connection_watch, "WAIT_MS", 0)
    wanted = stretches(32)
    made = reader(lambda line, offset: 0.001, 8)
    made.gathering.pause = lambda size: time.sleep(0.08)
    made.read(wanted)
    assert_read(wanted)
    assert (made.gathering.count, len(made.lines)) == (8, 8)


def test_when_no_connection_can_be_opened_nobody_waits_for_ever() -> None:
    def refused() -> Any:
        raise ConnectionLost("refused")

    for _ in range(20):
        wanted = stretches(3)
        gathering = ParallelFetch([], refused, news=threading.Event(), pause=lambda size: None)
        gathering.add(wanted)
        gathering.start(4)
        gathering._thread.join(10)
        assert [str(stretch.error) for stretch in wanted] == ["refused"] * 3


def test_a_fault_of_ours_is_handed_over_with_what_was_being_taken(reader: Callable[..., Reader]) -> None:
    """Not taken for a lost connection, and the stretch it happened in is not forgotten."""
    wanted = stretches(10)
    made = reader(lambda line, offset: 0.001, 1)
    made.gathering.pause = lambda size: 1 // 0  # type: ignore[assignment]
    made.read(wanted)
    assert all(isinstance(stretch.error, ZeroDivisionError) for stretch in wanted)


def test_an_answer_that_cannot_be_walked_is_left_to_the_reader(reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = memoryview(b"\x00" * 8 + b"\xff" * 60)
    answer = FetchedPartition(0, 9, 9, 0, [], garbage)
    monkeypatch.setattr(parallel_fetch, "arrived_fetch", lambda line: Line.arrived(line) and {SOURCE: answer})
    wanted = stretches(3)
    reader(lambda line, offset: 0.001, 1).read(wanted)
    assert [[answer.records for answer in stretch.answers] for stretch in wanted] == [[garbage]] * 3


def test_no_more_is_held_than_there_is_room_for(reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ROOM_BYTES", 6 * SIZE)
    wanted = stretches(30)
    made = reader(lambda line, offset: 0.001, 4)
    made.read(wanted[:2])
    made.gathering.add(wanted[2:])
    time.sleep(0.3)
    ready = sum(stretch.ready for stretch in wanted)
    assert 3 <= ready <= 6
    assert [stretch.ready for stretch in wanted] == [True] * ready + [False] * (30 - ready), "the first ones"
    for stretch in wanted[:3]:
        made.gathering.passed(stretch)
    within_a_while(lambda: sum(stretch.ready for stretch in wanted) >= ready + 3)
    time.sleep(0.1)
    assert sum(stretch.ready for stretch in wanted) == ready + 3


def test_what_the_reader_waits_for_is_read_without_room(reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ROOM_BYTES", 6 * SIZE)
    wanted = stretches(30)
    made = reader(lambda line, offset: 0.001, 4)
    made.read(wanted[:2])
    made.gathering.add(wanted[2:])
    made.gathering.prioritise(wanted[25])
    made.wait([wanted[25]])
    assert sum(stretch.ready for stretch in wanted) <= 7


def test_more_connections_are_measured_once_all_of_them_have_brought_something(reader: Callable[..., Reader]) -> None:
    made = reader(lambda line, offset: 0.001, 3)
    made.read(stretches(10))
    assert made.gathering.throughput.began is not None
    made.gathering.resize(20)
    assert made.gathering.throughput.began is None
    wanted = stretches(60)[10:]
    made.gathering.add(wanted[:15])
    made.wait(wanted[:15])
    assert made.gathering.throughput.began is None
    made.gathering.add(wanted[15:])
    made.wait(wanted[15:])
    assert made.gathering.throughput.began is not None
    made.gathering.resize(5)
    assert made.gathering.throughput.began is not None, "fewer start nothing"


def test_connections_that_are_too_many_are_closed(reader: Callable[..., Reader]) -> None:
    made = reader(lambda line, offset: 0.001, 6)
    made.read(stretches(30))
    made.gathering.resize(2)
    more = [Segment(SOURCE, n * EACH, (n + 1) * EACH, SIZE, 0) for n in range(30, 40)]
    made.gathering.add(more)
    made.wait(more)
    within_a_while(lambda: sum(not line.closed for line in made.lines) <= 2)
    assert sum(not line.closed for line in made.lines) == 2


def test_the_slowest_are_closed_while_others_have_work(reader: Callable[..., Reader]) -> None:
    """A line that is full never lets all of its connections rest."""
    made = reader(lambda line, offset: 0.2 if line in made.lines[:3] else 0.01, 6)
    wanted = stretches(2000)
    made.read(wanted[:60])
    made.gathering.add(wanted[60:])
    made.gathering.resize(3)
    within_a_while(lambda: sum(line.closed for line in made.lines) >= 3)
    assert not wanted[-1].ready
    assert [line.closed for line in made.lines] == [True] * 3 + [False] * 3


def test_the_end_waits_for_nothing(reader: Callable[..., Reader]) -> None:
    made = reader(lambda line, offset: None, 2)
    made.gathering.add(stretches(5))
    made.gathering.start(2)
    began = time.monotonic()
    made.gathering.end()
    assert time.monotonic() - began < 5
    assert made.gathering.open == [] or not any(line.asked for line in made.lines)


def test_a_broker_is_not_asked_for_more_connections_at_once_than_it_lets_wait() -> None:
    opening = most = done = 0
    lock = threading.Lock()

    def slow() -> Any:
        nonlocal opening, most, done
        with lock:
            opening += 1
            most = max(most, opening)
        time.sleep(0.02)
        with lock:
            opening -= 1
            done += 1
        raise ConnectionLost("only counted")

    dialling = Dialer(slow)
    dialling.want(3 * MOST_OPENING)
    found: list[Any] = []
    deadline = time.monotonic() + 20
    while len(found) < 3 * MOST_OPENING and time.monotonic() < deadline:
        found += dialling.opened()
        time.sleep(0.01)
    dialling.end()
    assert len(found) == done == 3 * MOST_OPENING
    assert 2 <= most <= MOST_OPENING
    assert not dialling.busy


def test_a_connection_that_is_open_after_the_end_is_closed() -> None:
    may_go, closed = threading.Event(), threading.Event()

    class Opened:
        def close(self) -> None:
            closed.set()

    def slow() -> Any:
        may_go.wait(10)
        return Opened()

    dialling = Dialer(slow)
    dialling.want(1)
    dialling.end()
    assert not closed.is_set()
    may_go.set()
    assert closed.wait(10)

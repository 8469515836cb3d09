"""Reading over many connections holds no more than there is room for, whatever the records are like, and always comes to its end."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.engine.tasks.longlink import admission, parallel_fetch, segments
from mirror_pipeline.engine.tasks.longlink.read_ahead import ReadAhead
from mirror_pipeline.engine.tasks.longlink.segments import Segment
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import OpenRecord, headers, seal, tail_of
from mirror_pipeline.model import OffsetRange, TopicPartition
from tests.support.fetch_connections import FakeConnection

pytestmark = pytest.mark.timeout(120)
ROOM, STRETCH, BATCH_MAX = 400_000, 4_000, 8_000


class Frame(bytearray):
    """An answer's memory; counted while anybody looks at it."""

    __slots__ = ("__weakref__",)


class Broker:
    """Holds partitions; each batch is (first offset, bytes). Counts what it has sent and is still in memory."""

    def __init__(self, logs: list[list[tuple[int, int]]], *, slow: float = 0.0, seed: int = 0) -> None:
        """``logs``: for each partition its batches: records in it, bytes of each."""
        self.batches: list[list[tuple[int, bytes]]] = []
        self.ends: list[int] = []
        for log in logs:
            at, row = 0, []
            for records, each in log:
                row.append((at, seal([OpenRecord(at + n, 0, tail_of(None, bytes(each))) for n in range(records)], codec=0, base_offset=at)))
                at += records
            self.batches.append(row)
            self.ends.append(at)
        self.largest = max(len(data) for row in self.batches for _, data in row)
        self.largest_request = self.alive = self.peak = self.questions = 0
        self.lines: list[Line] = []
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._slow = slow

    def answer(self, source: TopicPartition, offset: int, max_bytes: int) -> FetchedPartition:
        self.questions += 1
        self.largest_request = max(self.largest_request, max_bytes)
        row, found = self.batches[source.partition], b""
        ends = [start for start, _ in row[1:]] + [self.ends[source.partition]]
        for (_, data), end in zip(row, ends, strict=True):
            if end > offset:
                if found and len(found) >= max_bytes:
                    break
                found += data
        first = next((len(data) for (_, data), end in zip(row, ends, strict=True) if end > offset), 0)
        frame = Frame(found[: max(first, max_bytes)])
        with self._lock:
            self.alive += len(frame)
            self.peak = max(self.peak, self.alive)
        weakref.finalize(frame, self._gone, len(frame))
        end = self.ends[source.partition]
        return FetchedPartition(0, end, end, 0, [], memoryview(frame))

    def _gone(self, size: int) -> None:
        with self._lock:
            self.alive -= size

    def pause(self) -> float:
        return self._slow * self._random.random() if self._random.random() < 0.2 else 0.0

    def opened(self) -> Line:
        self.lines.append(Line(self))
        return self.lines[-1]


class Line(FakeConnection):
    """A connection to the broker: one answer after the other."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.asked: deque[tuple[TopicPartition, int, int]] = deque()

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def ask(self, source: TopicPartition, offset: int, max_bytes: int) -> None:
        self.asked.append((source, offset, max_bytes))
        now, pause = time.monotonic(), self.broker.pause()
        self.free = max(self.free, now) + pause
        if self.free > now:
            threading.Timer(self.free - now, self._ring).start()
        else:
            self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # a timer may ring after the connection was closed
            self.far.send(b"x")

    def arrived(self) -> dict[TopicPartition, FetchedPartition] | None:
        try:
            self.near.recv(1)
        except BlockingIOError:
            return None
        source, offset, max_bytes = self.asked.popleft()
        return {source: self.broker.answer(source, offset, max_bytes)}


class Client:
    """Stands in for the wire client: one broker leads everything, or every other partition another."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = brokers

    def leader(self, source: TopicPartition) -> int:
        return source.partition % len(self.brokers)

    def take(self, leader: int, lane: int) -> None:
        return None

    def opener(self, leader: int, replies: object) -> Callable[[], Line]:
        return self.brokers[leader].opened

    def mute(self, leader: int, until: float) -> None:
        pass

    def keep(self, leader: int, lane: int, connection: Any) -> None:
        connection.close()


@pytest.fixture(autouse=True, scope="module")
def wire() -> Any:
    def send(line: Line, wants: dict[TopicPartition, tuple[int, int]], *, max_bytes: int, **_: Any) -> None:
        ((source, (offset, most)),) = wants.items()
        line.ask(source, offset, min(most, max_bytes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_fetch, "send_fetch", send)
        patch.setattr(parallel_fetch, "arrived_fetch", Line.arrived)
        patch.setattr(admission, "ROOM_BYTES", ROOM)
        patch.setattr("mirror_pipeline.engine.tasks.longlink.read_ahead.ROOM_BYTES", ROOM)
        patch.setattr(admission, "UNKNOWN_BATCH_MAX", BATCH_MAX)
        patch.setattr(segments, "SEGMENT_BYTES", STRETCH)
        patch.setattr(segments, "UNKNOWN_BATCH_BYTES", STRETCH // 12)
        yield


class Copy:
    """A lane's reading of a broker's partitions, micro-batch by micro-batch."""

    def __init__(self, brokers: list[Broker], *, budget: int, lines: int, wait: float = 0.0) -> None:
        self.brokers, self.budget, self.lines, self.wait = brokers, budget, lines, wait
        self.reading = ReadAhead(Client(brokers), 0.2)  # type: ignore[arg-type]
        self.ends = brokers[0].ends
        self.next = dict.fromkeys(range(len(self.ends)), 0)
        self.each = {part: (1024.0, 0.0) for part in self.next}
        self.micro_batches = self.readings = 0

    def ranges(self) -> list[OffsetRange]:
        live = [part for part, at in self.next.items() if at < self.ends[part]]
        share = max(1, self.budget // max(1, len(live)))
        return [OffsetRange("t", part, self.next[part], self.ends[part], share, "id", False, *self.each[part]) for part in live]

    def run(self) -> None:
        deadline = time.monotonic() + 60
        while ranges := self.ranges():
            assert time.monotonic() < deadline, "it does not come to an end"
            if not self.reading.continues(ranges):
                self.reading.end()
                self.reading = ReadAhead(Client(self.brokers), 0.2)  # type: ignore[arg-type]
                self.readings += 1
            before = dict(self.next)
            self.micro_batch(ranges)
            assert self.next != before, "a micro-batch brings something"
            self.micro_batches += 1
        self.reading.end()

    def micro_batch(self, ranges: list[OffsetRange]) -> None:
        read, batches = dict.fromkeys(self.next, 0), dict.fromkeys(self.next, 0)
        begun = dict(self.next)
        self.reading.share(ranges, count=self.lines, ahead=True, pause=lambda size: None)
        deadline = time.monotonic() + 30
        while (stretch := self.reading.next(deadline)) is not None:
            part = stretch.source.partition
            self.take(stretch, read, batches)
            self.reading.taken(stretch)
            if read[part] >= self.budget // len(ranges):
                self.reading.enough(stretch.source, self.next[part])
            if self.wait:
                time.sleep(self.wait)
        assert time.monotonic() < deadline, "what is needed comes"
        for part, size in read.items():
            if self.next[part] > begun[part]:
                self.each[part] = (size / (self.next[part] - begun[part]), size / batches[part])

    def take(self, stretch: Segment, read: dict[int, int], batches: dict[int, int]) -> None:
        part = stretch.source.partition
        assert stretch.error is None
        assert stretch.start <= self.next[part], "one behind the other"
        largest = max(broker.largest for broker in self.brokers)
        assert sum(len(answer.records) for answer in stretch.answers) <= 4 * max(STRETCH, 8 * largest), "no stretch is large, nor a span"
        for answer in stretch.answers:
            for _, header in headers(answer.records):
                if header.next_offset > self.next[part]:
                    assert header.base_offset <= self.next[part], "nothing is left out"
                    self.next[part] = header.next_offset
                    read[part] += header.size
                    batches[part] += 1
        stretch.answers = []


LOGS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.just(1), st.integers(1, 30_000)), min_size=1, max_size=60),  # single large records
        st.lists(st.tuples(st.integers(1, 40), st.integers(1, 200)), min_size=1, max_size=80),
        st.tuples(st.integers(1, 30), st.integers(1, 30)).map(lambda n: [(20, 10)] * n[0] + [(1, 20_000)] * n[1] + [(20, 10)] * n[0]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(LOGS, st.integers(5_000, 300_000), st.integers(1, 12), st.integers(0, 99))
def test_any_sizes_come_in_order_and_fit_into_the_room(logs: list[list[tuple[int, int]]], budget: int, lines: int, seed: int) -> None:
    broker = Broker(logs, slow=0.01, seed=seed)
    copy = Copy([broker], budget=budget, lines=lines)
    copy.run()
    assert copy.next == dict(enumerate(broker.ends)), "every offset was read"
    request = max(broker.largest, broker.largest_request)
    assert broker.peak <= ROOM + (lines + 1) * request


def test_large_records_of_which_nothing_is_known_fit_into_the_room() -> None:
    """A thousand times what is guessed for a record: they were read into memory as a whole."""
    broker = Broker([[(1, 20_000)] * 300] * 3, slow=0.005)
    copy = Copy([broker], budget=100_000, lines=8, wait=0.001)
    copy.run()
    assert copy.next == dict(enumerate(broker.ends))
    assert broker.peak <= ROOM + 8 * broker.largest
    assert broker.largest_request <= 14 * broker.largest, "no stretch is large"


def test_small_records_of_which_nothing_is_known_are_not_read_again_and_again() -> None:
    """Each was asked for with ten times its bytes: the estimate was learnt from finished micro-batches only."""
    broker = Broker([[(20, 30)] * 400] * 2)
    size = sum(len(data) for row in broker.batches for _, data in row)
    copy = Copy([broker], budget=10**6, lines=4)
    copy.run()
    assert copy.next == dict(enumerate(broker.ends))
    assert broker.questions * STRETCH < 3 * size


def test_a_slow_broker_is_waited_for_without_what_others_send_piling_up() -> None:
    logs = [[(1, 5_000)] * 200] * 2
    slow, fast = Broker(logs, slow=0.2), Broker(logs)
    slow.pause = lambda: 0.03  # type: ignore[method-assign]
    copy = Copy([slow, fast], budget=10**6, lines=4)
    copy.run()
    assert copy.next == {0: 200, 1: 200}
    assert slow.peak + fast.peak <= ROOM + 8 * max(fast.largest_request, fast.largest)


def test_a_few_stretches_probe_partitions_of_which_nothing_is_known() -> None:
    broker = Broker([[(1, 20_000)] * 40] * 30)
    held = threading.Event()
    at_once: list[int] = []

    def pause() -> float:
        if not held.is_set():
            at_once.append(sum(len(line.asked) for line in broker.lines))
            return 0.3
        return 0.0

    broker.pause = pause  # type: ignore[method-assign]
    copy = Copy([broker], budget=10**6, lines=40)
    copy.reading.share(copy.ranges(), count=40, ahead=True, pause=lambda size: None)
    assert copy.reading.next(time.monotonic() + 20) is not None
    held.set()
    assert max(at_once[: admission.FIRST_PROBES]) <= admission.FIRST_PROBES
    copy.reading.end()


def test_connections_are_opened_once_it_shows_how_much_there_is_to_read() -> None:
    broker = Broker([[(20, 900)] * 60])
    copy = Copy([broker], budget=10**7, lines=12)
    copy.run()
    assert copy.next == dict(enumerate(broker.ends))
    assert 6 <= len(broker.lines) <= 12, "the last ones may come too late"

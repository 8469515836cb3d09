"""What is read ahead goes on into the next micro-batch, if it is what that needs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.engine.tasks.longlink import read_ahead as module
from mirror_pipeline.engine.tasks.longlink.admission import LEAST_ROOM_BYTES, ROOM_BYTES, room_of
from mirror_pipeline.engine.tasks.longlink.connection_count import MOST_IDLE, Throughput
from mirror_pipeline.engine.tasks.longlink.read_ahead import ReadAhead
from mirror_pipeline.engine.tasks.longlink.segments import SEGMENT_BYTES, Estimate, Segment
from mirror_pipeline.model import OffsetRange, TopicPartition

PER_OFFSET = SEGMENT_BYTES / 10
END = 5000


class Client:
    """Stands in for the wire client: partition n is led by broker n modulo 2."""

    def __init__(self) -> None:
        self.moved: set[int] = set()
        self.kept: list[Any] = []

    def leader(self, source: TopicPartition) -> int:
        return source.partition % 2 + 10 * (source.partition in self.moved)

    def take(self, leader: int, lane: int) -> None:
        return None

    def opener(self, leader: int, replies: object) -> None:
        return None

    def mute(self, leader: int, until: float) -> None:
        pass

    def keep(self, leader: int, lane: int, connection: Any) -> None:
        self.kept.append(connection)


class ParallelFetch:
    """Stands in for the reading thread: reads in the order of adding, as far as there is room."""

    room = 3 * SEGMENT_BYTES

    def __init__(self, kept: Any, opener: Any, *, news: Any, pause: Any) -> None:
        self.queue: list[Segment] = []
        self.urgent: Segment | None = None
        self.held, self.reads, self.count, self.most, self.throughput = 0, True, 0, 0, Throughput()
        self.admission, self.muted_until = SimpleNamespace(room=0), 0.0
        self.open: list[Any] = ["connection"]

    def add(self, stretches: Iterable[Segment], stops: Mapping[TopicPartition, int]) -> None:
        self.queue += stretches
        self.queue.sort(key=lambda stretch: stretch.start >= stops[stretch.source])
        self.go_on()

    def start(self, count: int) -> None:
        self.count = count

    resize = start

    def passed(self, stretch: Segment, *, rest: bool) -> None:
        stretch.passed = True
        self.held -= stretch.held
        stretch.held = 0
        if rest and stretch.rest is not None:
            self.passed(stretch.rest, rest=True)
        self.go_on()

    def prioritise(self, stretch: Segment) -> None:
        self.urgent = stretch
        self.go_on()

    def go_on(self) -> None:
        for stretch in list(self.queue):
            if stretch.passed:
                self.queue.remove(stretch)
            elif stretch is self.urgent or not self.held or self.held + stretch.size <= self.room:
                self.queue.remove(stretch)
                self.read(stretch)

    def read(self, stretch: Segment) -> None:
        """Every third one turns out to be too much, and is cut in the middle."""
        if stretch.start // 10 % 3 == 2 and stretch.end - stretch.start > 1:
            middle = (stretch.start + stretch.end) // 2
            self.queue.insert(0, stretch.cut(middle, Estimate(PER_OFFSET, 1)))
        stretch.held = stretch.size
        self.held += stretch.held
        stretch.ready = True

    def quiet(self, now: float) -> float:
        return 0.0

    def end(self) -> None:
        self.reads = False


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> ReadAhead:
    monkeypatch.setattr(module, "ParallelFetch", ParallelFetch)
    return ReadAhead(Client(), 0.2)  # type: ignore[arg-type]


def planned(partition: int, start: int, stretches: int, *, end: int = END) -> OffsetRange:
    return OffsetRange("t", partition, start, end, int(stretches * SEGMENT_BYTES), "id", bytes_per_offset=PER_OFFSET, bytes_per_batch=1.0)


def take(reading: ReadAhead, ranges: list[OffsetRange], *, ahead: bool = True) -> dict[int, int]:
    """Take a whole share; how far each partition came."""
    reached = {r.partition: r.start for r in ranges}
    reading.share(ranges, count=4, ahead=ahead, pause=lambda size: None)
    while (stretch := reading.next(0.0)) is not None:
        assert stretch.start <= reached[stretch.source.partition], "one behind the other"
        reached[stretch.source.partition] = max(stretch.end, reached[stretch.source.partition])
        reading.taken(stretch)
    return reached


def test_the_next_share_goes_on_where_the_last_one_ended(reading: ReadAhead) -> None:
    first = take(reading, [planned(0, 0, 4), planned(1, 0, 4)])
    assert first == {0: 40, 1: 40}
    ranges = [planned(0, 40, 4), planned(1, 40, 4)]
    assert reading.unfinished
    assert reading.continues(ranges)
    assert take(reading, ranges) == {0: 80, 1: 80}


def test_a_batch_over_the_edge_is_no_gap(reading: ReadAhead) -> None:
    """The last batch of a share reaches into the first stretch of the next, or over all of it."""
    take(reading, [planned(0, 0, 4)])
    for start in (43, 50, 57):
        assert reading.continues([planned(0, start, 4)])
    assert take(reading, [planned(0, 57, 4)])[0] >= 90


@pytest.mark.parametrize(
    "ranges",
    [
        [planned(0, 30, 4), planned(1, 40, 4)],
        [planned(0, 40, 4)],
        [planned(0, 40, 4), planned(1, 40, 4), planned(2, 0, 4)],
    ],
    ids=["read again", "a partition is left out", "a partition is new"],
)
def test_what_does_not_fit_does_not_go_on(reading: ReadAhead, ranges: list[OffsetRange]) -> None:
    take(reading, [planned(0, 0, 4), planned(1, 0, 4)])
    assert not reading.continues(ranges)


def test_a_leader_that_moved_or_a_reader_that_ended_does_not_go_on(reading: ReadAhead) -> None:
    take(reading, [planned(0, 0, 4)])
    assert reading.continues([planned(0, 40, 4)])
    reading._client.moved.add(0)  # type: ignore[attr-defined]
    assert not reading.continues([planned(0, 40, 4)])
    reading._client.moved.clear()  # type: ignore[attr-defined]
    reading._fetches[0].end()
    assert not reading.continues([planned(0, 40, 4)])


def test_without_ahead_nothing_is_read_behind_the_share(reading: ReadAhead) -> None:
    take(reading, [planned(0, 0, 4)], ahead=False)
    assert not reading.unfinished


def test_nothing_is_read_behind_the_end(reading: ReadAhead) -> None:
    assert take(reading, [planned(0, 0, 4, end=35)]) == {0: 35}
    assert not reading.unfinished


def test_the_end_gives_the_connections_back(reading: ReadAhead) -> None:
    take(reading, [planned(0, 0, 4), planned(1, 0, 4)])
    reading.end()
    assert reading._client.kept == ["connection"] * 2  # type: ignore[attr-defined]
    assert not reading.unfinished


@given(st.lists(st.lists(st.integers(1, 12), min_size=3, max_size=3), min_size=1, max_size=8))
def test_shares_of_any_size_follow_each_other_without_gap_or_standstill(budgets: list[list[int]]) -> None:
    """Whatever each partition may take in each micro-batch, with room for three stretches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ParallelFetch", ParallelFetch)
        patch.setattr(module, "ROOM_BYTES", 12 * SEGMENT_BYTES)
        reading = ReadAhead(Client(), 0.2)  # type: ignore[arg-type]
        at = {0: 0, 1: 0, 2: 0}
        for budget in budgets:
            ranges = [planned(part, at[part], size) for part, size in enumerate(budget)]
            assert reading.continues(ranges) or not reading._fetches
            reached = take(reading, ranges)
            for r in ranges:
                assert reached[r.partition] >= min(END, r.start + 10 * budget[r.partition])
            at = reached


def test_what_was_brought_is_measured_while_connections_had_something_to_do(reading: ReadAhead, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    reading.share([planned(0, 0, 4), planned(1, 0, 4)], count=4, ahead=True, pause=lambda size: None)
    flows = [gathering.throughput for gathering in reading._fetches.values()]
    clock = 9.0
    flows[0].brought(100, clock, connections=1)
    assert reading.brought() == (0, 0.0), "the other broker's connections are still starting"
    flows[1].brought(100, clock, connections=1)
    often = MOST_IDLE + 0.1
    for second, share, expected in ((19, 0.0, (3000, 10.0)), (29, MOST_IDLE, (3000, 7.5)), (39, often, (0, 0.0)), (49, 0.0, (3000, 10.0))):
        for throughput in flows:
            throughput.stands(share, clock)
        clock = second
        for throughput in flows:
            throughput.brought(1500, clock, connections=1)
            throughput.stands(0.0, clock)
        assert reading.brought() == expected


def test_tasks_that_share_a_link_share_its_memory() -> None:
    assert [room_of(tasks) for tasks in (1, 2, 4)] == [ROOM_BYTES // tasks for tasks in (1, 2, 4)]
    assert room_of(1000) == LEAST_ROOM_BYTES


def test_brokers_share_the_memory_of_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ParallelFetch", ParallelFetch)
    reading = ReadAhead(Client(), 0.2, 90_000_000)  # type: ignore[arg-type]
    reading.share([planned(number, 0, 4) for number in range(3)], count=4, ahead=True, pause=lambda size: None)
    assert {leader: fetch.admission.room for leader, fetch in reading._fetches.items()} == {0: 60_000_000, 1: 30_000_000}

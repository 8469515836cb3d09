"""A broker whose client quota holds answers back is asked again when it may be, over connections that stay open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mirror_pipeline.engine.tasks.longlink import parallel_fetch
from mirror_pipeline.engine.tasks.longlink.parallel_fetch import ParallelFetch
from mirror_pipeline.engine.tasks.longlink.segments import Segment
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import TopicPartition
from tests.support.fetch_connections import EACH, SOURCE, Line, assert_read, stretches

pytestmark = pytest.mark.timeout(60)
SECONDS = 0.4


class Quota:
    """All connections to a broker that answers ``free`` questions, then throttles each connection for a while."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.lines: list[Line] = []
        self.asked: list[float] = []
        self.until = 0.0
        self.news = threading.Event()
        self.gathering = ParallelFetch([], self.open, news=self.news, pause=lambda size: None)

    def open(self) -> Any:
        self.lines.append(Line(lambda line, offset: 0.001))
        return self.lines[-1]

    def arrived(self, line: Line) -> dict[TopicPartition, FetchedPartition] | None:
        answers = Line.arrived(line)
        if answers is None:
            return None
        now = time.monotonic()
        self.asked.append(now)
        line.throttle = 0.0
        if self.free:
            self.free -= 1
            return answers
        if self.until < now:
            self.until = now + SECONDS
            self.free = 5
        line.throttle = SECONDS
        line.muted_until = self.until
        return {}

    def read(self, wanted: list[Segment], count: int) -> None:
        self.gathering.add(wanted)
        self.gathering.start(count)
        deadline = time.monotonic() + 30
        for stretch in wanted:
            while not stretch.ready and time.monotonic() < deadline:
                self.news.wait(0.05)


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Quota]]:
    made: list[Quota] = []

    def make(free: int) -> Quota:
        made.append(Quota(free))
        monkeypatch.setattr(parallel_fetch, "arrived_fetch", made[-1].arrived)
        return made[-1]

    monkeypatch.setattr(parallel_fetch, "send_fetch", lambda line, wants, **_: line.ask(wants[SOURCE][0]))
    yield make
    for each in made:
        each.gathering.end()


def test_what_a_quota_holds_back_is_read_over_the_same_connections(quota: Callable[[int], Quota]) -> None:
    wanted = stretches(12)
    broker = quota(3)
    broker.read(wanted, 4)
    assert_read(wanted)
    assert len(broker.lines) == 4, "no connection was lost"
    assert not any(line.closed for line in broker.lines)
    assert broker.gathering.count == 4


def test_a_broker_that_throttles_is_left_alone_until_its_time_is_over(quota: Callable[[int], Quota]) -> None:
    wanted = stretches(30)
    broker = quota(2)
    broker.read(wanted, 3)
    assert_read(wanted)
    late = [now for now in broker.asked if now - broker.asked[0] > 0.1]
    assert late, "it was throttled"
    assert len(broker.asked) < 60, "it was not asked again and again meanwhile"
    assert broker.gathering.muted_until >= broker.until


def test_an_answer_without_the_partition_and_without_throttling_is_a_lost_connection(
    quota: Callable[[int], Quota], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = quota(0)
    monkeypatch.setattr(parallel_fetch, "arrived_fetch", lambda line: None if Line.arrived(line) is None else {})
    wanted = stretches(2)
    broker.read(wanted, 2)
    assert all("does not contain" in str(stretch.error) for stretch in wanted)
    assert wanted[1].start == EACH

"""A backlog that several clusters hold arrives whole and in order, however their lines behave."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.longlink import read_ahead
from mirror_pipeline.engine.tasks.longlink import several as module
from mirror_pipeline.engine.tasks.longlink.admission import Admission
from mirror_pipeline.engine.tasks.longlink.connection_count import ConnectionCount, Throughput
from mirror_pipeline.engine.tasks.longlink.segments import Segment
from mirror_pipeline.engine.tasks.longlink.several import Holding, Line, SeveralSources
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.client import Routes
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.records import seal
from mirror_pipeline.model import OffsetRange, TopicPartition
from tests.support.batch_samples import opened

END, ROUNDS = 3_000, 300
NOWHERE = Routes({}, {}, {}, 0.0)
TOPIC = "t"
SOURCES = [TopicPartition(TOPIC, number) for number in range(3)]
SLOW_SECONDS = 0.1
"""Twenty times the patience with a line of which nothing is known."""


class Client:
    """Stands in for the wire client of one cluster, whose only broker is number 1."""

    round_trip = 0.001

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.led = set(SOURCES)

    def follow(self, routes: Routes) -> None:
        self.led |= set(routes.leaders)

    def known_leader(self, source: TopicPartition) -> int | None:
        return 1 if source in self.led else None

    def forget(self, source: TopicPartition) -> None:
        self.led.discard(source)

    def take(self, node: int, number: int) -> None:
        pass

    def opener(self, node: int, replies: object) -> str:
        return self.alias

    def mute(self, node: int, until: float) -> None:
        pass

    def keep(self, node: int, number: int, connection: Any) -> None:
        raise AssertionError("nothing was opened")


class Fetch:
    """Stands in for the fetching thread of a line: what comes of each segment is drawn by chance, by the habits of its cluster."""

    habits: dict[str, list[str]] = {}
    chance = random.Random(0)

    def __init__(self, kept: Any, alias: str, *, news: Any, pause: Any) -> None:
        self.alias, self.news, self.pause = alias, news, pause
        self.admission, self.throughput = Admission(), Throughput()
        self.reads, self.count, self.connected, self.most, self.muted_until = True, 4, 4, 4, 0.0
        self.open: list[Any] = []

    def start(self, count: int) -> None:
        pass

    def end(self) -> None:
        self.reads = False

    def quiet(self, now: float) -> float:
        return 100.0

    def passed(self, segment: Segment, *, rest: bool = False) -> None:
        segment.passed = True

    def prioritise(self, segment: Segment) -> None:
        pass

    def add(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            what = self.chance.choice(self.habits[self.alias])
            if what == "dies" or not self.reads:
                self.reads = False
                segment.error, segment.ready = ConnectionLost("gone"), True
            elif what == "moved":
                segment.answers, segment.ready = [FetchedPartition(6, -1, -1, -1, [], memoryview(b""))], True
            elif what == "slow":
                threading.Timer(SLOW_SECONDS, self._arrives, (segment,)).start()
            elif what != "hangs":
                segment.answers, segment.ready = [answer(segment, what)], True

    def _arrives(self, segment: Segment) -> None:
        if not segment.passed:
            segment.answers, segment.ready = [answer(segment, "good")], True
            self.news.set()


def answer(segment: Segment, what: str) -> FetchedPartition:
    """A batch for each offset of a segment, in steps of ten; one is missing or damaged if ``what`` says so."""
    batches = []
    for at in range(segment.start - segment.start % 10, segment.end, 10):
        batch = bytearray(seal(opened([(1, None, b"v", ())] * 10, at), codec=0))
        if what == "damaged":
            batch[-1] ^= 1
        if what != "short" or at > segment.start:
            batches.append(bytes(batch))
    return FetchedPartition(0, END, END, 0, [], memoryview(b"".join(batches)))


def take_all(several: SeveralSources, read: dict[TopicPartition, int]) -> list[str]:
    """Take what comes of a share, as the reader does; the aliases it came from."""
    aliases = []
    while (segment := several.next(None, patience=lambda node: 0.05)) is not None:
        assert segment.start == read[segment.source]
        assert segment.error is None
        assert not any(each.error for each in segment.answers)
        read[segment.source] = segment.end
        aliases.append(segment.alias)
        several.taken(segment)
    return aliases


def read_to_the_end(habits: dict[str, list[str]], held: dict[str, int], seed: int) -> tuple[list[str], list[SeveralSources]]:
    """Read three partitions, in shares of 500 offsets, from east and the copies that hold so many offsets.

    As a task does, begin anew where a partition was left out. Gives the aliases of all segments, and what was begun.
    """
    Fetch.habits, Fetch.chance = habits, random.Random(seed)
    read = dict.fromkeys(SOURCES, 0)
    begun = [begin()]
    aliases: list[str] = []
    for _ in range(ROUNDS):
        offsets = {alias: {source: (0, end) for source in SOURCES} for alias, end in held.items()}
        holdings = [Holding(ClusterSettings(alias, ("h:1",)), mine, NOWHERE) for alias, mine in offsets.items()]
        begun[-1].hold(dict.fromkeys(SOURCES, 1), holdings, lambda: lambda size: None)
        ranges = [OffsetRange(*tp, at, END, 5_000_000, "i", False, 10_000.0, 1_000.0) for tp, at in read.items() if at < END]
        if not ranges:
            return aliases, begun
        begun[-1].share(ranges, count=0, ahead=True, pause=lambda size: None)
        aliases += take_all(begun[-1], read)
        if begun[-1].unheld:
            begun[-1].end()
            begun.append(begin())
    raise AssertionError(f"only {read} after {ROUNDS} shares")


def begin() -> SeveralSources:
    clients: Any = Client
    return SeveralSources(clients("east"), lambda alias: ConnectionCount(), lambda cluster: clients(cluster.alias), asked=None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a moment's patience."""
    monkeypatch.setattr(read_ahead, "ParallelFetch", Fetch)
    for name, value in {"LEAST_PATIENCE": 0.005, "LINE_REST_SECONDS": 0.01, "SEGMENT_WAIT_SECONDS": 0.001, "COPY_SECONDS": 0.05}.items():
        monkeypatch.setattr(module, name, value)


ORIGIN = st.sampled_from([["good"], ["good"] * 9 + ["hangs"]])
HABIT = st.lists(st.sampled_from(["good", "good", "hangs", "dies", "moved", "damaged", "short"]), min_size=1, max_size=6)


@settings(deadline=None, max_examples=25)
@given(north=HABIT, west=HABIT, held=st.integers(0, END), origin=ORIGIN, seed=st.integers(0, 99))
def test_all_arrives_in_order_whatever_copies_do(north: list[str], west: list[str], held: int, origin: list[str], seed: int) -> None:
    aliases, _ = read_to_the_end({"east": origin, "north": north, "west": west}, {"north": held, "west": END}, seed)
    assert set(aliases) <= {"", "north", "west"}


def test_each_cluster_has_a_share() -> None:
    aliases, begun = read_to_the_end({"east": ["good"], "north": ["good"], "west": ["good"]}, {"north": END, "west": END}, 1)
    assert set(aliases) == {"", "north", "west"}
    assert [each.left_out for each in begun] == [{}]


@pytest.mark.parametrize(("habit", "why"), [("damaged", "checksum"), ("short", "is missing")])
def test_a_copy_that_is_wrong_is_not_read_again(habit: str, why: str) -> None:
    aliases, begun = read_to_the_end({"east": ["good"], "north": [habit]}, {"north": END}, 1)
    assert set(aliases) == {""}
    assert begun[0].left_out
    assert all(alias == "north" and why in said for (alias, _), said in begun[0].left_out.items()), begun[0].left_out


def test_what_stands_is_given_back_and_said() -> None:
    aliases, begun = read_to_the_end({"east": ["good"], "north": ["hangs"]}, {"north": END}, 1)
    assert set(aliases) == {""}
    assert begun[0].lost == {"north"}


def test_lines_that_are_slower_than_they_were_waited_for_do_not_take_a_segment_from_each_other_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A limit of 1 MB/s holds each answer up for longer than a new line is waited for, and nothing is known of its rate before."""
    monkeypatch.setattr(Fetch, "quiet", lambda self, now: 0.0)
    Fetch.habits = {"east": ["slow"], "north": ["slow"]}
    several = begin()
    north = Holding(ClusterSettings("north", ("h:1",)), dict.fromkeys(SOURCES, (0, END)), NOWHERE)
    several.hold(dict.fromkeys(SOURCES, 1), [north], lambda: lambda size: None)
    ranges = [OffsetRange(*source, 0, 20, 5_000_000, "i", True, 10_000.0, 1_000.0) for source in SOURCES]
    several.share(ranges, count=0, ahead=False, pause=lambda size: None)
    assert several.next(time.monotonic() + 20) is not None


def line_of(quiet: float) -> Line:
    fetch: Any = Fetch([], "north", news=None, pause=None)
    fetch.quiet = lambda now: quiet
    client: Any = Client("north")
    return Line("north", client, 1, fetch)


def bring(line: Line, at: float, size: int, idle: float) -> None:
    line.fetch.throughput.bytes += size
    line.fetch.throughput.idle += idle
    line.settle(at)


def test_a_line_measured_while_its_connections_start_is_not_slow_for_ever() -> None:
    """It gets segments by its rate, and brings no more than it gets."""
    line = line_of(0.0)
    line.fetch.throughput.began = 0.5
    line.settle(0.6)
    bring(line, 1.4, 1_000_000, 0.0)
    assert not line.rate, "its connections have just started"
    bring(line, 2.4, 5_000_000, 0.0)
    assert line.rate == pytest.approx(5_000_000)
    for second in range(3, 8):
        bring(line, second, int(line.rate * 0.9), 0.7)  # a third of the time would do
    assert line.rate > 20_000_000
    risen = line.rate
    bring(line, 9.0, 100, 0.99)
    assert line.rate == risen, "a moment with nothing to do says nothing of what it can"


def test_a_line_that_brings_much_is_not_given_up_for_a_late_segment() -> None:
    line = line_of(0.1)
    line.rate, line.waiting, line.usual = 40e6, 60_000_000, 1.0
    assert not line.stands(10.0)
    line.rate = 4e6
    assert line.stands(10.0), "what it has takes 15 seconds"
    line = line_of(5.0)
    line.rate, line.usual = 40e6, 1.0
    assert line.stands(10.0), "nothing has come for five seconds"


@pytest.mark.parametrize("round_trip", [0.02, 0.1, 0.2])
def test_a_line_does_not_stand_because_it_was_given_much(round_trip: float) -> None:
    """Right after its start all that it has brought came fast, for it had little."""
    line = line_of(0.0)
    line.rate, line.usual, line.round_trip = 50e6, round_trip, round_trip
    while line.takes_more(10.0):
        line.asked[Segment(SOURCES[0], len(line.asked), len(line.asked) + 1, 400_000, 0)] = 9.0
        line.waiting += 400_000
    assert not line.stands(10.0)


def test_a_new_line_gets_no_more_than_it_has_connections() -> None:
    line = line_of(0.0)
    line.fetch.connected = 2  # type: ignore[misc]
    assert line.takes_more(1.0)
    for at in range(2):
        line.asked[Segment(SOURCES[0], at, at + 1, 10, 0)] = 1.0
    assert not line.takes_more(1.0)


def test_nothing_is_taken_of_what_a_copy_only_offers() -> None:
    """It is fetched while the copy is compared; afterwards it is taken, or read from the source."""
    for trusted in (True, False):
        Fetch.habits, Fetch.chance = {"east": ["good"], "north": ["good"]}, random.Random(1)
        read = dict.fromkeys(SOURCES, 0)
        several, bounds = begin(), {source: (0, END) for source in SOURCES}
        north = ClusterSettings("north", ("h:1",))
        aliases: list[str] = []
        for number in range(ROUNDS):
            compared = number > 20
            held = Holding(north, bounds, NOWHERE) if compared and trusted else Holding(north, {}, NOWHERE, bounds)
            several.hold(dict.fromkeys(SOURCES, 1), [] if compared and not trusted else [held], lambda: lambda size: None)
            ranges = [OffsetRange(*tp, at, END, 5_000_000, "i", False, 10_000.0, 1_000.0) for tp, at in read.items() if at < END]
            if not ranges:
                break
            several.share(ranges, count=0, ahead=True, pause=lambda size: None)
            taken = take_all(several, read)
            assert compared or set(taken) <= {""}
            aliases += taken
            assert not several.left_out and not several.lost
        assert set(read.values()) == {END}
        assert set(aliases) == ({"", "north"} if trusted else {""})

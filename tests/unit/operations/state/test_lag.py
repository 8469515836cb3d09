"""Lag: what the source does not tell is no offset, a copy that has not begun begins where the mirror says, leaders are asked once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_pipeline.buffer.place.lane_file import LaneFile
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.answers import (
    EARLIEST_TIME,
    LATEST_TIME,
    ClusterMetadata,
    OffsetAnswer,
    PartitionMetadata,
    TopicMetadata,
)
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import Incarnation, TopicPartition
from mirror_pipeline.operations.state import log_times
from mirror_pipeline.operations.state.cluster_view import ClusterView
from mirror_pipeline.operations.state.lag import _oldest, measure
from mirror_pipeline.operations.state.ledger_view import LaneView, LedgerView
from mirror_pipeline.operations.state.log_times import first_times, least_ages
from tests.support.source_batches import batch

NEW, OLD = TopicPartition("new", 0), TopicPartition("old", 0)
SINCE = datetime(2026, 1, 1, tzinfo=UTC)


class Source:
    """Logs from 10 to 100, the record of 2026 is at 70; some answers are errors."""

    def __init__(self, failing: set[tuple[str, int]] | None = None, since: int = 70) -> None:
        self.failing, self.since = failing or set(), since

    def metadata(self, names: list[str]) -> ClusterMetadata:
        part = {0: PartitionMetadata(1, 0, (1,), (1,), 0)}
        return ClusterMetadata("id", 1, {}, {name: TopicMetadata(name, "i", 0, False, part) for name in names})

    def leaders(self, *_: object, **__: object) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Any]]:
        return {}, {}

    def list_offsets(self, at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        ends = {EARLIEST_TIME: 10, LATEST_TIME: 100}
        return {
            tp: OffsetAnswer(-1, -1, 13) if (tp.topic, when) in self.failing else OffsetAnswer(ends.get(when, self.since), -1, 0)
            for tp, when in at.items()
        }


def view_of(source: Source) -> ClusterView:
    settings = SimpleNamespace(topic_configs=lambda names: dict.fromkeys(names))
    return ClusterView("east", lambda: nullcontext(source), lambda: nullcontext(settings))  # type: ignore[arg-type, return-value]


def lag(source: Source, stand: LedgerView, start: Any = "earliest", topic: str = "new") -> tuple[list[int], tuple[str, ...]]:
    rows, notes = measure(view_of(source), stand, {topic: f"east.{topic}"}, ages=False, start=start)
    return [part.lag for part in rows[topic].partitions], notes


NOTHING = LedgerView()


@pytest.mark.parametrize("failing", [("new", EARLIEST_TIME), ("new", LATEST_TIME)])
def test_an_error_is_no_offset(failing: tuple[str, int]) -> None:
    rows, notes = lag(Source({failing}), NOTHING)
    assert rows == [] and len(notes) == 1 and notes[0].startswith("new[0] is left out: new[0]: NETWORK_EXCEPTION")


@pytest.mark.parametrize(("start", "since", "expected"), [("earliest", 0, 90), ("latest", 0, 0), (SINCE, 70, 30), (SINCE, -1, 0)])
def test_a_copy_that_has_not_begun_lags_from_where_it_will_begin(start: Any, since: int, expected: int) -> None:
    assert lag(Source(since=since), NOTHING, start) == ([expected], ())


def test_a_copy_that_has_begun_lags_from_its_start_and_a_new_partition_of_it_from_the_first_record() -> None:
    begun = LedgerView(starts={OLD: 40})
    assert lag(Source(), begun, "latest", "old") == ([60], ())
    grown = LedgerView(starts={TopicPartition("old", 1): 40})
    assert lag(Source(), grown, "latest", "old") == ([90], ())


@pytest.mark.parametrize(("topic_id", "expected"), [("i", 5), ("of-the-old-topic", 90)])
def test_all_of_a_topic_that_was_made_anew_is_missing(topic_id: str, expected: int) -> None:
    """An offset of the old topic says nothing of the new one: at a failover all that it holds would be lost."""
    generation = Incarnation("old", topic_id, "id", "west-id", "east.old", "t", {0: 0}, {}, 0)
    lane = LaneView(SimpleNamespace(lane="lane-0"), LaneFile(), {"old": generation}, ())  # type: ignore[arg-type]
    stand = LedgerView((lane,), positions={OLD: 95}, staged={OLD: 400}, starts={OLD: 0})
    assert lag(Source(), stand, "latest", "old") == ([expected], ())
    rows, _ = measure(view_of(Source()), stand, {"old": "east.old"}, ages=False)
    assert rows["old"].partitions[0].staged == (400 if topic_id == "i" else 10)


class Seen:
    """What a lane wrote down at its first look."""

    looked = True

    def __init__(self, offsets: dict[int, int] | None) -> None:
        self.told = offsets

    def offsets(self, topic: str, topic_id: str, cluster_id: str) -> dict[int, int] | None:
        assert (topic, topic_id, cluster_id) == ("new", "i", "id")
        return self.told


@pytest.mark.parametrize(("told", "expected"), [({0: 80}, 20), ({}, 90), (None, 0)], ids=["seen then", "came later", "not told yet"])
def test_latest_is_where_the_source_ended_at_the_lanes_first_look(told: dict[int, int] | None, expected: int) -> None:
    stand = LedgerView(first_seen=(Seen(told),))  # type: ignore[arg-type]
    assert lag(Source(), stand, "latest") == ([expected], ())
    assert lag(Source(), stand, "earliest") == ([90], ())


class Leaders:
    """Two leaders of six partitions each; what is asked of whom is kept."""

    def __init__(self, *, broken: int = 0) -> None:
        self.broken = broken

    def leaders(self, tps: list[TopicPartition], *, patience: float) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Any]]:
        return {tp: 1 + tp.partition % 2 for tp in tps if tp.partition < 12}, {}

    def connection(self, node: int) -> Any:
        if node == self.broken:
            raise ConnectionLost("gone")
        return SimpleNamespace(node=node)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A broker gives a batch to the first two partitions it is asked for."""
    questions: list[tuple[int, int]] = []

    def fetch(connection: Any, wants: Mapping[TopicPartition, Any], **_: Any) -> dict[TopicPartition, FetchedPartition]:
        questions.append((connection.node, len(wants)))
        filled = list(wants)[:2]
        return {
            tp: FetchedPartition(0, 100, 100, 0, [], memoryview(batch(50, 1) if tp in filled and tp.partition != 10 else b""))
            if tp.partition != 11 else FetchedPartition(0, 50, 50, 0, [], memoryview(b""))
            for tp in wants
        }  # fmt: skip

    monkeypatch.setattr(log_times, "fetch", fetch)
    return questions


PLACES = {TopicPartition("t", number): 50 for number in range(14)}


def test_each_leader_is_asked_for_all_its_partitions_at_once(asked: list[tuple[int, int]]) -> None:
    times = first_times(Leaders(), PLACES, isolation=1)  # type: ignore[arg-type]
    assert {tp.partition for tp in times} == set(range(10)), "10 stays empty, 11 is at its end, 12 and 13 have no leader"
    assert asked == [(1, 6), (1, 4), (1, 2), (1, 1), (2, 6), (2, 3), (2, 1)]


def test_a_broker_that_cannot_be_asked_hides_only_its_own(asked: list[tuple[int, int]]) -> None:
    times = first_times(Leaders(broken=1), PLACES, isolation=1)  # type: ignore[arg-type]
    assert {tp.partition % 2 for tp in times} == {1}


def test_what_several_parts_of_a_look_ask_for_is_asked_once(asked: list[tuple[int, int]]) -> None:
    source = view_of(Leaders())  # type: ignore[arg-type]
    few = {tp: at for tp, at in PLACES.items() if tp.partition < 4}
    first = source.first_times(few)
    count = len(asked)
    assert source.first_times(few) == first and len(first) == 4 and len(asked) == count
    source.first_times(few, isolation=0)
    assert len(asked) > count


class Timed:
    """One partition's records, by time in seconds before now and in order; offsets count from 0."""

    def __init__(self, *ages: float) -> None:
        self.ages, self.rounds = ages, 0
        self.times: list[int] = []

    def list_offsets(self, at: Mapping[TopicPartition, int], *, within: float, **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        self.rounds += 1
        self.times = self.times or [int((time.time() - age) * 1000) for age in self.ages]
        assert 0 < within <= 2
        found = {tp: next((n for n, at_ms in enumerate(self.times) if at_ms >= since), None) for tp, since in at.items()}
        return {tp: OffsetAnswer(-1, -1, 0) if n is None else OffsetAnswer(n, self.times[n], 0) for tp, n in found.items()}


HOUR = 3600.0


@pytest.mark.parametrize(
    ("source", "position", "age"),
    [
        (Timed(3 * HOUR), 0, 3 * HOUR),
        (Timed(*(3 * HOUR - n / 100 for n in range(1000))), 500, 3 * HOUR),
        (Timed(*(3 * HOUR - n for n in range(3 * 3600))), 600, 2 * HOUR + 3000),
        (Timed(10 * HOUR, 12.0, 4.0), 1, 12.0),
        (Timed(10 * HOUR, 9 * HOUR, 4.0), 1, 9 * HOUR),
        (Timed(2000 * HOUR, 1999 * HOUR), 1, 1999 * HOUR),
    ],
    ids=["one record", "one burst, nothing newer", "a steady stream", "an idle topic", "an old one before a new one", "months"],
)
def test_an_age_is_bounded_without_reading_a_record(source: Timed, position: int, age: float) -> None:
    least = least_ages(source, {NEW: position})[NEW]  # type: ignore[arg-type]
    assert 0.9 * age < least <= age + 5
    assert source.rounds <= 8


@pytest.mark.parametrize("source", [Timed(), Source({("new", when) for when in range(10)})], ids=["no times", "no answer"])
def test_what_has_no_times_has_no_age(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(source, Source):
        source.list_offsets = lambda at, **_: {tp: OffsetAnswer(-1, -1, 13) for tp in at}  # type: ignore[method-assign]
    assert least_ages(source, {NEW: 0}) == {}


def test_a_topic_is_behind_at_least_by_what_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror_pipeline.operations.state.lag.least_ages", lambda _, at: {tp: 50.0 for tp in at if tp.topic == "new"})

    source = view_of(Source())
    monkeypatch.setattr(source, "first_times", lambda at, **_: {tp: time.time() - 20 for tp in at if tp.topic == "old"})
    found, _ = measure(source, NOTHING, {"new": "east.new", "old": "east.old"})
    rows = {name: (round(row.lag_seconds or 0), row.lag_seconds_at_least) for name, row in found.items()}
    assert rows == {"new": (50, True), "old": (20, False)}
    oldest, at_least = _oldest(found.values())
    assert (round(oldest or 0), at_least) == (50, True)

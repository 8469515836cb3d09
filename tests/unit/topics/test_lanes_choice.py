"""Which lanes run, and which topics they copy, when `lanes` has changed since the last run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.config import BufferConfig, MirrorConfig, TopicSelection
from mirror_pipeline.model import Incarnation
from mirror_pipeline.orchestration.project import KnownMirror, KnownTopic
from mirror_pipeline.topics.lanes import lane_of, lanes_to_run

NAMES = [f"t{number}" for number in range(20)]


def mirror(lanes: int) -> MirrorConfig:
    return MirrorConfig("m", "east", "west", TopicSelection((".*",)), lanes=lanes)


def begin(buffer: BufferConfig, lane: str, topics: list[str]) -> None:
    ledger = Ledger(open_lane(buffer, "m", lane), durable=False)
    ledger.ensure()
    if topics:
        ledger.add_incarnations([Incarnation(t, "id", "c1", "c2", f"east.{t}", "target", {0: 0}, {0: 0}, 1) for t in topics])


@pytest.fixture
def buffer(tmp_path: Path) -> BufferConfig:
    return BufferConfig(str(tmp_path / "buffer"), durable=False)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (3, 1), (3, 2), (1, 3), (12, 1)])
def test_every_topic_is_in_a_lane_that_runs(buffer: BufferConfig, before: int, after: int) -> None:
    homes = lane_of(buffer, mirror(before), NAMES)
    for lane in set(homes.values()):
        begin(buffer, lane, [name for name in NAMES if homes[name] == lane])
    lanes = lanes_to_run(buffer, mirror(after))
    assert lane_of(buffer, mirror(after), NAMES) == homes
    assert set(homes.values()) <= set(lanes)
    assert lanes == sorted(set(lanes), key=lambda lane: int(lane.removeprefix("lane-")))
    new = lane_of(buffer, mirror(after), ["new-1", "new-2", "new-3"])
    assert set(new.values()) <= {f"lane-{number}" for number in range(after)}


def test_a_lane_of_before_without_topics_does_not_run(buffer: BufferConfig) -> None:
    begin(buffer, "lane-0", ["a"])
    begin(buffer, "lane-1", [])  # its run was stopped before a topic began
    open_lane(buffer, "m", "lane-2")  # only the folder
    begin(buffer, "backfill-1", ["b"])
    assert lanes_to_run(buffer, mirror(1)) == ["lane-0"]


def test_dagster_has_a_job_for_every_lane_with_topics() -> None:
    topics = tuple(KnownTopic(name, f"east.{name}", lane) for name, lane in (("a", "lane-0"), ("b", "lane-10"), ("c", "lane-2")))
    known = KnownMirror(mirror(1), topics)
    assert known.lanes == ["lane-0", "lane-2", "lane-10"]
    assert KnownMirror(mirror(2), None).lanes == ["lane-0", "lane-1"]


def test_lanes_without_topics_are_not_opened_to_find_the_others(buffer: BufferConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        begin(buffer, f"lane-{number}", [])
    begin(buffer, "lane-7", ["a"])
    opened: list[str] = []
    read = Ledger.incarnations
    monkeypatch.setattr(Ledger, "incarnations", lambda ledger: opened.append(ledger.store.lane) or read(ledger))
    assert lane_of(buffer, mirror(64), ["a", "b"])["a"] == "lane-7"
    assert opened == ["lane-7"]

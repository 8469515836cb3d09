"""`start: latest` is the end of a topic when the mirror first sees it, whatever the target does; later topics are copied whole."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import BufferConfig, ClusterSettings, MirrorConfig, TopicSelection
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.permits import Permits
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.topics.first_seen import STARTS
from mirror_pipeline.engine.driver.topics.policies import SourcePolicy
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.errors import BufferUnusable, ClusterUnreachable
from mirror_pipeline.execution.placement import Placement
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.kafka.answers import (
    EARLIEST_TIME,
    LATEST_TIME,
    ClusterMetadata,
    OffsetAnswer,
    PartitionMetadata,
    TopicMetadata,
)
from mirror_pipeline.model import Incarnation, Stamp, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic
from mirror_pipeline.topics.plan import TargetPlan


class Source:
    """A source whose logs start at 5; ``ends`` by topic, -1 for one without a leader."""

    round_trip = 0.001

    def __init__(self) -> None:
        self.ends = {"a": 100, "b": 200}
        self.partitions = 1

    def metadata(self, names: list[str]) -> ClusterMetadata:
        parts = {number: PartitionMetadata(1, 0, (1,), (1,), 0) for number in range(self.partitions)}
        found = {name: TopicMetadata(name, f"id-{name}", 0 if name in self.ends else 3, False, parts) for name in names}
        return ClusterMetadata("source-id", 1, {}, found)

    def list_offsets(self, at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        told = {tp: {EARLIEST_TIME: 5, LATEST_TIME: self.ends[tp.topic]}[when] for tp, when in at.items()}
        return {tp: OffsetAnswer(offset, -1, 5 if offset < 0 else 0) for tp, offset in told.items()}

    def ask_elsewhere(self) -> None: ...

    def take_silent(self) -> dict[int, str]:
        return {}

    def avoid(self, _: object) -> None: ...

    def require(self, _: object) -> None: ...


class Target:
    """A target that may be away."""

    admin, cluster_id = None, "target-id"
    away = True

    def stamp(self) -> Stamp:
        if Target.away:
            raise ClusterUnreachable("west", "away")
        return Stamp(7, 0)

    def plans(self, topics: list[LaneTopic], _: object) -> dict[str, TargetPlan]:
        return {topic.topic: TargetPlan(topic.topic, topic.target_topic, 1) for topic in topics}

    def without_leader(self, _: object) -> dict[str, Any]:
        return {}

    def ensure(self, topics: list[LaneTopic], *_: object) -> dict[str, Any]:
        return {topic.topic: (f"target-{topic.topic}", {number: (0, 0) for number in range(4)}) for topic in topics}

    def rules(self, pairs: list[tuple[str, str]], _: object) -> dict[str, tuple[int, SourcePolicy]]:
        return {source: (10**6, SourcePolicy(compacted=False)) for source, _ in pairs}

    def changed(self, _: object) -> dict[str, Any]:
        return {}

    def refuse_filled(self, *_: object) -> None: ...

    def padded(self, _: str, bounds: dict[int, tuple[int, int]], __: object) -> dict[int, tuple[int, int]]:
        return bounds

    def continued(self, begun: Incarnation, ends: Mapping[int, int], _: object) -> Incarnation:
        return replace(begun, target_starts={number: ends[number] for number in begun.starts})


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    made = Source()
    monkeypatch.setattr(Target, "away", True)
    monkeypatch.setattr(divergence, "SECOND_LOOK_SECONDS", 0.0)
    monkeypatch.setattr("mirror_pipeline.engine.driver.topics.prepare.WireClient", lambda *_, **__: made)
    monkeypatch.setattr("mirror_pipeline.engine.driver.topics.prepare.Admin", lambda *_: None)
    monkeypatch.setattr("mirror_pipeline.engine.driver.topics.prepare.TargetSide", lambda *_: Target())
    monkeypatch.setattr("mirror_pipeline.engine.driver.topics.prepare.source_policies", lambda *_: {})
    return made


def a_run(folder: Path, start: str = "latest") -> tuple[Preparation, LaneContext]:
    """A new run of the lane: only what is on the disk is left of the one before."""
    buffer = BufferConfig(str(folder / "buffer"), durable=False)
    store = open_lane(buffer, "m", "lane-0")
    context = LaneContext(
        mirror=replace(MirrorConfig("m", "east", "west", TopicSelection((".*",))), start=start),
        lane="lane-0", source=ClusterSettings("east", ("a:1",)), target=ClusterSettings("west", ("b:1",)), buffer=buffer, store=store,
        spans=SpanTable(store, durable=False), ledger=Ledger(store, durable=False), permits=Permits(Decisions(store, durable=False)),
        placement=Placement.only(InlineRunner()), once=True, stop=threading.Event(),
    )  # fmt: skip
    context.spans.ensure()
    context.ledger.ensure()
    return Preparation(context), context


def named(*names: str) -> list[LaneTopic]:
    return [LaneTopic(name, f"east.{name}") for name in names]


def starts(context: LaneContext) -> dict[str, dict[int, int]]:
    return {name: dict(life.starts) for name, life in context.ledger.incarnations().items()}


def test_what_comes_while_the_target_is_away_is_not_left_out(source: Source, tmp_path: Path) -> None:
    preparation, _ = a_run(tmp_path)
    with pytest.raises(ClusterUnreachable):
        preparation.start(named("a", "b"))
    source.ends = {"a": 150, "b": 260, "c": 30}
    Target.away = False
    preparation, context = a_run(tmp_path)
    preparation.start(named("a", "b", "c"))
    assert starts(context) == {"a": {0: 100}, "b": {0: 200}, "c": {0: 5}}


def test_a_topic_that_appears_while_the_lane_runs_is_copied_from_its_beginning(source: Source, tmp_path: Path) -> None:
    Target.away = False
    preparation, context = a_run(tmp_path)
    preparation.start(named("a"))
    preparation.update(named("a", "b"))
    preparation.finish()
    assert starts(context) == {"a": {0: 100}, "b": {0: 5}}


def test_partitions_that_came_while_the_target_was_away_are_copied_whole(source: Source, tmp_path: Path) -> None:
    preparation, _ = a_run(tmp_path)
    with pytest.raises(ClusterUnreachable):
        preparation.start(named("a"))
    source.partitions, Target.away = 2, False
    preparation, context = a_run(tmp_path)
    preparation.start(named("a"))
    assert starts(context) == {"a": {0: 100, 1: 5}}


def test_a_topic_without_a_leader_at_first_begins_where_it_ends_once_it_tells(source: Source, tmp_path: Path) -> None:
    source.ends["a"] = -1
    preparation, _ = a_run(tmp_path)
    with pytest.raises(ClusterUnreachable):
        preparation.start(named("a", "b"))
    source.ends["a"] = 120
    with pytest.raises(ClusterUnreachable):
        preparation.start(named("a", "b"))
    source.ends |= {"a": 130, "b": 230}
    Target.away = False
    preparation, context = a_run(tmp_path)
    preparation.start(named("a", "b"))
    assert starts(context) == {"a": {0: 120}, "b": {0: 200}}


def test_a_mirror_that_copies_already_takes_new_topics_from_their_beginning(source: Source, tmp_path: Path) -> None:
    Target.away = False
    preparation, context = a_run(tmp_path, start="earliest")
    preparation.start(named("a"))
    assert not Path(context.store.table(STARTS)).exists()
    preparation, context = a_run(tmp_path)
    preparation.start(named("a", "b"))
    assert starts(context) == {"a": {0: 5}, "b": {0: 5}}


def test_a_damaged_file_is_said(source: Source, tmp_path: Path) -> None:
    preparation, context = a_run(tmp_path)
    Path(context.store.table(STARTS)).write_text("{")
    with pytest.raises(BufferUnusable, match=r"starts\.json is damaged"):
        preparation.start(named("a"))

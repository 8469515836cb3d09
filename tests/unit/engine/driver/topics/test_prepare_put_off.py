"""Topics whose brokers refuse for now, as those of a topic just created do until it has leaders, are begun later, not halted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics.begin import TopicStarter
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.driver.topics.policies import SourcePolicy
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.engine.driver.topics.target import TargetSide
from mirror_pipeline.engine.driver.topics.waits import Waits
from mirror_pipeline.errors import ConnectionLost, MirrorError
from mirror_pipeline.execution.placement import Placement
from mirror_pipeline.kafka.answers import (
    EARLIEST_TIME,
    LATEST_TIME,
    ClusterMetadata,
    OffsetAnswer,
    PartitionMetadata,
    TopicMetadata,
)
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.model import Incarnation, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context

__all__ = ["context"]

NOT_LEADER, POLICY = 6, 44
NEW = LaneTopic("new", "east.new")


class Targets:
    """Refuses a new topic ``times`` times with an error of the broker, then takes it."""

    cluster_id = "west-id"

    def __init__(self, code: int, times: int) -> None:
        self.code, self.times = code, times

    def plans(self, topics: Sequence[LaneTopic], _: Any) -> dict[str, None]:
        return {topic.topic: None for topic in topics}

    def without_leader(self, _: Sequence[str]) -> dict[str, Any]:
        return {}

    def ensure(self, topics: Sequence[LaneTopic], *_: Any) -> dict[str, Any]:
        self.times -= 1
        found: Any = ("new-target-id", {0: (0, 0)})
        return {topic.topic: broker_error(self.code, f"{topic.target_topic}[0]") if self.times >= 0 else found for topic in topics}

    def rules(self, pairs: Sequence[tuple[str, str]], _: Any) -> dict[str, tuple[int, SourcePolicy]]:
        return {source: (1_000_000, SourcePolicy(compacted=False)) for source, _ in pairs}

    refuse_filled = staticmethod(TargetSide.refuse_filled)

    def padded(self, _: Any, bounds: Any, __: Any) -> Any:
        return bounds

    def continued(self, begun: Incarnation, ends: Mapping[int, int], _: Any) -> Incarnation:
        return replace(begun, target_starts=begun.target_starts | {n: ends[n] for n in begun.starts if n not in begun.target_starts})


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Any:
    parts = {0: PartitionMetadata(1, 0, (1,), (1,), 0)}
    known = TopicMetadata("new", "new-id", 0, False, parts)

    def list_offsets(at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        return {tp: OffsetAnswer({EARLIEST_TIME: 100, LATEST_TIME: 1_100}[when], -1, 0) for tp, when in at.items()}

    def metadata(names: Sequence[str]) -> ClusterMetadata:
        return ClusterMetadata("east-id", 1, {}, {name: known for name in names})

    return SimpleNamespace(
        metadata=metadata, list_offsets=list_offsets, round_trip=0.001, take_silent=dict, avoid=lambda nodes: None
    )


def beginning(context: LaneContext, source: Any, code: int, times: int) -> TopicStarter:
    context.state.unready["new"] = "waits for the target cluster"
    targets: Any = Targets(code, times)
    return TopicStarter(context, source, None, targets, SimpleNamespace(), Waits(context))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "round_trip", "expected"), [("earliest", 0.001, [50_000]), ("earliest", 0.2, []), ("latest", 0.001, [])]
)
def test_spark_may_start_while_target_topics_are_created(
    context: LaneContext, source: Any, start: str, round_trip: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(Placement, "expect", lambda _, waiting: found.append(waiting))
    context.mirror = replace(context.mirror, start=start)
    source.round_trip = round_trip
    made = beginning(context, source, NOT_LEADER, times=1)
    vars(made._first_seen)["offsets"] = lambda *_: {0: 0}
    made.begin([NEW])
    assert (found, set(context.state.unready)) == (expected, {"new"})


def test_a_topic_without_a_leader_yet_is_begun_later(context: LaneContext, source: Any) -> None:
    made = beginning(context, source, NOT_LEADER, times=2)
    for _ in range(2):
        made.begin([NEW])
        assert context.state.refused == {}
        assert context.state.unready["new"].startswith("east.new[0]: NOT_LEADER_OR_FOLLOWER (")
    made.begin([NEW])
    assert (set(context.state.topics), context.state.unready) == ({"new"}, {})


def test_what_does_not_pass_halts_at_once(context: LaneContext, source: Any) -> None:
    made = beginning(context, source, POLICY, times=1)
    made.begin([NEW])
    assert (set(context.state.refused), context.state.unready) == ({"new"}, {})


@pytest.mark.parametrize(("once", "halted"), [(True, {"new"}), (False, set())])
def test_only_a_run_with_an_end_gives_up(context: LaneContext, source: Any, once: bool, halted: set[str]) -> None:
    context.once = once
    context.mirror = replace(context.mirror, engine=replace(context.mirror.engine, target_wait=0.0))
    made = beginning(context, source, NOT_LEADER, times=9)
    made.begin([NEW])
    made.begin([NEW])
    assert (set(context.state.refused), set(context.state.unready)) == (halted, {"new"} - halted)


@pytest.mark.parametrize("once", [True, False])
def test_a_next_generation_waits_by_the_same_rule(context: LaneContext, monkeypatch: pytest.MonkeyPatch, once: bool) -> None:
    context.once = once
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    made = Preparation(context)
    made._wanted["t"] = LaneTopic("t", "east.t")
    made._successors.waiting.add("t")
    context.state.topics["t"].target_checked = True

    def refuse(*_: Any) -> None:
        raise broker_error(NOT_LEADER, "east.t[0]")

    monkeypatch.setattr("mirror_pipeline.engine.driver.topics.successors.drained", lambda *_: True)
    monkeypatch.setattr(made._successors, "_next_generation", refuse)
    assert made._successors.ready() == ["t"]
    made._successors.begin(["t"])
    assert context.state.unready["t"].startswith("east.t[0]: NOT_LEADER_OR_FOLLOWER (")
    context.mirror = replace(context.mirror, engine=replace(context.mirror.engine, target_wait=0.0))
    made._successors.begin(["t"])
    halt = context.state.topics["t"].halted
    assert (halt is not None, "t" in context.state.unready, made._successors.waiting) == (once, not once, set() if once else {"t"})


def test_a_refusal_for_now_does_not_end_the_lane(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what must be looked at before anything is sent: the write loop waits for it as for a target that is down."""
    made = Preparation(context)
    codes = [NOT_LEADER, POLICY]

    def refuse() -> None:
        raise broker_error(codes.pop(0), "east.t")

    monkeypatch.setattr(made._targets, "stamp", refuse)
    with pytest.raises(ConnectionLost, match="NOT_LEADER"):
        made.finish()
    with pytest.raises(MirrorError, match="POLICY_VIOLATION"):
        made.finish()

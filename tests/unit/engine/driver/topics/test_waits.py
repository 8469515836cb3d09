"""Topics that wait for brokers: each has a back-off of its own, and a run that ends waits for none of them for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics import waits
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.errors import BufferUnusable, MirrorError, UsageError
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context

__all__ = ["context"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_each_topic_has_a_back_off_of_its_own(context: LaneContext, clock: list[float]) -> None:
    context.once = False
    made = waits.Waits(context)
    assert made.due(["old", "new"]) == ["old", "new"]
    for _ in range(9):
        assert made.put_off("old", "no leader", most=0.0)
    assert made.due(["old"]) == [] and made.due(["old", "new"]) == ["new"], "a new topic does not wait for one that is tried rarely"
    clock[0] += 10.0
    assert made.due(["old"]) == ["old"]
    made.put_off("old", "no leader", most=0.0)
    made.over("old")
    assert made.due(["old"]) == ["old"]


def test_topics_whose_time_comes_soon_are_tried_together(context: LaneContext, clock: list[float]) -> None:
    made = waits.Waits(context)
    for name in ("a", "b"):
        made.put_off(name, "no leader", most=60.0)
    assert made.due(["a", "b"]) == []
    clock[0] += max(made._at.values()) - clock[0]
    made._at["b"] += waits.ASKED_TOGETHER_SECONDS
    assert made.due(["a", "b"]) == ["a", "b"]


def test_a_run_that_ends_gives_up(context: LaneContext, clock: list[float]) -> None:
    made = waits.Waits(context)
    assert made.put_off("t", "no leader", most=20.0)
    clock[0] += 21.0
    assert not made.put_off("t", "no leader", most=20.0)


def test_a_topic_whose_target_cannot_be_looked_at_says_so_and_is_not_begun_again(context: LaneContext) -> None:
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    made = waits.Waits(context)
    made.put_off("t", "no answer", most=20.0)
    assert (context.state.topics["t"].waits, context.state.unready) == ("no answer", {})
    context.state.topics["t"].target_checked = True
    made.put_off("t", "no leader", most=20.0)
    assert context.state.unready == {"t": "no leader"}


@pytest.mark.parametrize(("code", "passing"), [(3, True), (5, True), (6, True), (7, True), (13, True), (29, False), (44, False)])
def test_what_passes(code: int, passing: bool) -> None:
    assert waits.passes(broker_error(code, "t")) is passing


@pytest.mark.parametrize("error", [UsageError("a name"), broker_error(58, "login"), broker_error(31, "rights")])
def test_a_search_that_fails_does_not_end_the_run(context: LaneContext, error: MirrorError) -> None:
    def fail() -> list[LaneTopic]:
        raise error

    Preparation(context).rediscover(fail)


def test_a_search_without_a_ledger_ends_the_run(context: LaneContext) -> None:
    def fail() -> list[LaneTopic]:
        raise BufferUnusable("gone")

    with pytest.raises(BufferUnusable):
        Preparation(context).rediscover(fail)

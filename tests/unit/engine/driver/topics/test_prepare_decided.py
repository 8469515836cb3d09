"""A running lane looks again soon after an operator has accepted what halts a topic, whichever came first."""

from __future__ import annotations

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics import prepare
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.halts import Halt, target_recreated
from mirror_pipeline.model import Decision, DecisionKind
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context

__all__ = ["context"]

HALT = target_recreated("t", "east.t", "old-id", "new-id")


def accepted(at: int, kind: DecisionKind = DecisionKind.TARGET) -> list[Decision]:
    return [Decision("t", -1, LIFE.incarnation, kind, 0, 0, "new-id", "somebody", at)]


@pytest.fixture
def preparation(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> Preparation:
    monkeypatch.setattr(prepare, "DECISIONS_SECONDS", 0.0)
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    return Preparation(context)


@pytest.mark.parametrize("halts_first", [True, False])
def test_it_looks_once_for_each_decision(context: LaneContext, preparation: Preparation, halts_first: bool) -> None:
    run = context.state.topics["t"]
    for at in (1, 2):
        run.halted = HALT if halts_first else None
        assert not preparation.decided()
        context.permits.cases.add(accepted(at))
        assert preparation.decided() is halts_first
        run.halted = HALT
        assert preparation.decided() is not halts_first
        assert not preparation.decided(), "what it halts for now was looked at"


@pytest.mark.parametrize(
    ("halt", "kind"), [(Halt("t", "is full", "", "target_filled"), DecisionKind.TARGET), (HALT, DecisionKind.SOURCE_GONE)]
)
def test_a_decision_about_something_else_is_none(context: LaneContext, preparation: Preparation, halt: Halt, kind: DecisionKind) -> None:
    context.state.topics["t"].halted = halt
    context.permits.cases.add(accepted(1, kind))
    assert not preparation.decided()

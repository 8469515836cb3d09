"""A topic that sends nothing learns by a look that its target topic is another one; one that sends is told by the brokers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.halts import Halt, target_recreated
from mirror_pipeline.model import Incarnation
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context

__all__ = ["context"]

HALT = target_recreated("t", "east.t", "old-id", "new-id")


@pytest.mark.parametrize(
    ("busy", "halted", "found", "checked"),
    [(False, None, {"t": HALT}, False), (False, None, {}, True), (True, None, {"t": HALT}, True), (False, HALT, {"t": HALT}, True)],
)
def test_only_what_is_idle_and_differs_is_checked(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, busy: bool, halted: Halt | None, found: dict[str, Halt], checked: bool
) -> None:
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    run, made = context.state.topics["t"], Preparation(context)
    run.target_checked, run.halted = True, halted
    for part in run.partitions.values():
        part.writing.outcome_unknown = busy

    def changed(generations: Sequence[Incarnation]) -> dict[str, Halt]:
        return found if generations else {}

    monkeypatch.setattr(made._targets, "changed", changed)
    made.look_at_targets()
    assert run.target_checked is checked

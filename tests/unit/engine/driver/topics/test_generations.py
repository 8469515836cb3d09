"""What an operator has accepted holds for the topic that it was accepted of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics.generations import follows
from mirror_pipeline.model import Decision, DecisionKind
from tests.support.lane_context import LIFE, context

__all__ = ["context"]

TRUNCATED = Decision("t", 0, LIFE.incarnation, DecisionKind.TRUNCATED, 5, 10, "", "me", 1)
RECREATED = replace(TRUNCATED, kind=DecisionKind.RECREATED, partition=-1, subject="another")


@pytest.mark.parametrize(
    ("decision", "topic_id", "joined"),
    [(TRUNCATED, "now", True), (TRUNCATED, "another", False), (RECREATED, "another", True), (RECREATED, "a third", False)],
)
def test_no_decision_joins_a_topic_that_nobody_was_asked_about(
    context: LaneContext, decision: Decision, topic_id: str, joined: bool
) -> None:
    context.permits.decisions = (decision,)
    assert follows(context, LIFE, topic_id) is joined

"""The thread that prepares topics: what a target that is down does to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics.preparing import Preparing
from mirror_pipeline.errors import ClusterUnreachable
from tests.support.lane_context import context

__all__ = ["context"]


def test_a_target_that_nobody_sends_to_is_down_until_it_answers(context: LaneContext) -> None:
    context.once = False
    answers = [False, False, True]
    searches: list[int] = []

    def look() -> None:
        if not answers.pop(0):
            raise ClusterUnreachable("west", "west: no broker answered")

    stub: Any = SimpleNamespace(
        rediscover=lambda discover: searches.append(1), decided=lambda: False, look_at_targets=look, finish=lambda: None
    )
    later = iter([0.0, 1e12])
    preparing = Preparing(context, stub, list, lambda began: next(later))
    down = []
    for _ in range(4):
        preparing._turn()
        down.append(bool(context.state.target_down))
    assert (down, searches, answers) == ([True, True, False, False], [1], [])

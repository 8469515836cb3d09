"""How long a micro-batch stays open."""

from __future__ import annotations

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read.loop import SIZES_SECONDS
from mirror_pipeline.engine.tasks.read.messages import ReadTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.execution.placement import Place
from mirror_pipeline.model import OffsetRange
from tests.support.lane_context import context
from tests.support.read_lane import PLACE, STAGED, Source, lane

__all__ = ["context"]


@pytest.mark.parametrize(("per_batch", "copies", "is_short"), [(0.0, True, True), (16_000.0, True, False), (0.0, False, False)])
def test_the_first_one_of_topics_of_unknown_size_is_short_where_copies_will_be_read(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, per_batch: float, copies: bool, is_short: bool
) -> None:
    """Copies get nothing of a topic before its sizes are known, which the first micro-batch tells."""
    asked: list[ReadTask] = []

    class Runner:
        tasks = 1

        def run_each(self, read: object, tasks: list[ReadTask], *, name: str) -> list[object]:
            asked.extend(tasks)
            return []

    staging = lane(context, Source())
    staging._place = Place(Runner(), in_process=True, small=True)  # type: ignore[arg-type]
    if copies:
        staging._copies._wanted.set()
    planned = OffsetRange(*PLACE, STAGED, STAGED + 100, 5_000_000, "i", False, 1000.0, per_batch)
    staging._stage([RangeRules(planned, 1_000_000, False, False)])
    assert asked[0].seconds == (SIZES_SECONDS if is_short else context.mirror.engine.max_batch_age)

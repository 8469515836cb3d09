"""How long a micro-batch stays open."""

from __future__ import annotations

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read.loop import SOON_SECONDS
from mirror_pipeline.engine.tasks.read.messages import ReadTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.execution.placement import Place
from mirror_pipeline.model import OffsetRange
from tests.support.lane_context import context
from tests.support.read_lane import PLACE, STAGED, Source, lane

__all__ = ["context"]


@pytest.mark.parametrize(
    ("per_batch", "copies", "told", "is_short"),
    [(0.0, True, True, True), (16_000.0, True, True, False), (16_000.0, True, False, True), (0.0, False, False, False)],
)
def test_it_is_short_until_copies_can_be_read(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, per_batch: float, copies: bool, told: bool, is_short: bool
) -> None:
    """Copies get nothing of a topic before its sizes are known, which the first micro-batch tells, and they say what they hold."""
    asked: list[ReadTask] = []

    class Runner:
        tasks = 1

        def run_each(self, read: object, tasks: list[ReadTask], *, name: str) -> list[object]:
            asked.extend(tasks)
            return []

    staging = lane(context, Source())
    staging._place = Place(Runner(), in_process=True, small=True)  # type: ignore[arg-type]
    if copies:
        monkeypatch.setattr(context, "copies", [ClusterSettings("copy", ("h:1",))])
        staging._copies.holdings(1e9)
    if told:
        staging._copies._looked.add("copy")
    planned = OffsetRange(*PLACE, STAGED, STAGED + 100, 5_000_000, "i", False, 1000.0, per_batch)
    staging._stage([RangeRules(planned, 1_000_000, False, False)])
    assert asked[0].seconds == (SOON_SECONDS if is_short else context.mirror.engine.max_batch_age)

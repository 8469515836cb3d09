"""A lane that cannot begin leaves nothing behind."""

from __future__ import annotations

import threading
import time

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.lane import LaneRun
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE
from tests.support.lane_context import context as context


def test_threads_that_connect_to_copies_end_with_a_lane_that_does_not_begin(context: LaneContext) -> None:
    context.copies = (ClusterSettings("north", ("127.0.0.1:1",)),)
    begun: list[threading.Thread] = []

    def discover() -> list[LaneTopic]:
        begun.extend(thread for thread in threading.enumerate() if thread.name == "copy-north")
        raise ClusterUnreachable("west", "west: no broker answered")

    with pytest.raises(ClusterUnreachable):
        LaneRun(context, discover).run()
    assert begun
    for thread in begun:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(("waits", "is_over"), [("new", False), ("t", True), ("", True)])
def test_a_lane_is_not_idle_while_a_topic_is_still_to_begin(context: LaneContext, waits: str, is_over: bool) -> None:
    """New partitions of one that has begun may wait for ever."""
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    for part in context.state.live():
        part.reading.end, part.reading.end_known = part.staged, True
    context.state.unready = {waits: "waits for broker 3"} if waits else {}
    assert LaneRun(context, list, idle_seconds=0.0)._time_is_up(time.monotonic()) is is_over

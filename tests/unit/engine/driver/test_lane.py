"""A lane that cannot begin leaves nothing behind."""

from __future__ import annotations

import threading

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.lane import LaneRun
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.topics.lanes import LaneTopic
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

"""The picture of a run says what is not copied and why: topics that wait for a cluster are not well."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_pipeline.config import MirrorConfig, TopicSelection
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.progress import progress_of, report_of
from mirror_pipeline.engine.driver.state import LaneState, PartitionState, ReadSide, TopicRun, WriteSide
from mirror_pipeline.model import Position, SpanRef, TopicPartition

DOWN = "cluster west: no broker answers"


def lane(*, staged: int = 0, end: int = 0, end_known: bool = True, **down: str) -> LaneContext:
    """A continuous run over one topic: ``staged`` offsets wait in the buffer, the source ends at ``end``."""
    part = PartitionState(
        TopicPartition("t", 0), TopicPartition("east.t", 0), "now", staged, WriteSide(Position(0, 0, 0)), ReadSide(end, end_known)
    )
    if staged:
        part.pending.append(SpanRef("t", 0, "now", 0, 0, staged, staged, 1, 100, 0, 0, (), "p", 0))
    state = LaneState(topics={"t": TopicRun("t", "east.t", "now", {0: part})}, **cast(dict[str, Any], down))
    config = MirrorConfig("m", "east", "west", TopicSelection(("t",)))
    return cast(LaneContext, SimpleNamespace(state=state, mirror=config, lane="lane-0", once=False, drain=False, stop=threading.Event()))


@pytest.mark.parametrize(
    ("context", "state", "reason"),
    [
        (lane(staged=500, end=500, target_down=DOWN), "behind", f"500 offsets are not on the target: {DOWN}"),
        (lane(target_down=DOWN), "ok", ""),
        (lane(staged=500, end=500), "ok", ""),
        (lane(end=9, source_down="no broker answers"), "behind", "the source cannot be read: no broker answers"),
        (lane(end_known=False, source_down="no broker answers"), "behind", "the source cannot be read: no broker answers"),
        (lane(source_down="no broker answers"), "ok", ""),
    ],
)
def test_a_topic_that_waits_for_a_cluster_is_behind(context: LaneContext, state: str, reason: str) -> None:
    topic = progress_of(context, seconds=1.0).topics["t"]
    assert (topic.state, topic.reason) == (state, reason)
    report = report_of(context, seconds=1.0)
    assert (report.state, report.topics[0].reason) == (state, reason)


def test_the_report_of_a_run_that_was_ended_says_what_is_left() -> None:
    report = report_of(lane(staged=500, end=700, target_down=DOWN), seconds=1.0)
    assert (report.lag_records, report.target_down, report.source_down) == (700, DOWN, "")

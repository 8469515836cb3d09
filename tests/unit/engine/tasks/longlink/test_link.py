"""The learnt connection count and read-ahead survive from one micro-batch to the next, where the same process runs it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read import loop
from mirror_pipeline.engine.tasks.longlink.connection_count import ConnectionCount
from mirror_pipeline.engine.tasks.longlink.link import Link, worker_connections
from mirror_pipeline.engine.tasks.read import task as read_task
from mirror_pipeline.engine.tasks.read.messages import ReadResult, ReadTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.execution.placement import Placement
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.model import OffsetRange
from tests.support.lane_context import context
from tests.support.read_lane import STAGED, Source, lane

__all__ = ["context"]

RANGE = OffsetRange("t", 0, STAGED, STAGED + 9, 10**6, "now")
CLUSTER = ClusterSettings("east", ("a:1",))


class Ahead:
    """Stands in for read-ahead."""

    def __init__(self, fits: bool) -> None:
        self.fits, self.ended = fits, 0

    def continues(self, ranges: object) -> bool:
        return self.fits

    def end(self) -> None:
        self.ended += 1


def linked(fits: bool) -> tuple[Link, Ahead]:
    link, ahead = Link(), Ahead(fits)
    link.keep(ahead)  # type: ignore[arg-type]
    return link, ahead


def test_read_ahead_that_fits_is_resumed_once() -> None:
    link, ahead = linked(True)
    assert (link.resume([RANGE]), link.resume([RANGE]), ahead.ended) == (ahead, None, 0)


def test_read_ahead_that_does_not_fit_ends() -> None:
    link, ahead = linked(False)
    assert (link.resume([RANGE]), link.resume([RANGE]), ahead.ended) == (None, None, 1)


def test_the_end_of_a_link_ends_its_read_ahead_once() -> None:
    link, ahead = linked(True)
    link.end()
    link.end()
    assert (link.resume([RANGE]), ahead.ended) == (None, 1)


def test_a_worker_keeps_one_count_for_each_cluster() -> None:
    learnt, other = worker_connections(CLUSTER), []
    assert worker_connections(ClusterSettings("east", ("a:1",))) is learnt
    assert worker_connections(ClusterSettings("west", ("b:1",))) is not learnt
    thread = threading.Thread(target=lambda: other.append(worker_connections(CLUSTER)))
    thread.start()
    thread.join()
    assert isinstance(other[0], ConnectionCount) and other[0] is not learnt


@pytest.mark.parametrize("in_process", [True, False])
def test_the_loop_lends_its_link_to_tasks_of_its_own_process(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    links: list[Link | None] = []

    def read(task: ReadTask, link: Link | None = None) -> ReadResult:
        links.append(link)
        return ReadResult(None, (), 0.0)

    monkeypatch.setattr(loop, "run_read", read)
    if in_process:
        context.placement = Placement(InlineRunner, inline_bytes=1 << 40)
    reader = lane(context, Source(), once=True)
    reader._place = context.placement.for_read(1, far=False)
    for _ in range(2):
        reader._stage([RangeRules(RANGE, 10**6, False, False)])
    assert links == ([reader._link] * 2 if in_process else [None, None])


def test_the_end_of_the_loop_ends_its_read_ahead(context: LaneContext) -> None:
    reader = lane(context, Source(), once=True)
    reader._link, ahead = linked(True)
    context.stop.set()
    reader.run()
    assert ahead.ended == 1


def test_a_lost_source_ends_read_ahead(context: LaneContext) -> None:
    """Its connections belong to the client, which is dropped."""
    link, ahead = linked(True)

    def lost(*_: Any) -> None:
        raise ConnectionLost("gone")

    rules = (RangeRules(RANGE, 10**6, False, False),)
    task = ReadTask(context.store, CLUSTER, 0, 0, rules, 1, 1, 10**9, 5.0, 5.0, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_task, "_fetch", lost)
        result = read_task.run_read(task, link)
    assert ahead.ended == 1 and [outcome.error for outcome in result.outcomes] == ["gone"]


@pytest.mark.parametrize(("far", "looks"), [(False, 1), (True, 0)])
def test_only_over_a_long_link_a_backlog_puts_off_the_look_at_all_ends(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, far: bool, looks: int
) -> None:
    """Near by, a large micro-batch of one partition must not hide the new records of others for seconds."""
    asked: list[None] = []
    reader = lane(context, Source())
    reader._far, reader._reach = far, 4
    reader._source._looked = time.monotonic() - 1.0
    monkeypatch.setattr(reader._source, "look_up", lambda: None)
    monkeypatch.setattr(reader, "refresh_ends", lambda: asked.append(None))
    monkeypatch.setattr(reader, "_nothing_to_read", lambda: True)
    assert reader._turn() and len(asked) == looks


def test_between_small_micro_batches_all_ends_are_looked_at_as_often_as_that_is_cheap(context: LaneContext) -> None:
    """What came during the pause would otherwise wait until the next but one."""
    context.mirror = replace(context.mirror, engine=replace(context.mirror.engine, poll_interval=1000.0))
    source = lane(context, Source())._source
    source._looked = time.monotonic()
    assert source.look_is_due(known=False, small=True)
    assert not source.look_is_due(known=False, small=False)
    assert not source.look_is_due(known=True, small=True)
    source._look_cost = 1000.0
    assert not source.look_is_due(known=False, small=True)

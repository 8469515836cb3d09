"""Runs without the source: staged data is delivered, and what its copies hold; only they and the target are contacted."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from mirror_pipeline.engine.driver.lanes import WORST_FIRST, LaneRuns
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.operations.state.lag import undelivered
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import Progress, RunReport

# Each attempt to reach a source that is down takes seconds by itself.
LOOK_AGAIN_SECONDS = 2.0
DRAIN_POLL_SECONDS = 0.2


def run(lanes: LaneRuns) -> RunReport:
    """Run lanes; while the source does not answer, deliver what is staged.

    Raises:
        ClusterUnreachable: the source does not answer (``report`` says how far the target is), or the target does not.
    """
    try:
        lanes.discover()
    except ClusterUnreachable as silent:
        if silent.cluster != lanes.flow.settings.source or not _worth_it(lanes):
            raise
        return _without_source(lanes, silent)
    return lanes.run()


def _worth_it(lanes: LaneRuns) -> bool:
    """Whether something is staged, or may be read from copies of the source, or there are topics to wait for in a continuous run."""
    lag = undelivered(Snapshot(lanes.flow))
    return bool(lag.lag_records) or (bool(lag.topics) and (not lanes.once or bool(lanes.flow.copies)))


def _without_source(lanes: LaneRuns, silent: ClusterUnreachable) -> RunReport:
    """Drain; a continuous run resumes normally when the source answers within ``source_wait``."""
    began = time.monotonic()
    watch = _Watch(lanes)
    drained = watch.drain()
    while not lanes.once and not watch.over(began):
        lanes.stop.wait(DRAIN_POLL_SECONDS)
    if not watch.back.is_set():
        silent.report = drained
        raise silent
    left = None if lanes.seconds is None else max(0.0, lanes.seconds - (time.monotonic() - began))
    return together(drained, replace(lanes, seconds=left).run())


class _Watch:
    """Polls the source while a run drains, and ends that run once the source answers."""

    def __init__(self, lanes: LaneRuns) -> None:
        self._lanes = lanes
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self.back = threading.Event()

    def drain(self) -> RunReport:
        """Deliver what is staged."""
        if not self._lanes.once:
            threading.Thread(target=self._look, name="source-watch", daemon=True).start()
        report = replace(self._lanes, drain=True, silent=True, once=True, stop=self._ended, observer=self._observe).run()
        self._ended.set()
        return report

    def over(self, began: float) -> bool:
        """Whether waiting for the source ends: it answers, or the time is over."""
        if self._failure is not None:
            raise self._failure
        waited = time.monotonic() - began
        limits = [limit for limit in (self._lanes.flow.settings.engine.source_wait, self._lanes.seconds) if limit is not None]
        return self.back.is_set() or self._lanes.stop.is_set() or waited >= min(limits)

    def _observe(self, progress: Progress) -> None:
        if self._lanes.stop.is_set():
            self._ended.set()
        if self._lanes.observer is not None:
            self._lanes.observer(progress)

    def _look(self) -> None:
        began = time.monotonic()
        while not self._ended.is_set() or not self.over(began):
            try:
                self._lanes.discover()
            except ClusterUnreachable:
                self._lanes.stop.wait(LOOK_AGAIN_SECONDS)
                continue
            except Exception as error:  # noqa: BLE001 - raised by the run's own thread
                self._failure = error
            else:
                self.back.set()
            self._ended.set()
            return


def together(first: RunReport, then: RunReport) -> RunReport:
    """Two consecutive runs as one: counters add up, topic states are those of the second."""
    before = {row.topic: row for row in first.topics}
    rows = tuple(
        replace(row, records=row.records + before[row.topic].records, bytes=row.bytes + before[row.topic].bytes)
        if row.topic in before
        else row
        for row in then.topics
    )
    states = {row.state for row in rows} | {"ok"}
    return replace(
        then, topics=rows, state=next(state for state in WORST_FIRST if state in states), records=first.records + then.records,
        bytes=first.bytes + then.bytes, seconds=first.seconds + then.seconds, micro_batches=first.micro_batches + then.micro_batches,
    )  # fmt: skip

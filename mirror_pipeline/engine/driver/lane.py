"""One run over one lane: the read loop, the write loop and the preparation of topics in parallel, watched by the run's own thread."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mirror_pipeline.buffer.place.lane_file import LaneFile, write_lane_file
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import open_to_others
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.maintain.thread import MaintenanceThread
from mirror_pipeline.engine.driver.progress import progress_of, report_of
from mirror_pipeline.engine.driver.read.loop import ReadLoop
from mirror_pipeline.engine.driver.topics.deletion import record_unread
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.engine.driver.topics.preparing import Preparing
from mirror_pipeline.engine.driver.write.loop import WriteLoop
from mirror_pipeline.errors import BufferUnusable, LaneLost, MirrorError, exit_code_of
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.reports import Observer, Progress, RunReport
from mirror_pipeline.topics.lanes import LaneTopic

log = logging.getLogger(__name__)

LANE_LOOK_SECONDS = 0.2
HEARTBEAT_SECONDS, RAREST_HEARTBEAT_SECONDS = 2.0, 8.0
# Each periodic task (progress, heartbeat, search for new topics) may use at most 1/SHARE of wall time, so it runs less often with
# thousands of topics.
SAVED_SHARE = 200
DISCOVER_SECONDS, RAREST_DISCOVER_SECONDS = 30.0, 120.0
# How long a stopped run waits for its running Spark jobs before it abandons them.
LAST_JOB_SECONDS = 120.0

Discover = Callable[[], list[LaneTopic]]


class LaneRun:
    """Copies the topics that ``discover`` names, until done, stopped, idle or out of time.

    ``seconds`` is the time budget (None: no limit); ``idle_seconds`` ends the run after that long without activity.
    """

    def __init__(
        self,
        context: LaneContext,
        discover: Discover,
        *,
        seconds: float | None = None,
        idle_seconds: float | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._context = context
        self._discover = discover
        self._seconds = seconds
        self._idle_seconds = idle_seconds
        self._observer = observer
        self._maintenance = MaintenanceThread(context)
        self._began = time.monotonic()
        self._started = time.time()
        self._total = 0
        self._show_at = self._beat_at = 0.0
        self._over = False

    def run(self) -> RunReport:
        """Run to the end.

        Raises:
            LaneBusy: another run holds the lane.
            ClusterUnreachable: a cluster was unreachable for too long; with a report if it was the source and all staged records are sent.
            BufferUnusable: buffer or ledger cannot be read or written.
        """
        engine = self._context.mirror.engine
        with lane_lock(self._context.store) as self._context.hold:
            if exposed := open_to_others(self._context.store):
                log.warning("buffer: %s", exposed)
            # Known: the preparation talks to both first.
            source = WireClient(self._context.source, timeout=engine.request_timeout, known=True)
            target = WireClient(self._context.target, timeout=engine.request_timeout, known=True)
            preparation = Preparation(self._context)
            try:
                return self._run(source, target, preparation)
            except BaseException as error:
                said = str(error) if isinstance(error, MirrorError) else f"unexpected {type(error).__name__}: {error}"
                self._heartbeat("failed", said, exit_code_of(error))
                raise
            finally:
                source.close()
                target.close()
                preparation.close()

    def _run(self, source: WireClient, target: WireClient, preparation: Preparation) -> RunReport:
        context = self._context
        context.spans.ensure()
        context.ledger.ensure()
        if not context.store.local:  # the last holder's lease may have ended while its process was only stopped
            context.spans.fence()
            context.ledger.fence()
        context.spans.discard_uncommitted(context.hold.check)  # a killed run's unfinished files
        works = self._works(source, target, preparation)
        self._totals()
        threads = [threading.Thread(target=work, name=name, daemon=True) for name, work in works.items()]
        search = None if context.once or context.drain else self._discover
        preparing = Preparing(context, preparation, search, lambda began: rarely(began, DISCOVER_SECONDS, RAREST_DISCOVER_SECONDS))
        beside = [threading.Thread(target=preparing.run, name="preparing", daemon=True)] if threads else []
        self._maintenance.start()
        for thread in (*threads, *beside):
            thread.start()
        try:
            self._watch(threads)
        except BaseException:
            context.stop.set()
            raise
        finally:
            preparing.over.set()
            self._join([*threads, *beside])
            seconds = time.monotonic() - self._began
            self._maintenance.end()
        if context.state.failure is not None:
            raise context.state.failure
        record_unread(context)
        if self._over or not context.stop.is_set():  # else an operator has ended it, and waits
            self._maintenance.last_look()
        self._show()
        report = report_of(context, seconds=seconds)
        if context.state.source_lost is not None:
            context.state.source_lost.report = report
            raise context.state.source_lost
        self._heartbeat("finished", "", report=report)
        return report

    def _works(self, source: WireClient, target: WireClient, preparation: Preparation) -> dict[str, Callable[[], None]]:
        """The run's threads, by name; none if it is to drain, nothing is staged, and no copy of the source can be asked."""
        context = self._context
        if context.drain:
            context.state.reading_over = not context.copies
            waiting = preparation.resume(self._discover())
            if not waiting and not context.copies:
                return {}
            reading = {"reading": ReadLoop(context, source, preparation.rules.reconsider).run} if context.copies else {}
            return {**reading, "writing": WriteLoop(context, target).run}
        read_loop = ReadLoop(context, source, preparation.rules.reconsider)
        try:
            preparation.start(self._discover())
            write_loop = WriteLoop(context, target)
            read_loop.refresh_ends()
        except BaseException:
            read_loop.end()
            raise
        return {"reading": read_loop.run, "writing": write_loop.run}

    def _totals(self) -> None:
        with self._context.state.lock:
            self._total = sum(p.lag for p in self._context.state.live())

    def _watch(self, threads: list[threading.Thread]) -> None:
        """Show progress, write the heartbeat, and stop the run when its time is up."""
        self._heartbeat("running", "")
        while any(thread.is_alive() for thread in threads):
            threads[-1].join(LANE_LOOK_SECONDS)
            now = time.monotonic()
            if now >= self._show_at:
                self._show()
            if now >= self._beat_at:
                self._heartbeat("running", "")
            with tolerate_buffer_errors():
                self._context.hold.check()
            if not self._context.once:
                self._context.state.try_again()
            if self._time_is_up(now):
                self._over = True
                self._context.stop.set()

    def _time_is_up(self, now: float) -> bool:
        state = self._context.state
        if self._seconds is not None and now - self._began >= self._seconds:
            return True
        return self._idle_seconds is not None and now - state.last_activity >= self._idle_seconds and self._nothing_to_do()

    def _nothing_to_do(self) -> bool:
        with self._context.state.lock:
            state = self._context.state
            beginning = state.source_lost is None and state.unready.keys() - state.topics.keys()
            return not beginning and all(p.lag == 0 for p in state.live()) and not any(p.pending for p in state.sendable())

    def _join(self, threads: list[threading.Thread]) -> None:
        with self._context.state.lock:
            self._context.state.lock.notify_all()
        deadline = time.monotonic() + LAST_JOB_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _progress(self) -> Progress:
        progress = progress_of(self._context, seconds=time.monotonic() - self._began)
        progress.total_records = max(self._total, progress.records + progress.lag_records)
        return progress

    def _show(self) -> None:
        if self._observer is not None:
            began = time.monotonic()
            self._observer(self._progress())
            self._show_at = rarely(began, 0.0, math.inf)

    def _heartbeat(self, state: str, message: str, exit_code: int = 0, *, report: RunReport | None = None) -> None:
        """Describe the run to others; at its end as ``report`` does."""
        began = time.monotonic()
        progress = progress_of(self._context, seconds=began - self._began, marks=True)
        for row in report.topics if report is not None else ():
            progress.topics[row.topic].state, progress.topics[row.topic].reason = row.state, row.reason
        shared = self._context.state
        file = LaneFile(
            progress, state, message, exit_code, time.time(),
            self._context.permits.revision, self._started, os.getpid(), socket.gethostname(),
            shared.target_down_since, shared.source_down_since, shared.buffer_full_since, self._maintenance.status(), self._over,
        )  # fmt: skip
        with tolerate_buffer_errors(), suppress(LaneLost):  # the status file is the new holder's then
            self._context.hold.check()
            write_lane_file(self._context.store, file)
        self._beat_at = rarely(began, self._context.store.spaced(HEARTBEAT_SECONDS), RAREST_HEARTBEAT_SECONDS)


@contextmanager
def tolerate_buffer_errors() -> Iterator[None]:
    """Log errors of the buffer that may pass; the caller tries again, and both loops wait."""
    try:
        yield
    except BufferUnusable as error:
        if not error.retryable:
            raise
        log.warning("%s", error.message)


def rarely(began: float, least: float, most: float) -> float:
    """When to repeat a task that began at ``began``: after ``SHARE`` times its duration, within ``least`` and ``most`` seconds."""
    return began + min(most, max(least, SAVED_SHARE * (time.monotonic() - began)))


"""Runs one lane or all lanes of a mirror, each in its own thread, on one Spark session."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.engine.driver.context import SamplesDiffer, TailsDiffer, VerifyStaged, open_context
from mirror_pipeline.engine.driver.lane import Discover, LaneRun
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.reports import Observer, Progress, RunReport

LANES_LOOK_SECONDS = 0.2
WORST_FIRST = ("halted", "behind", "ok")


@dataclass(frozen=True, slots=True)
class LaneRuns:
    """Lanes of one mirror that run in parallel; the fields are the arguments of ``Mirror.run``."""

    flow: Flow
    names: Sequence[str]
    once: bool
    seconds: float | None
    topics: Collection[str] | None
    idle_seconds: float | None
    observer: Observer | None
    stop: threading.Event
    session: Session
    verify_staged: VerifyStaged
    tails_differ: TailsDiffer | None = None
    samples_differ: SamplesDiffer | None = None
    drain: bool = False
    silent: bool = False
    """With ``drain``: because the source does not answer."""

    def discover(self) -> None:
        """Fail before Spark starts if the selection is wrong, the source unreachable, or the target the same cluster."""
        if not self.drain:  # which does not contact the source
            self.flow.meet()
        for name in self.names:
            self._discoverer(name)()

    def run(self) -> RunReport:
        """Run the lanes to their ends."""
        for name in self.names:
            with lane_lock(open_lane(self.flow.config.buffer, self.flow.name, name)):
                pass  # likewise if another run holds the lane
        began = time.monotonic()
        placement = self.flow.placement(self.session)
        placement.prepare()
        session_seconds = time.monotonic() - began

        def lane_run(name: str, watch: Observer | None) -> LaneRun:
            context = open_context(
                self.flow, name, placement, once=self.once, stop=self.stop, drain=self.drain, verify_staged=self.verify_staged,
                tails_differ=self.tails_differ, samples_differ=self.samples_differ,
            )  # fmt: skip
            if self.drain:  # it does not ask the source, so what the last run knew holds
                known = read_lane_file(context.store).source_down_since
                context.state.source_down_since = known or (time.time() if self.silent else None)
            return LaneRun(context, self._discoverer(name), seconds=self.seconds, idle_seconds=self.idle_seconds, observer=watch)

        if len(self.names) == 1:
            report = lane_run(self.names[0], self.observer).run()
        else:
            report = _side_by_side(self.flow.name, self.names, lane_run, self.observer, self.stop)
        return replace(report, session_seconds=session_seconds)

    def _discoverer(self, name: str) -> Discover:
        return self.flow.drainer(name, self.topics) if self.drain else self.flow.discoverer(name, self.topics)


def _side_by_side(
    mirror: str,
    names: Sequence[str],
    lane_run: Callable[[str, Observer | None], LaneRun],
    observer: Observer | None,
    stop: threading.Event,
) -> RunReport:
    seen: dict[str, Progress] = {}
    reports: dict[str, RunReport] = {}
    failures: list[Exception] = []
    silent: list[ClusterUnreachable] = []

    def watch(name: str) -> Observer:
        return lambda progress: seen.__setitem__(name, progress)

    def work(name: str) -> None:
        try:
            reports[name] = lane_run(name, watch(name)).run()
        except ClusterUnreachable as error:
            if error.report is None:
                failures.append(error)
                stop.set()
            else:  # the source is unreachable: this lane has sent what was staged, and so will the others
                reports[name] = error.report
                silent.append(error)
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(name,), name=name, daemon=True) for name in names]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            next(thread for thread in threads if thread.is_alive()).join(LANES_LOOK_SECONDS)
            if observer is not None and seen:
                observer(joined_progress(mirror, list(seen.values())))
    except BaseException:
        stop.set()
        raise
    if failures:
        raise failures[0]
    report = joined_report(mirror, [reports[name] for name in names])
    if silent:
        silent[0].report = report
        raise silent[0]
    return report


def joined_progress(mirror: str, parts: Sequence[Progress]) -> Progress:
    """The progress of several lanes as one."""
    known = [p.lag_seconds for p in parts if p.lag_seconds is not None]
    return Progress(
        mirror=mirror,
        lane=",".join(p.lane for p in parts),
        records=sum(p.records for p in parts),
        bytes=sum(p.bytes for p in parts),
        staged_records=sum(p.staged_records for p in parts),
        staged_bytes=sum(p.staged_bytes for p in parts),
        total_records=sum(p.total_records for p in parts),
        lag_records=sum(p.lag_records for p in parts),
        lag_seconds=max(known) if known else None,
        micro_batches=sum(p.micro_batches for p in parts),
        gaps=sum(p.gaps for p in parts),
        seconds=max(p.seconds for p in parts),
        seconds_staging=sum(p.seconds_staging for p in parts),
        seconds_producing=sum(p.seconds_producing for p in parts),
        target_down=next((p.target_down for p in parts if p.target_down), ""),
        source_down=next((p.source_down for p in parts if p.source_down), ""),
        buffer_full=next((p.buffer_full for p in parts if p.buffer_full), ""),
        copied=_added(p.copied for p in parts),
        left_out={what: why for p in parts for what, why in p.left_out.items()},
        ahead=_added(p.ahead for p in parts),
        spark_bytes=sum(p.spark_bytes for p in parts),
        spark_jobs=sum(p.spark_jobs for p in parts),
        topics={name: topic for p in parts for name, topic in p.topics.items()},
    )


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by name, of several lanes."""
    return dict(sum(map(Counter, parts), Counter()))


def joined_report(mirror: str, parts: Sequence[RunReport]) -> RunReport:
    """The reports of several lanes as one; the worst state counts."""
    states = {part.state for part in parts}
    return RunReport(
        mirror=mirror,
        state=next(state for state in WORST_FIRST if state in states),
        records=sum(p.records for p in parts),
        bytes=sum(p.bytes for p in parts),
        seconds=max(p.seconds for p in parts),
        topics=tuple(sorted((t for p in parts for t in p.topics), key=lambda t: t.topic)),
        micro_batches=sum(p.micro_batches for p in parts),
        staged_records=sum(p.staged_records for p in parts),
        staged_bytes=sum(p.staged_bytes for p in parts),
        lag_records=sum(p.lag_records for p in parts),
        target_down=next((p.target_down for p in parts if p.target_down), ""),
        source_down=next((p.source_down for p in parts if p.source_down), ""),
        copied=_added(p.copied for p in parts),
        left_out={what: why for p in parts for what, why in p.left_out.items()},
        spark_bytes=sum(p.spark_bytes for p in parts),
        driver_bytes=sum(p.driver_bytes for p in parts),
        spark_jobs=sum(p.spark_jobs for p in parts),
    )

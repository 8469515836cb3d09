"""Running one lane or all lanes of a mirror, each in a thread of its own, on one Spark session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mirror_pipeline.buffer.lock import lane_lock
from mirror_pipeline.buffer.store import open_lane
from mirror_pipeline.engine.lane import LaneRun
from mirror_pipeline.reports import Progress, RunReport

if TYPE_CHECKING:
    from mirror_pipeline.engine.facade import Mirror, Session

Observer = Callable[[Progress], None]
LOOK_SECONDS = 0.2
WORST_FIRST = ("halted", "behind", "ok")


def run(
    mirror: Mirror,
    names: Sequence[str],
    *,
    once: bool,
    seconds: float | None,
    topics: Collection[str] | None,
    idle_seconds: float | None,
    observer: Observer | None,
    stop: threading.Event,
    session: Session,
) -> RunReport:
    """Run the named lanes to their ends; see :meth:`Mirror.run`."""
    discoverers = {name: mirror.discoverer(name, topics) for name in names}
    for discoverer in discoverers.values():
        discoverer()  # a wrong selection or an unreachable source shows before Spark starts
    for name in names:
        with lane_lock(open_lane(mirror.config.buffer, mirror.name, name)):
            pass  # a lane that another run holds shows before Spark starts, too
    began = time.monotonic()
    runners = mirror.runners(session)
    runners.prepare()
    session_seconds = time.monotonic() - began

    def lane_run(name: str, watch: Observer | None) -> LaneRun:
        context = mirror.context(name, runners, once=once, stop=stop)
        return LaneRun(context, discoverers[name], seconds=seconds, idle_seconds=idle_seconds, observer=watch)

    alone = len(names) == 1
    report = lane_run(names[0], observer).run() if alone else _side_by_side(mirror.name, names, lane_run, observer, stop)
    return replace(report, session_seconds=session_seconds)


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

    def watch(name: str) -> Observer:
        return lambda progress: seen.__setitem__(name, progress)

    def work(name: str) -> None:
        try:
            reports[name] = lane_run(name, watch(name)).run()
        except Exception as problem:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(problem)
            stop.set()

    threads = [threading.Thread(target=work, args=(name,), name=name, daemon=True) for name in names]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            next(thread for thread in threads if thread.is_alive()).join(LOOK_SECONDS)
            if observer is not None and seen:
                observer(joined_progress(mirror, list(seen.values())))
    except BaseException:
        stop.set()
        raise
    if failures:
        raise failures[0]
    return joined_report(mirror, [reports[name] for name in names])


def joined_progress(mirror: str, parts: Sequence[Progress]) -> Progress:
    """Several lanes seen as one."""
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
        topics={name: topic for p in parts for name, topic in p.topics.items()},
    )


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
    )

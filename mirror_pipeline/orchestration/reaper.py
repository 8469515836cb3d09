"""Fails runs whose worker is gone.

Dagster's default launcher does not look after its workers: after a crash of the machine a run would stay
"started", and hold its lane's pool, until ``dagster/max_runtime`` ends it. A lane writes a heartbeat every two
seconds; a run without one is dead long before.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of the sensor at run time.
import contextlib
import json
import socket
from collections.abc import Mapping

import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.lag_decision import clock
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.reports import LaneStatus

INTERVAL_SECONDS = 15
STALE_SECONDS = 60.0
START_SECONDS = 300.0
"""Before the first heartbeat of a run: Python, Dagster and Spark start, on a busy machine."""


def reaper() -> dg.SensorDefinition:
    """The sensor for all mirrors."""

    @dg.sensor(
        name="reaper",
        description=f"Fails lane runs whose worker is gone or silent for {STALE_SECONDS:.0f} s, so that the next can start.",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def reap(context: dg.SensorEvaluationContext, mirrors: MirrorsResource) -> dg.SkipReason:
        return tick(context, mirrors)

    return reap


def tick(context: dg.SensorEvaluationContext, mirrors: MirrorsResource) -> dg.SkipReason:
    """Look at every started lane run. A suspicion by time alone must hold for two ticks: a laptop that wakes up looks dead at first."""
    suspects: set[str] = set(json.loads(context.cursor)) if context.cursor else set()
    started = dg.RunsFilter(tags={names.KIND_TAG: names.KIND_LANE}, statuses=[dg.DagsterRunStatus.STARTED])
    records = context.instance.get_run_records(started)
    words, still = [], set()
    for record in records:
        run = record.dagster_run
        status = _status(mirrors, run.tags)
        verdict, sure = judge(status, record.start_time or 0.0, step_thread.wall_clock())
        if not verdict:
            continue
        if not sure and run.run_id not in suspects:
            still.add(run.run_id)
            words.append(f"run {run.run_id[:8]} of lane {run.tags.get(names.LANE_TAG)}: {verdict}, looking once more")
        elif _fail(context.instance, run.run_id, verdict):
            words.append(f"run {run.run_id[:8]} of lane {run.tags.get(names.LANE_TAG)} failed: {verdict}")
    context.update_cursor(json.dumps(sorted(still)))
    return dg.SkipReason("; ".join(words) or f"{len(records)} lane runs, all give signs of life")


def judge(status: LaneStatus | None, started: float, now: float) -> tuple[str, bool]:
    """Why a started run seems dead ("" when it does not), and whether that is sure."""
    if status is None or status.started is None or status.heartbeat is None or status.started < started:
        # The status is an earlier run's: this one has not come so far yet.
        return (f"no sign of life since its start at {clock(started)}", False) if now - started > START_SECONDS else ("", False)
    if status.host == socket.gethostname() and status.pid and not step_thread.alive(status.pid):
        return f"its process {status.pid} is gone", True
    if status.state in ("running", "stale") and now - status.heartbeat > STALE_SECONDS:
        return f"no sign of life since {clock(status.heartbeat)}", False
    return "", False


def _status(mirrors: MirrorsResource, tags: Mapping[str, str]) -> LaneStatus | None:
    name, label = tags.get(names.MIRROR_TAG, ""), tags.get(names.LANE_TAG, "")
    try:
        lanes = mirrors.mirror(name).status().lanes
    except MirrorError:
        return None
    return next((lane for lane in lanes if names.lane_label(name, lane.lane) == label), None)


def _fail(instance: dg.DagsterInstance, run_id: str, why: str) -> bool:
    run = instance.get_run_by_id(run_id)
    if run is None or run.status is not dg.DagsterRunStatus.STARTED:
        return False  # it ended while we looked
    # A worker that hangs rather than is gone must not keep the lane's lock. What cannot be reached cannot be ended.
    with contextlib.suppress(Exception):
        instance.run_launcher.terminate(run_id)
    run = instance.get_run_by_id(run_id) or run
    instance.report_run_failed(run, message=f"Failed by the reaper: {why}.")
    return True

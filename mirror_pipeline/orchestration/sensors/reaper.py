"""Fail runs whose worker has died.

Dagster's default launcher does not monitor its workers: after a crash of the machine a run would stay
"started", and hold its lane's pool, until ``dagster/max_runtime`` ends it. A lane writes a heartbeat every two
seconds; a run without one is found long before that.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of the sensor at run time.
import contextlib
import json
import socket
from collections.abc import Mapping

import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.reports import LaneStatus
from mirror_pipeline.text import clock

INTERVAL_SECONDS = 15
STALE_SECONDS = 60.0
# Until the first heartbeat of a run: Python, Dagster and Spark start, on a busy machine.
START_SECONDS = 300.0


def reaper() -> dg.SensorDefinition:
    """The sensor for all mirrors."""

    @dg.sensor(
        name="reaper",
        description=f"Fails lane runs whose worker has died or sent no heartbeat for {STALE_SECONDS:.0f} s: the next run can start.",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def reap(context: dg.SensorEvaluationContext, mirrors: MirrorsResource) -> dg.SkipReason:
        return tick(context, mirrors)

    return reap


def tick(context: dg.SensorEvaluationContext, mirrors: MirrorsResource) -> dg.SkipReason:
    """Check every started lane run. Missing heartbeats must persist for two ticks: after a suspend every run looks dead at first."""
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
            words.append(f"run {run.run_id[:8]} of lane {run.tags.get(names.LANE_TAG)}: {verdict}, checking once more")
        elif _fail(context.instance, run.run_id, verdict):
            words.append(f"run {run.run_id[:8]} of lane {run.tags.get(names.LANE_TAG)} failed: {verdict}")
    context.update_cursor(json.dumps(sorted(still)))
    return dg.SkipReason("; ".join(words) or f"{len(records)} lane runs, all with heartbeats")


def judge(status: LaneStatus | None, started: float, now: float) -> tuple[str, bool]:
    """Why a started run seems dead ("" if it does not), and whether that is certain."""
    if status is None or status.started is None or status.heartbeat is None or status.started < started:
        # The status belongs to an earlier run: this one has not written one yet.
        return (f"no heartbeat since its start at {clock(started)}", False) if now - started > START_SECONDS else ("", False)
    if status.host == socket.gethostname() and status.pid and not step_thread.alive(status.pid):
        return f"its process {status.pid} has died", True
    if status.state in ("running", "stale") and now - status.heartbeat > STALE_SECONDS:
        return f"no heartbeat since {clock(status.heartbeat)}", False
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
        return False  # it ended meanwhile
    # A hanging worker must not hold the lane's lock. One on another machine may be out of reach.
    with contextlib.suppress(Exception):
        instance.run_launcher.terminate(run_id)
    run = instance.get_run_by_id(run_id) or run
    instance.report_run_failed(run, message=f"Failed by the reaper: {why}.")
    return True

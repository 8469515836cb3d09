"""Fail runs whose worker has died.

Dagster's default launcher does not monitor its workers: after a crash of the machine a run would stay
"started", and hold its lane's pool, until ``dagster/max_runtime`` ends it. A lane writes a heartbeat every two
seconds; a run without one is found long before that.

No clocks are compared, because worker and daemon may run on hosts whose clocks differ: a heartbeat that changes between two ticks is
alive, and silence is counted in ticks. What cannot be judged, for example because mirror.yaml does not load, is left alone.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of the sensor at run time.
import contextlib
import json
from dataclasses import dataclass, field

import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.project import Project
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.run_tags import process_of, sees_process
from mirror_pipeline.reports import LaneStatus
from mirror_pipeline.text import clock

REAPER_INTERVAL_SECONDS = 15
# Ticks without a new heartbeat: a minute.
SILENT_TICKS = 4
# Ticks until the first heartbeat, five minutes: Python, Dagster and Spark start, on a busy machine.
START_TICKS = 20


def reaper(project: Project) -> dg.SensorDefinition:
    """The sensor for all mirrors of a project."""

    @dg.sensor(
        name=names.REAPER,
        description="Fails lane runs of these mirrors whose worker has died, or sent no heartbeat for "
        f"{SILENT_TICKS * REAPER_INTERVAL_SECONDS} s: the next run can start.",
        minimum_interval_seconds=REAPER_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def reap(context: dg.SensorEvaluationContext, mirror_project: MirrorsResource) -> dg.SkipReason:
        return tick(context, project.id, mirror_project)

    return reap


@dataclass(slots=True)
class Silence:
    """The heartbeat that was last seen of a run ("" before its first one), and for how many ticks it has not changed."""

    beat: str | None = None
    ticks: int = 0

    def see(self, beat: str) -> None:
        """Note what a tick has found."""
        self.ticks = 0 if beat != self.beat else self.ticks + 1
        self.beat = beat


@dataclass(slots=True)
class _Lanes:
    """The status of every lane, read once a tick."""

    mirrors: MirrorsResource
    _known: dict[str, tuple[LaneStatus, ...]] = field(default_factory=dict)

    def of(self, run: dg.DagsterRun) -> LaneStatus | None:
        """What the run's own process wrote; None if the lane's status is of another one. Raises MirrorError: it cannot be read."""
        name, label = run.tags.get(names.MIRROR_TAG, ""), run.tags.get(names.LANE_TAG, "")
        if name not in self._known:
            self._known[name] = self.mirrors.mirror(name).status().lanes
        lanes = (lane for lane in self._known[name] if names.lane_label(name, lane.lane) == label)
        return next((lane for lane in lanes if (lane.host, lane.pid) == process_of(run)), None)


def tick(context: dg.SensorEvaluationContext, project: str, mirrors: MirrorsResource) -> dg.SkipReason:
    """Check every started lane run of the project."""
    started = dg.RunsFilter(
        tags={names.KIND_TAG: names.KIND_LANE, names.PROJECT_TAG: project}, statuses=[dg.DagsterRunStatus.STARTED]
    )
    runs = [record.dagster_run for record in context.instance.get_run_records(started)]
    runs = [run for run in runs if names.SHARED_TAG not in run.tags]
    known, lanes, words = _remembered(context.cursor), _Lanes(mirrors), dict[str, None]()
    kept: dict[str, Silence] = {}
    for run in runs:
        silence = kept[run.run_id] = known.get(run.run_id) or Silence()
        try:
            verdict = judge(run, silence, lanes)
        except MirrorError as error:
            words[f"cannot judge: {error}"] = None
            continue
        if verdict and _fail(context.instance, run.run_id, verdict):
            words[f"run {run.run_id[:8]} of lane {run.tags.get(names.LANE_TAG)} failed: {verdict}"] = None
        elif silence.ticks:
            words[f"run {run.run_id[:8]} of lane {run.tags.get(names.LANE_TAG)}: no new heartbeat, tick {silence.ticks}"] = None
    context.update_cursor(json.dumps({run_id: [silence.beat, silence.ticks] for run_id, silence in sorted(kept.items())}))
    return dg.SkipReason("; ".join(words) or f"{len(runs)} lane runs, all with heartbeats")


def judge(run: dg.DagsterRun, silence: Silence, lanes: _Lanes) -> str:
    """Why a started run is dead, "" if it is not known to be. Raises MirrorError: its lane's status cannot be read."""
    process = process_of(run)
    if process is not None and sees_process(run) and not step_thread.alive(process[1]):
        return f"its process {process[1]} has died"
    status = lanes.of(run)
    beat = status.heartbeat if status is not None else None
    silence.see("" if beat is None else repr(beat))
    if status is None or beat is None:
        return "no heartbeat since its start" if silence.ticks >= START_TICKS else ""
    ending = status.state not in ("running", "stale")
    return f"no heartbeat since {clock(beat)}" if silence.ticks >= SILENT_TICKS and not ending else ""


def _remembered(cursor: str | None) -> dict[str, Silence]:
    try:
        return {str(run_id): Silence(beat, int(ticks)) for run_id, (beat, ticks) in json.loads(cursor or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # a cursor of an earlier version


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

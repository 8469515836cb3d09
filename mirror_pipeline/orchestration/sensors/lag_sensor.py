"""One sensor per mirror: measure the lag, record it on the source assets, start lanes that have lag and no run."""

# No `from __future__ import annotations`: Dagster reads the annotations of the sensor at run time.
import zlib

import dagster as dg

from mirror_pipeline.errors import ClusterUnreachable, MirrorError
from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.orchestration import metadata, names, step_thread
from mirror_pipeline.orchestration.assets import BUDGET_SECONDS, lane_tags
from mirror_pipeline.orchestration.checks import copying_key
from mirror_pipeline.orchestration.freshness import fresh_events, unknown_events
from mirror_pipeline.orchestration.overview import Event, overview_events
from mirror_pipeline.orchestration.project import KnownMirror
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.sensors.lag_decision import LagDecision, LagMemory, Start, decide
from mirror_pipeline.orchestration.sensors.lane_facts import gather
from mirror_pipeline.reports import MirrorStatus

LAG_INTERVAL_SECONDS = 10
# Dagster abandons a tick after a minute; the sensor skips when measuring the lag takes longer than this.
LAG_LOOK_SECONDS = 10.0
JITTER = 0.1
# A run that copies nothing after this time is not about to: Python, Dagster and Spark start, on a busy machine.
STARTING_SECONDS = 300.0

# Mirrors whose last lag request has not returned; prevents requests from piling up on a cluster that hangs.
_lag_requests: set[str] = set()


def lag_sensor(mirror: KnownMirror, jobs: list[dg.JobDefinition]) -> dg.SensorDefinition:
    """The lag sensor of one mirror; ``jobs`` are those of its lanes that have topics."""

    @dg.sensor(
        name=mirror.called("lag"),
        description=f"Measures the lag of mirror `{mirror.name}` every {LAG_INTERVAL_SECONDS} s and starts the lanes that have lag. "
        "To stop the mirror, stop this sensor, then terminate the lanes' runs.",
        minimum_interval_seconds=LAG_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        tags={names.MIRROR_TAG: mirror.name},
        **({"jobs": jobs} if jobs else {}),  # type: ignore[arg-type]
    )
    def look_at_lag(context: dg.SensorEvaluationContext, mirror_project: MirrorsResource) -> dg.SensorResult | dg.SkipReason:
        return tick(context, mirror, mirror_project)

    return look_at_lag


def tick(context: dg.SensorEvaluationContext, mirror: KnownMirror, mirrors: MirrorsResource) -> dg.SensorResult | dg.SkipReason:
    """Measure and decide once. Errors of a cluster, the buffer or the configuration make it skip with a reason, never raise."""
    if mirror.topics is None:
        return dg.SkipReason("no catalogue of topics yet: the catalogue sensor creates it when the source cluster is reachable")
    if not mirror.topics:
        return dg.SkipReason("the mirror selects no topic: see topics.include in mirror.yaml, and `mirror plan`")
    try:
        lag, status, homes = step_thread.bounded_alone(
            lambda: _look(mirror, mirrors), LAG_LOOK_SECONDS, name=f"lag of {mirror.name}", at_work=_lag_requests, who=mirror.name,
            busy="the previous lag request has not returned",
        )  # fmt: skip
    except (MirrorError, TimeoutError) as error:
        return _without_source(context, mirror, mirrors, error)
    now = step_thread.wall_clock()
    memory = LagMemory(context.cursor)
    due = memory.see(lag, now)
    facts = memory.pace(gather(context.instance, mirror, status), now)
    decision = decide(lag, facts, homes=homes, now=now, stuck=memory.stuck())
    starting = bool(decision.starts) or any(lane.run is not None and now - lane.run.since < STARTING_SECONDS for lane in facts)
    glance = overview_events(Facts(mirror.name, status=status, lag=lag, lag_at=now, starting=starting), memory.overview, now)
    glance += fresh_events(mirror, lag, memory)
    events = [*glance, *(dg.AssetObservation(names.source_key(mirror.name, t.topic), metadata=metadata.of_topic_lag(t)) for t in due)]
    return _result(mirror, decision, events, memory.cursor())


def _look(mirror: KnownMirror, mirrors: MirrorsResource, *, source: bool = True) -> tuple[MirrorLag, MirrorStatus, dict[str, str]]:
    """Lag, status, and the lane of each topic; without the ``source`` the lag is what is staged."""
    live = mirrors.mirror(mirror.name)
    lag = live.lag() if source else live.undelivered()
    known = {topic.topic: topic.lane for topic in mirror.topics or ()} if source else {}
    unassigned = [topic.topic for topic in lag.topics if topic.topic not in known]
    return lag, live.status(), known | (mirrors.lanes_of(mirror.name, unassigned) if unassigned else {})


def _without_source(
    context: dg.SensorEvaluationContext, mirror: KnownMirror, mirrors: MirrorsResource, error: Exception
) -> dg.SensorResult | dg.SkipReason:
    """The source is unreachable: lanes with staged records can still deliver them."""
    unseen = _unseen(mirror, error)
    if not isinstance(error, TimeoutError) and not (isinstance(error, ClusterUnreachable) and error.cluster == mirror.config.source):
        return _blind(context, mirror, unseen)

    try:
        lag, status, homes = step_thread.bounded(
            lambda: _look(mirror, mirrors, source=False), LAG_LOOK_SECONDS, name=f"buffer of {mirror.name}"
        )
    except (MirrorError, TimeoutError):
        return _blind(context, mirror, unseen)
    if not lag.lag_records:
        return _blind(context, mirror, unseen)
    now, memory = step_thread.wall_clock(), LagMemory(context.cursor)
    decision = decide(lag, memory.pace(gather(context.instance, mirror, status), now), homes=homes, now=now)
    drain = LagDecision(decision.starts, (unseen, *decision.reasons))
    return _result(mirror, drain, _unseen_events(mirror, unseen, memory, now), memory.cursor())


def _blind(context: dg.SensorEvaluationContext, mirror: KnownMirror, unseen: str) -> dg.SensorResult:
    memory = LagMemory(context.cursor)
    events = _unseen_events(mirror, unseen, memory, step_thread.wall_clock())
    return dg.SensorResult(skip_reason=unseen, asset_events=events, cursor=memory.cursor())


def _unseen_events(mirror: KnownMirror, unseen: str, memory: LagMemory, now: float) -> list[Event]:
    glance = overview_events(Facts(mirror.name, error=unseen), memory.overview, now)
    return [*glance, *unknown_events(mirror, unseen, memory, now)]


def _unseen(mirror: KnownMirror, error: Exception) -> str:
    if isinstance(error, ClusterUnreachable):
        side = "target" if error.cluster == mirror.config.target else "source"
        return f"{side} cluster {error.cluster} unreachable: {error}"
    if isinstance(error, TimeoutError):
        return f"lag of mirror {mirror.name} unknown: {error} (source cluster {mirror.config.source})"
    return f"lag of mirror {mirror.name} unknown: {error}"


def _result(mirror: KnownMirror, decision: LagDecision, events: list[Event], cursor: str) -> dg.SensorResult:
    if not decision.starts:
        return dg.SensorResult(skip_reason="; ".join(decision.reasons), asset_events=events, cursor=cursor)
    return dg.SensorResult(run_requests=[_request(mirror, start) for start in decision.starts], asset_events=events, cursor=cursor)


def _request(mirror: KnownMirror, start: Start) -> dg.RunRequest:
    # No run_key: Dagster never starts a key twice, so a failed run would leave an idle topic waiting forever.
    label = start.facts.label
    op = mirror.called("lane", start.facts.lane)
    budget = budget_of(label)
    config = {"budget_seconds": budget, "whole_lane": True}
    return dg.RunRequest(
        job_name=start.facts.job,
        asset_selection=[names.target_key(mirror.name, topic) for topic in start.topics] or None,
        # The default is all checks of the assets, which includes the verification step and blocks its pool while the lane runs.
        asset_check_keys=[copying_key(mirror.name, topic) for topic in start.topics] if start.topics else None,
        run_config={"ops": {op: {"config": config}}},
        tags=lane_tags(mirror, label, budget),
    )


def budget_of(label: str) -> float:
    """A lane's time budget: up to a tenth less than the default, so that lanes do not all restart at once."""
    return round(BUDGET_SECONDS * (1 - JITTER * (zlib.crc32(label.encode()) % 1000) / 1000), 1)

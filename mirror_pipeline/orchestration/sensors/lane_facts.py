"""Facts about a lane for the sensor's decision: runs in flight, the engine's status, recent failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import dagster as dg

from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.project import KnownMirror
from mirror_pipeline.orchestration.run_tags import IN_FLIGHT
from mirror_pipeline.reports import LaneStatus, MirrorStatus

RECENT_RUNS = 10


@dataclass(frozen=True, slots=True)
class RunFact:
    """A run in flight: its Dagster status, and since when (seconds since the epoch)."""

    run_id: str
    status: str
    since: float


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """One lane at the time of a tick.

    ``failures`` counts the failed runs since the last successful one, ``halts`` the newest ones in a row that left a topic halted,
    ``ended`` when the newest run (``newest``) ended; ``cancelled`` is True when a user ended it.
    ``topics`` are those the loaded definitions have assets for.
    """

    lane: str
    label: str
    job: str
    topics: frozenset[str]
    run: RunFact | None = None
    status: LaneStatus | None = None
    failures: int = 0
    halts: int = 0
    cancelled: bool = False
    ended: float | None = None
    newest: str = ""

    @property
    def halted(self) -> dict[str, str]:
        """Topics that halted in the lane's newest run, with reason and hint."""
        if self.status is None:
            return {}
        return {t.topic: t.reason + (f" ({t.hint})" if t.hint else "") for t in self.status.topics if t.state == "halted"}


def lane_job_name(mirror: KnownMirror, lane: str) -> str:
    """The job that the lag sensor starts."""
    return mirror.called("lane_job", lane)


def gather(instance: dg.DagsterInstance, mirror: KnownMirror, status: MirrorStatus | None) -> list[LaneFacts]:
    """Facts on all lanes of a mirror."""
    described = {lane.lane: lane for lane in status.lanes} if status is not None else {}
    facts = []
    for lane in mirror.lanes:
        label = names.lane_label(mirror.name, lane)
        tags = {names.PROJECT_TAG: mirror.project, names.LANE_TAG: label}
        now = LaneFacts(
            lane=lane,
            label=label,
            job=lane_job_name(mirror, lane),
            topics=frozenset(topic.topic for topic in mirror.in_lane(lane)),
            run=run_in_flight(instance, tags),
            status=described.get(lane),
        )
        facts.append(_with_past(now, instance, tags))
    return facts


def run_in_flight(instance: dg.DagsterInstance, tags: dict[str, str]) -> RunFact | None:
    """The run with these tags that is queued, starting, running or ending."""
    in_flight = dg.RunsFilter(tags=tags, statuses=list(IN_FLIGHT))
    for record in instance.get_run_records(in_flight, limit=1):
        since = record.start_time or record.create_timestamp.timestamp()
        return RunFact(record.dagster_run.run_id, record.dagster_run.status.value, since)
    return None


def _with_past(facts: LaneFacts, instance: dg.DagsterInstance, tags: dict[str, str]) -> LaneFacts:
    """The facts with how the lane's last runs ended."""
    records = instance.get_run_records(dg.RunsFilter(tags=tags), limit=RECENT_RUNS)
    finished: Sequence[dg.RunRecord] = [r for r in records if r.dagster_run.is_finished]
    runs = [record.dagster_run for record in finished]
    failures = len(list(takewhile(lambda run: run.status is dg.DagsterRunStatus.FAILURE, runs)))
    halts = len(list(takewhile(lambda run: names.HALTED_TAG in run.tags, runs)))
    if not runs:
        return facts
    cancelled = runs[0].status is dg.DagsterRunStatus.CANCELED
    return replace(facts, failures=failures, halts=halts, cancelled=cancelled, ended=finished[0].end_time, newest=runs[0].run_id)

"""Jobs that free space: evict verified records from the buffer, prune old runs from Dagster."""

# No `from __future__ import annotations`: Dagster reads the annotations of the operations at run time.
import time
from datetime import UTC, datetime

import dagster as dg
from pydantic import Field

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import Project
from mirror_pipeline.orchestration.resource_types import MirrorsResource

EVICT_CRON = "7 * * * *"
PRUNE_CRON = "20 3 * * *"
MAX_RUNTIME_SECONDS = 3600
FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
TAGS = {names.KIND_TAG: names.KIND_UPKEEP, names.MAX_RUNTIME_TAG: str(MAX_RUNTIME_SECONDS)}
PAGE = 100


class PruneConfig(dg.Config):
    """What is kept of Dagster's own history."""

    older_than_days: float = Field(default=7.0, ge=0, description="Finished runs that ended longer ago are deleted.")
    upkeep_older_than_days: float = Field(default=1.0, ge=0, description="The same for eviction and pruning runs, of which there are many.")


def evict_job(project: Project) -> dg.JobDefinition:
    """Evicts records that are on the target, verified, and older than ``buffer.retention``.

    A running lane evicts its own records; this job is for lanes that do not run.
    """

    @dg.op(name="evict_buffers", config_schema={}, pool="mirror/upkeep/evict")
    def evict_buffers(context: dg.OpExecutionContext, mirrors: MirrorsResource) -> None:
        errors = []
        for mirror in project.mirrors:
            try:
                rows = mirrors.mirror(mirror.name).evict()
            except MirrorError as error:
                errors.append(f"{mirror.name}: {error}")
                continue
            errors += [f"{mirror.name}, {row.get('lane')}: {row.get('note')}" for row in rows if row.get("differences")]
            for row in rows:
                context.log.info(f"mirror {mirror.name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
        if errors:
            raise failure("eviction failed: " + "; ".join(errors))

    @dg.job(name="evict", description=evict_job.__doc__, tags=TAGS)
    def evict() -> None:
        evict_buffers()

    return evict


def prune_job() -> dg.JobDefinition:
    """Deletes old finished runs: Dagster never deletes events by itself. The record of what was copied is the ledger, not Dagster."""

    @dg.op(name="prune_runs", pool="mirror/upkeep/prune")
    def prune_runs(context: dg.OpExecutionContext, config: PruneConfig) -> None:
        upkeep = {names.KIND_TAG: names.KIND_UPKEEP}
        deleted = prune(context.instance, config.upkeep_older_than_days, keep=context.run_id, tags=upkeep)
        deleted += prune(context.instance, config.older_than_days, keep=context.run_id)
        context.log.info(f"deleted {deleted} runs")

    @dg.job(name="prune", description=prune_job.__doc__, tags=TAGS)
    def prune_dagster() -> None:
        prune_runs()

    return prune_dagster


def prune(instance: dg.DagsterInstance, days: float, *, keep: str = "", tags: dict[str, str] | None = None) -> int:
    """Delete finished runs that ended more than ``days`` ago, with their logs; return how many.

    A run that holds the newest materialization of an asset is kept: without it the asset would look as if it had never been materialized.
    """
    before = time.time() - days * 86_400
    kept = _newest_materializations(instance) | {keep}
    expired = [run_id for run_id in _finished_before(instance, before, tags) if run_id not in kept]
    for run_id in expired:
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        instance.delete_run(run_id)
    return len(expired)


def _finished_before(instance: dg.DagsterInstance, before: float, tags: dict[str, str] | None) -> list[str]:
    filters = dg.RunsFilter(statuses=list(FINISHED), tags=tags, created_before=datetime.fromtimestamp(before, UTC))
    records: list[dg.RunRecord] = []
    while page := instance.get_run_records(filters, limit=PAGE, cursor=records[-1].dagster_run.run_id if records else None):
        records += page
    return [record.dagster_run.run_id for record in records if (record.end_time or 0.0) <= before]


def _newest_materializations(instance: dg.DagsterInstance) -> set[str]:
    events = instance.get_latest_materialization_events(instance.get_asset_keys())
    return {entry.run_id for entry in events.values() if entry is not None}


def schedules(evict: dg.JobDefinition, prune_dagster: dg.JobDefinition) -> list[dg.ScheduleDefinition]:
    """Eviction once an hour (a running lane also evicts by itself), pruning once a night; UTC."""
    return [
        dg.ScheduleDefinition(name="evict_hourly", job=evict, cron_schedule=EVICT_CRON, default_status=dg.DefaultScheduleStatus.RUNNING),
        dg.ScheduleDefinition(
            name="prune_nightly", job=prune_dagster, cron_schedule=PRUNE_CRON, default_status=dg.DefaultScheduleStatus.RUNNING
        ),
    ]

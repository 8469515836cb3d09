"""Jobs that free space: evict verified records from the buffer, prune old runs from Dagster."""

# No `from __future__ import annotations`: Dagster reads the annotations of the operations at run time.
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg
from pydantic import Field

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import Project
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.run_tags import run_tags, step_tags

EVICT_CRON = "7 * * * *"
PRUNE_CRON = "20 3 * * *"
UPKEEP_MAX_SECONDS = 3600
FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
PAGE = 100


class PruneConfig(dg.Config):
    """What is kept of Dagster's own history."""

    older_than_days: float = Field(default=7.0, ge=0, description="Finished runs that ended longer ago are deleted.")
    upkeep_older_than_days: float = Field(default=1.0, ge=0, description="The same for eviction and pruning runs, of which there are many.")


def evict_job(project: Project) -> dg.JobDefinition:
    """Evicts records that are on the target, verified, and older than ``buffer.retention``.

    A running lane evicts its own records; this job is for lanes that do not run.
    """

    @dg.op(name=names.EVICT_OP, config_schema={}, pool=names.pool(project.id, "upkeep", "evict"), tags=step_tags(project.id))
    def evict_buffers(context: dg.OpExecutionContext, mirror_project: MirrorsResource) -> None:
        errors = []
        for mirror in project.mirrors:
            try:
                rows = mirror_project.mirror(mirror.name).evict()
            except MirrorError as error:
                errors.append(f"{mirror.name}: {error}")
                continue
            errors += [f"{mirror.name}, {row.get('lane')}: {row.get('note')}" for row in rows if row.get("differences")]
            for row in rows:
                context.log.info(f"mirror {mirror.name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
        if errors:
            raise failure("eviction failed: " + "; ".join(errors))

    @dg.job(name=names.EVICT_JOB, description=evict_job.__doc__, tags=_tags(project), executor_def=dg.in_process_executor)
    def evict() -> None:
        evict_buffers()

    return evict


def prune_job(project: Project) -> dg.JobDefinition:
    """Deletes old finished runs of these mirrors: Dagster never deletes events by itself. What was copied is recorded in the ledger."""

    @dg.op(name=names.PRUNE_OP, pool=names.pool(project.id, "upkeep", "prune"), tags=step_tags(project.id))
    def prune_runs(context: dg.OpExecutionContext, config: PruneConfig) -> None:
        deleted = prune(context.instance, project.id, config.upkeep_older_than_days, keep=context.run_id, kinds=[names.KIND_UPKEEP])
        deleted += prune(context.instance, project.id, config.older_than_days, keep=context.run_id)
        context.log.info(f"deleted {deleted} runs")

    @dg.job(name=names.PRUNE_JOB, description=prune_job.__doc__, tags=_tags(project), executor_def=dg.in_process_executor)
    def prune_dagster() -> None:
        prune_runs()

    return prune_dagster


def _tags(project: Project) -> dict[str, str]:
    return run_tags(project.id, names.KIND_UPKEEP, UPKEEP_MAX_SECONDS)


def prune(instance: dg.DagsterInstance, project: str, days: float, *, keep: str = "", kinds: Sequence[str] = names.RUN_KINDS) -> int:
    """Delete finished runs of a project that ended more than ``days`` ago, with their logs; return how many.

    Runs of others stay, and so does a run that also holds steps of others. A run that holds the newest materialization of an asset
    is kept: without it the asset would look as if it had never been materialized.
    """
    before = time.time() - days * 86_400
    kept = _newest_materializations(instance) | {keep}
    expired = [run_id for run_id in _finished_before(instance, project, before, kinds) if run_id not in kept]
    for run_id in expired:
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        instance.delete_run(run_id)
    return len(expired)


def _finished_before(instance: dg.DagsterInstance, project: str, before: float, kinds: Sequence[str]) -> list[str]:
    by_kind = {names.KIND_TAG: list(kinds)}
    filters = dg.RunsFilter(statuses=list(FINISHED), tags=by_kind, created_before=datetime.fromtimestamp(before, UTC))
    records: list[dg.RunRecord] = []
    while page := instance.get_run_records(filters, limit=PAGE, cursor=records[-1].dagster_run.run_id if records else None):
        records += page
    ours = [record for record in records if _belongs(record.dagster_run, project)]
    return [record.dagster_run.run_id for record in ours if (record.end_time or 0.0) <= before]


def _belongs(run: dg.DagsterRun, project: str) -> bool:
    """Whether the run is this project's alone. Runs of versions that did not name the project have only a kind."""
    return run.tags.get(names.PROJECT_TAG, project) == project and names.SHARED_TAG not in run.tags


def _newest_materializations(instance: dg.DagsterInstance) -> set[str]:
    events = instance.get_latest_materialization_events(instance.get_asset_keys())
    return {entry.run_id for entry in events.values() if entry is not None}


def schedules(evict: dg.JobDefinition, prune_dagster: dg.JobDefinition) -> list[dg.ScheduleDefinition]:
    """Eviction once an hour (a running lane also evicts by itself), pruning once a night; UTC."""
    return [
        dg.ScheduleDefinition(
            name=names.EVICT_SCHEDULE, job=evict, cron_schedule=EVICT_CRON, default_status=dg.DefaultScheduleStatus.RUNNING
        ),
        dg.ScheduleDefinition(
            name=names.PRUNE_SCHEDULE, job=prune_dagster, cron_schedule=PRUNE_CRON, default_status=dg.DefaultScheduleStatus.RUNNING
        ),
    ]

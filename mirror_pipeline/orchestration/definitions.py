"""``defs``: the Dagster definitions of all mirrors, built from mirror.yaml and the saved catalogues without asking a cluster.

``MIRROR_CONFIG`` names the mirror.yaml (default: the one of the working directory). Without one, or before the first
catalogue, the definitions still load and a sensor says what is missing.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.assets import BUDGET_SECONDS, lane_assets, lane_tags, source_spec
from mirror_pipeline.orchestration.backfill import backfill_asset, backfill_job, partitions
from mirror_pipeline.orchestration.checks import copying_key, verify_checks, verify_job, verify_schedule
from mirror_pipeline.orchestration.failover import failback_job, failover_job
from mirror_pipeline.orchestration.freshness import fresh_check
from mirror_pipeline.orchestration.groups import carries_groups, groups_check, groups_sensor, groups_spec
from mirror_pipeline.orchestration.maintenance import evict_job, prune_job, schedules
from mirror_pipeline.orchestration.overview import overview_check, overview_spec
from mirror_pipeline.orchestration.project import KnownMirror, Project, config_path, joints, read_project
from mirror_pipeline.orchestration.resource_types import MirrorsResource, SparkSessionResource
from mirror_pipeline.orchestration.sensors.catalogue_sensor import catalogue_sensor, file_sensor
from mirror_pipeline.orchestration.sensors.lag_sensor import lag_sensor
from mirror_pipeline.orchestration.sensors.lane_facts import lane_job_name
from mirror_pipeline.orchestration.sensors.reaper import reaper
from mirror_pipeline.topics.naming import partner_of


def build(project: Project, *, resources: dict[str, Any] | None = None) -> dg.Definitions:
    """The definitions of one project.

    Args:
        project: from :func:`read_project`.
        resources: replacements for the two resources; for tests.
    """
    bound = {
        names.MIRRORS_RESOURCE: MirrorsResource(config_path=str(project.path)), names.SPARK_RESOURCE: SparkSessionResource(),
        **(resources or {}),
    }  # fmt: skip
    evict, prune = evict_job(project), prune_job(project)
    assets: list[Any] = []
    jobs: list[Any] = [evict, prune]
    sensors: list[dg.SensorDefinition] = []
    checks: list[dg.AssetChecksDefinition] = []
    hourly: list[dg.ScheduleDefinition] = []
    joined = joints(project.mirrors)
    for mirror in project.mirrors:
        lanes = [lane for lane in mirror.lanes if mirror.in_lane(lane)]
        lane_jobs = [lane_job(mirror, lane) for lane in lanes]
        assets += [source_spec(mirror, topic, _written_by(joined.get((mirror.name, topic.topic)))) for topic in mirror.topics or ()]
        assets += [lane_assets(mirror, lane) for lane in lanes]
        parts = partitions(mirror.since)
        assets += [backfill_asset(mirror, topic, parts) for topic in mirror.topics or ()]
        jobs += lane_jobs + ([backfill_job(mirror)] if mirror.topics else [])
        if mirror.topics:
            checks += [fresh_check(mirror), verify_checks(mirror)]
            jobs.append(verify_job(mirror, checks[-1]))
            hourly.append(verify_schedule(mirror, jobs[-1]))
        jobs.append(failover_job(mirror))
        if partner_of([known.config for known in project.mirrors], mirror.config) is not None:
            jobs.append(failback_job(mirror))
        sensors += [lag_sensor(mirror, lane_jobs), catalogue_sensor(mirror)]
        assets.append(overview_spec(mirror))
        checks.append(overview_check(mirror))
        if carries_groups(mirror):
            assets.append(groups_spec(mirror))
            checks.append(groups_check(mirror))
            sensors.append(groups_sensor(mirror))
    sensors += [file_sensor(project), *([reaper(project)] if project.mirrors else [])]
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=jobs,
        sensors=sensors,
        schedules=[*schedules(evict, prune), *hourly],
        resources=bound,
    )


def _written_by(writer: tuple[str, str] | None) -> dg.AssetKey | None:
    return names.target_key(*writer) if writer is not None else None


def lane_job(mirror: KnownMirror, lane: str) -> Any:
    """The job that runs one lane."""
    label = names.lane_label(mirror.name, lane)
    topics = [topic.topic for topic in mirror.in_lane(lane)]
    copies = dg.AssetSelection.assets(*(names.target_key(mirror.name, topic) for topic in topics)).without_checks()
    return dg.define_asset_job(
        lane_job_name(mirror, lane),
        # Verification has its own job and schedule: a lane's run would wait for it and block the hourly one.
        selection=copies | dg.AssetSelection.checks(*(copying_key(mirror.name, topic) for topic in topics)),
        description=f"Runs lane {label}: copies its topics until the time budget ends or no record was copied for a while. "
        "The lag sensor starts it.",
        tags=lane_tags(mirror, label, BUDGET_SECONDS),
        # One process per run: a step in its own process would start another Python and another JVM, 20 s each.
        executor_def=dg.in_process_executor,
    )


defs = build(read_project(config_path()))

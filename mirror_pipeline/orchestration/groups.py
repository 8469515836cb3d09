"""The consumer groups of a mirror in Dagster: one asset, its check, and a sensor that carries them over while no lane runs."""

# No `from __future__ import annotations`: Dagster reads the annotations of the sensor and the check at run time.
import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import metadata, names, step_thread
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import KnownMirror
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.run_tags import run_tags, step_tags, tag_check_run
from mirror_pipeline.reports import GroupsReport
from mirror_pipeline.text import few

GROUPS_INTERVAL_SECONDS = 60
# Dagster abandons a tick after a minute.
GROUPS_ROUND_SECONDS = 30.0
GROUPS_MAX_SECONDS = 3600
# These states need an operator; the others resolve themselves.
STUCK = frozenset(("both_sides", "ahead", "not_carried"))
FINE_STATES = frozenset(("in_step", "moved"))


def carries_groups(mirror: KnownMirror) -> bool:
    """Whether the mirror selects consumer groups."""
    return mirror.config.groups is not None and bool(mirror.config.groups.include)


def groups_spec(mirror: KnownMirror) -> dg.AssetSpec:
    """The committed offsets on the target; the sensor materializes it."""
    return dg.AssetSpec(
        names.groups_key(mirror.name),
        description=f"Committed offsets of consumer groups of cluster `{mirror.config.source}`, translated and written on cluster "
        f"`{mirror.config.target}`.",
        group_name=names.group(mirror.name, "groups"),
        kinds={"kafka"},
        metadata={"mirror": mirror.name, "cluster": mirror.config.target},
    )


def groups_sensor(mirror: KnownMirror) -> dg.SensorDefinition:
    """One round a minute; while a lane runs, that run carries the groups and the sensor only reports."""

    @dg.sensor(
        name=mirror.called("groups"),
        description=f"Carries the consumer groups of mirror `{mirror.name}` over while no lane runs, and reports how they stand.",
        minimum_interval_seconds=GROUPS_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        tags={names.MIRROR_TAG: mirror.name},
    )
    def carry(mirror_project: MirrorsResource) -> dg.SensorResult | dg.SkipReason:
        return tick(mirror, mirror_project)

    return carry


def tick(mirror: KnownMirror, mirrors: MirrorsResource) -> dg.SensorResult | dg.SkipReason:
    """One round. Errors make it skip with a reason, never raise."""
    try:
        report = step_thread.bounded(
            lambda: mirrors.mirror(mirror.name).carry_groups(), GROUPS_ROUND_SECONDS, name=f"groups of {mirror.name}"
        )
    except (MirrorError, TimeoutError) as error:
        return dg.SkipReason(f"groups of mirror {mirror.name} not carried over: {error}")
    key, result = names.groups_key(mirror.name), in_step(mirror.name, report)
    evaluation = dg.AssetCheckEvaluation(
        asset_key=key, check_name=names.GROUPS_CHECK, passed=result.passed, metadata=result.metadata or {},
        severity=result.severity, description=result.description,
    )  # fmt: skip
    made = dg.AssetMaterialization(key, metadata=metadata.of_groups(report))
    return dg.SensorResult(skip_reason=result.description or "all groups are in step", asset_events=[made, evaluation])


def in_step(mirror: str, report: GroupsReport) -> dg.AssetCheckResult:
    """The check's result: an error where somebody must decide, a warning where a round will do."""
    states = {row.state for row in report.groups}
    late = sorted({row.group for row in report.groups if row.state not in FINE_STATES})
    whys = sorted({f"{row.group}: {row.why}" for row in report.groups if row.state not in FINE_STATES})
    return dg.AssetCheckResult(
        passed=not late and not report.notes,
        asset_key=names.groups_key(mirror),
        check_name=names.GROUPS_CHECK,
        severity=dg.AssetCheckSeverity.ERROR if states & STUCK else dg.AssetCheckSeverity.WARN,
        description="; ".join([*report.notes, *few(whys)]),
        metadata=metadata.of_groups(report),
    )


def groups_check(mirror: KnownMirror) -> dg.AssetChecksDefinition:
    """The check on demand; the sensor evaluates it too."""
    spec = dg.AssetCheckSpec(
        names.GROUPS_CHECK,
        asset=names.groups_key(mirror.name),
        description="Every selected group would continue on the target with exactly its next record.",
    )

    @dg.multi_asset_check(name=mirror.called("groups_check"), specs=[spec], op_tags=step_tags(mirror.project))
    def look(context: dg.AssetCheckExecutionContext, mirror_project: MirrorsResource) -> dg.AssetCheckResult:
        tag_check_run(context, run_tags(mirror.project, names.KIND_UPKEEP, GROUPS_MAX_SECONDS, mirror=mirror.name))
        try:
            return in_step(mirror.name, mirror_project.mirror(mirror.name).groups())
        except MirrorError as error:
            raise failure(f"groups of {mirror.name} could not be read: {error.message}", hint=error.hint) from None

    return look

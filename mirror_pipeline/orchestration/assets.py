"""A lane as one Dagster step: one long run that loops micro-batches over all its topics."""

# No `from __future__ import annotations`: Dagster reads the annotations of the step at run time.
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import metadata, names
from mirror_pipeline.orchestration.checks import BEHIND, HALTED, copying_spec, evaluation, verdict
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import KnownMirror, KnownTopic
from mirror_pipeline.orchestration.reporting import LaneReporter, TopicReport
from mirror_pipeline.orchestration.resource_types import MirrorsResource, SparkSessionResource
from mirror_pipeline.orchestration.run_config import plain_fields, settings_of
from mirror_pipeline.orchestration.step_thread import SupervisorGone, Worker
from mirror_pipeline.reports import Observer, Progress, RunReport
from mirror_pipeline.topics.lanes import lane_number

BUDGET_SECONDS = 1800.0
IDLE_SECONDS = 300.0
REPORT_SECONDS = 30.0
GRACE_SECONDS = 300
"""Between the end of the budget and the moment Dagster gives the run up: session start, last Spark jobs, shutdown."""
KINDS = {"kafka", "delta", "pyspark"}


class LaneConfig(dg.Config):
    """How long a lane's run works and how often it reports."""

    budget_seconds: float = Field(
        default=BUDGET_SECONDS, gt=0, description="The run ends after this time; the lag sensor starts the next one when there is lag."
    )
    idle_seconds: float = Field(default=IDLE_SECONDS, gt=0, description="The run ends earlier when nothing moved for this long.")
    report_interval: float = Field(default=REPORT_SECONDS, ge=1, description="Seconds between two materializations of one asset.")
    whole_lane: bool = Field(
        default=False,
        description="Copy every topic of the lane, also those that are not selected and those that appear while the run is on. "
        "The lag sensor sets it: a topic that gets records later need not wait for the next run.",
    )


def source_spec(mirror: KnownMirror, topic: KnownTopic, made_by: dg.AssetKey | None = None) -> dg.AssetSpec:
    """The topic on the source cluster; Dagster does not make it, the lag sensor observes it.

    ``made_by`` is the target asset of another mirror that writes this very topic: the two stand joined in the graph.
    """
    return dg.AssetSpec(
        names.source_key(mirror.name, topic.topic),
        deps=[made_by] if made_by is not None else [],
        description=f"Topic `{topic.topic}` on cluster `{mirror.config.source}`, {topic.partitions} partitions by the saved catalogue. "
        "Observations show its end offsets and how far the mirror is behind.",
        # Its box and its copy's have one title, the topic's name: they stand in groups of their own, of different kinds.
        group_name=names.group(mirror.name, f"from_{mirror.config.source}"),
        kinds={"kafka", "source"},
        metadata={"mirror": mirror.name, "lane": topic.lane, "cluster": mirror.config.source, "topic": topic.topic},
    )


def target_spec(mirror: KnownMirror, topic: KnownTopic) -> dg.AssetSpec:
    """The topic's copy on the target cluster."""
    return dg.AssetSpec(
        names.target_key(mirror.name, topic.topic),
        description=f"Topic `{topic.target_topic}` on cluster `{mirror.config.target}`: the copy of `{topic.topic}` of cluster "
        f"`{mirror.config.source}`, kept by mirror `{mirror.name}`.",
        group_name=names.group(mirror.name, topic.lane),
        kinds=KINDS,
        skippable=True,  # a topic without new records stays silent
        metadata={"mirror": mirror.name, "lane": topic.lane, "cluster": mirror.config.target, metadata.TARGET_TOPIC: topic.target_topic},
    )


def lane_assets(mirror: KnownMirror, lane: str) -> dg.AssetsDefinition:
    """The target assets of one lane, made by one step."""
    topics = mirror.in_lane(lane)
    outs, ins, deps = _ports(mirror, topics)
    label = names.lane_label(mirror.name, lane)
    number = lane_number(lane)

    @dg.multi_asset(
        name=mirror.called("lane", lane),
        description=f"Lane {label}: copies {len(topics)} topics of mirror `{mirror.name}`, micro-batch after micro-batch, "
        "until its time budget ends or nothing moved for a while.",
        outs=outs,
        ins=ins,
        internal_asset_deps=deps,
        can_subset=True,
        check_specs=[copying_spec(mirror, topic) for topic in topics],
        config_schema=plain_fields(LaneConfig),
        pool=names.lane_pool(mirror.name, lane),
    )
    def lane_step(
        context: dg.AssetExecutionContext, mirrors: MirrorsResource, spark: SparkSessionResource
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        config = settings_of(context, LaneConfig)
        tag_run(context, lane_tags(mirror.name, label, config.budget_seconds))
        selected = {names.topic_of(key): key for key in context.selected_asset_keys}
        only = None if config.whole_lane or len(selected) == len(topics) else set(selected)

        def copy(observer: Observer, stop: threading.Event) -> RunReport:
            return mirrors.mirror(mirror.name).run(
                seconds=config.budget_seconds,
                idle_seconds=config.idle_seconds,
                topics=only,
                lane=number,
                observer=observer,
                stop=stop,
                session=lambda: spark.session_for(mirrors.engine(mirror.name)),
            )

        yield from run_lane(context, config, mirror.name, label, selected, copy)

    return lane_step


def _ports(
    mirror: KnownMirror, topics: Collection[KnownTopic]
) -> tuple[dict[str, dg.AssetOut], dict[str, dg.AssetIn], dict[str, set[dg.AssetKey]]]:
    """Outputs and inputs by names with a hash: those Dagster derives from the keys would clash for ``a.b`` and ``a_b``."""
    outs, ins, deps = {}, {}, {}
    for topic in topics:
        out, source = names.unique("to", topic.topic), names.source_key(mirror.name, topic.topic)
        outs[out] = dg.AssetOut.from_spec(target_spec(mirror, topic), dagster_type=dg.Nothing, is_required=False)
        ins[names.unique("from", topic.topic)] = dg.AssetIn(key=source, dagster_type=dg.Nothing)
        deps[out] = {source}
    return outs, ins, deps


def run_lane(
    context: dg.AssetExecutionContext,
    config: LaneConfig,
    mirror: str,
    label: str,
    selected: dict[str, dg.AssetKey],
    copy: Callable[[Observer, threading.Event], RunReport],
) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
    """Watch one run, report on the way, give each selected topic its result and its check, then fail if one of them is not well.

    Dagster marks what a failed run has selected and not made. So every selected topic that is well gets a result then, also an
    idle one: only those that are not stay red.

    Raises:
        dagster.Failure: a selected topic halted, a cluster is down, or the run could not be made; never retried by Dagster, the
            lag sensor starts the next run.
    """
    reporter = LaneReporter(config.report_interval)
    with Worker(copy, name=f"mirror {label}") as worker:
        try:
            for progress in worker.watch():
                _log(context, mirror, reporter.due(progress))
            report = worker.report()
        except MirrorError as error:
            raise failure(f"lane {label}: {error.message}", hint=error.hint) from None
        except dg.DagsterExecutionInterruptedError:
            worker.end()
            if worker.last is not None:
                _log(context, mirror, reporter.final(worker.last))
            raise
        except SupervisorGone as error:
            worker.end()
            raise failure(f"lane {label}: {error}; the copy ended in order", hint="start `mirror up` again") from None
        last = worker.last
    why = _not_well(label, report, selected)
    if any(topic.state == HALTED for topic in report.topics):
        tag_run(context, {names.HALTED_TAG: "true"})
    if last is not None:
        yield from _results(context, mirror, selected, _closing(reporter, last, selected, each=why is not None or not config.whole_lane))
    if why is not None:
        raise why


def _closing(reporter: LaneReporter, last: Progress, selected: Collection[str], *, each: bool) -> list[TopicReport]:
    """The last word on the topics; with ``each`` also on selected ones that are idle, which otherwise stay silent."""
    closing = [said for topic in selected if (said := reporter.closing(last, topic)) is not None] if each else []
    reported = {said.topic for said in closing}
    return closing + [said for said in reporter.final(last) if said.topic not in reported]


def _results(
    context: dg.AssetExecutionContext, mirror: str, selected: dict[str, dg.AssetKey], reports: Collection[TopicReport]
) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
    said = {report.topic: report for report in reports}
    _log(context, mirror, [report for report in reports if not report.made or report.topic not in selected])
    for topic, key in selected.items():
        if topic in said and said[topic].made:
            yield dg.MaterializeResult(asset_key=key, metadata=said[topic].metadata)
    for check in sorted(context.selected_asset_check_keys):
        report = said.get(names.topic_of(check.asset_key))
        yield verdict(check.asset_key, report.state if report else "ok", report.metadata if report else {})


def _log(context: dg.AssetExecutionContext, mirror: str, reports: Collection[TopicReport]) -> None:
    for report in reports:
        key = names.target_key(mirror, report.topic)
        # A topic that is halted, or waits, must not look like one that was copied in the asset's history.
        made = dg.AssetMaterialization if report.made else dg.AssetObservation
        context.log_event(made(key, metadata=report.metadata))
        if report.turned:
            context.log_event(evaluation(key, report.state, report.metadata))


def _not_well(label: str, report: RunReport, selected: Collection[str]) -> dg.Failure | None:
    """Why a run has failed that came to its end, in one line; None when all its selected topics are well.

    A topic that was halted before is not selected by the lag sensor: it is said by its own asset and check, not by every run.
    """
    halted = [topic for topic in report.topics if topic.state == HALTED and topic.topic in selected]
    down = [f"{side} down: {why}" for side, why in (("target", report.target_down), ("source", report.source_down)) if why]
    behind = [topic for topic in report.topics if topic.state == BEHIND]
    if not halted and not (down and behind):
        return None
    lines = [f"{t.topic}: {t.reason}" + (f" ({t.hint})" if t.hint else "") for t in halted]
    noun = "topic" if len(halted) == 1 else "topics"
    said = [f"{len(halted)} {noun} halted, the others are copied. " + "; ".join(lines)] if halted and not down else lines
    return failure(
        f"lane {label}: " + "; ".join([*down, *said]),
        details={t.topic: {metadata.REASON: t.reason, metadata.HINT: t.hint} for t in [*halted, *behind]},
    )


def tag_run(context: dg.AssetExecutionContext, tags: dict[str, str]) -> None:
    """Tag the run that this step is in: runs started from an asset's page have none of their job's tags.

    These tags show the lag sensor that a lane is running, and Dagster how long the run may take.
    """
    if any(context.run.tags.get(key) != value for key, value in tags.items()):
        context.instance.add_run_tags(context.run.run_id, tags)


def lane_tags(mirror: str, label: str, budget_seconds: float) -> dict[str, str]:
    """The tags of a lane's run."""
    limit = int(budget_seconds) + GRACE_SECONDS
    return {names.MIRROR_TAG: mirror, names.LANE_TAG: label, names.KIND_TAG: names.KIND_LANE, names.MAX_RUNTIME_TAG: str(limit)}

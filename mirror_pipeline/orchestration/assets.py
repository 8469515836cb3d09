"""A lane as one Dagster step: one long run that copies micro-batches of all its topics."""

# No `from __future__ import annotations`: Dagster reads the annotations of the step at run time.
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.halts import PAUSED, PROMOTED, STANDBY
from mirror_pipeline.lags import BEHIND, HALTED
from mirror_pipeline.orchestration import metadata, names
from mirror_pipeline.orchestration.checks import copying_key, copying_spec, evaluation, verdict, waiting_since
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.outage import Outage
from mirror_pipeline.orchestration.project import KnownMirror, KnownTopic
from mirror_pipeline.orchestration.reporting import LaneReporter, TopicReport
from mirror_pipeline.orchestration.resource_types import MirrorsResource, SparkSessionResource
from mirror_pipeline.orchestration.run_config import plain_fields, settings_of
from mirror_pipeline.orchestration.run_tags import run_tags, step_tags, tag_run
from mirror_pipeline.orchestration.step_thread import SupervisorGone, Worker
from mirror_pipeline.reports import Observer, Progress, RunReport
from mirror_pipeline.topics.lanes import lane_number

BUDGET_SECONDS = 1800.0
STEP_IDLE_SECONDS = 300.0
REPORT_SECONDS = 30.0
# Between the end of the budget and the time at which Dagster ends the run: session start, last Spark jobs, shutdown.
STEP_GRACE_SECONDS = 300
ASSET_KINDS = {"kafka", "delta", "pyspark"}


class LaneConfig(dg.Config):
    """How long a lane's run takes and how often it reports."""

    budget_seconds: float = Field(
        default=BUDGET_SECONDS, gt=0, description="The run ends after this time; the lag sensor starts the next one when there is lag."
    )
    idle_seconds: float = Field(default=STEP_IDLE_SECONDS, gt=0, description="The run ends earlier if no record was copied for this long.")
    report_interval: float = Field(default=REPORT_SECONDS, ge=1, description="Seconds between two materializations of one asset.")
    whole_lane: bool = Field(
        default=False,
        description="Copy every topic of the lane, including topics that are not selected and topics created during the run. "
        "The lag sensor sets it, so that a topic that gets records later does not wait for the next run.",
    )


def source_spec(mirror: KnownMirror, topic: KnownTopic, written_by: dg.AssetKey | None = None) -> dg.AssetSpec:
    """The topic on the source cluster: an external asset, which the lag sensor observes.

    ``written_by`` is the target asset of another mirror that writes this topic: an edge of the graph joins the two.
    """
    return dg.AssetSpec(
        names.source_key(mirror.name, topic.topic),
        deps=[written_by] if written_by is not None else [],
        description=f"{_state_words(mirror, topic)}Topic `{topic.topic}` on cluster `{mirror.config.source}`, "
        f"{topic.partitions} partitions by the saved catalogue. Observations show its end offsets and the mirror's lag.",
        # Source and copy have the same title, the topic's name: separate groups and kinds tell them apart.
        group_name=names.group(mirror.name, f"from_{mirror.config.source}"),
        kinds={"kafka", "source"},
        metadata={"mirror": mirror.name, "lane": topic.lane, "cluster": mirror.config.source, "topic": topic.topic, **_state_facts(topic)},
        tags=_state_tags(topic),
    )


def target_spec(mirror: KnownMirror, topic: KnownTopic) -> dg.AssetSpec:
    """The topic's copy on the target cluster."""
    return dg.AssetSpec(
        names.target_key(mirror.name, topic.topic),
        description=f"{_state_words(mirror, topic)}Topic `{topic.target_topic}` on cluster `{mirror.config.target}`: the copy of "
        f"`{topic.topic}` of cluster `{mirror.config.source}`, kept by mirror `{mirror.name}`.",
        group_name=names.group(mirror.name, topic.lane),
        kinds=ASSET_KINDS,
        skippable=True,  # a topic without new records emits no event
        metadata={
            "mirror": mirror.name, "lane": topic.lane, "cluster": mirror.config.target, metadata.TARGET_TOPIC: topic.target_topic,
            **_state_facts(topic),
        },
        tags=_state_tags(topic),
    )  # fmt: skip


def _state_words(mirror: KnownMirror, topic: KnownTopic) -> str:
    """The first sentence on a topic that the mirror leaves alone."""
    return {
        PROMOTED: f"**Promoted**: applications write to `{topic.target_topic}`, mirror `{mirror.name}` does not. ",
        PAUSED: "**Paused** by an operator: `mirror resume` continues it. ",
        STANDBY: f"**Standby**: the other direction is in effect, mirror `{mirror.name}` copies nothing. ",
    }.get(topic.state, "")


def _state_facts(topic: KnownTopic) -> dict[str, str]:
    return {metadata.STATE: topic.state} if topic.state else {}


def _state_tags(topic: KnownTopic) -> dict[str, str]:
    return {names.STATE_TAG: topic.state} if topic.state else {}


def lane_assets(mirror: KnownMirror, lane: str) -> dg.AssetsDefinition:
    """The target assets of one lane, materialized by one step."""
    topics = mirror.in_lane(lane)
    outs, ins, deps = _ports(mirror, topics)
    label = names.lane_label(mirror.name, lane)
    number = lane_number(lane)

    @dg.multi_asset(
        name=mirror.called("lane", lane),
        description=f"Lane {label}: copies {len(topics)} topics of mirror `{mirror.name}`, micro-batch after micro-batch, "
        "until its time budget ends or no record was copied for a while.",
        outs=outs,
        ins=ins,
        internal_asset_deps=deps,
        can_subset=True,
        check_specs=[copying_spec(mirror, topic) for topic in topics],
        config_schema=plain_fields(LaneConfig),
        pool=names.pool(mirror.project, label),
        op_tags=step_tags(mirror.project),
    )
    def lane_step(
        context: dg.AssetExecutionContext, mirror_project: MirrorsResource, mirror_spark: SparkSessionResource
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        config = settings_of(context, LaneConfig)
        tag_run(context, lane_tags(mirror, label, config.budget_seconds))
        selected = {names.topic_of(key): key for key in context.selected_asset_keys}
        only = None if config.whole_lane or len(selected) == len(topics) else set(selected)

        def copy(observer: Observer, stop: threading.Event) -> RunReport:
            live, engine = mirror_project.opened(mirror.name)
            return live.run(
                seconds=config.budget_seconds,
                idle_seconds=config.idle_seconds,
                topics=only,
                lane=number,
                observer=observer,
                stop=stop,
                session=lambda: mirror_spark.session_for(engine),
            )

        yield from run_lane(context, config, mirror, label, selected, copy)

    return lane_step


def _ports(
    mirror: KnownMirror, topics: Collection[KnownTopic]
) -> tuple[dict[str, dg.AssetOut], dict[str, dg.AssetIn], dict[str, set[dg.AssetKey]]]:
    """Outputs and inputs with hashed names: the names that Dagster derives from the keys collide for ``a.b`` and ``a_b``."""
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
    mirror: KnownMirror,
    label: str,
    selected: dict[str, dg.AssetKey],
    copy: Callable[[Observer, threading.Event], RunReport],
) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
    """Watch one run, report during it, emit a result and a check for each selected topic, then fail if one of them failed.

    Dagster marks assets that a failed run selected and did not materialize. So a failed run emits a result for every healthy selected
    topic, even an idle one: only the failed topics stay red.

    Raises:
        dagster.Failure: a selected topic halted, a cluster is unreachable, or the run could not be started. Dagster does not
            retry it; the lag sensor starts the next run.
    """
    waited = lambda topic: waiting_since(context.instance, copying_key(mirror.name, topic))  # noqa: E731
    reporter = LaneReporter(config.report_interval, waited=waited)
    outage = Outage(context, mirror.config.source, mirror.config.target)
    worker = Worker(copy, name=f"mirror {label}")
    try:
        with worker:
            for progress in worker.watch():
                _log(context, mirror.name, reporter.due(progress))
                outage.see(progress)
            report = worker.report()
    except MirrorError as error:
        raise failure(f"lane {label}: {error.message}", hint=error.hint) from None
    except dg.DagsterExecutionInterruptedError:
        if worker.last is not None:
            _log(context, mirror.name, reporter.final(worker.last))
        raise
    except SupervisorGone as error:
        raise failure(f"lane {label}: {error}; the copy stopped cleanly", hint="start `mirror up` again") from None
    last = worker.last
    run_failure = _failure_of(label, report, selected)
    if any(topic.state == HALTED for topic in report.topics):
        tag_run(context, {names.HALTED_TAG: "true"})
    if last is not None:
        each = run_failure is not None or not config.whole_lane
        yield from _results(context, mirror.name, selected, _closing(reporter, last, selected, each=each))
    if run_failure is not None:
        raise run_failure


def _closing(reporter: LaneReporter, last: Progress, selected: Collection[str], *, each: bool) -> list[TopicReport]:
    """The last reports of the run; with ``each`` also on idle selected topics, which otherwise get none."""
    closing = [report for topic in selected if (report := reporter.closing(last, topic)) is not None] if each else []
    reported = {report.topic for report in closing}
    return closing + [report for report in reporter.final(last) if report.topic not in reported]


def _results(
    context: dg.AssetExecutionContext, mirror: str, selected: dict[str, dg.AssetKey], reports: Collection[TopicReport]
) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
    by_topic = {report.topic: report for report in reports}
    _log(context, mirror, [report for report in reports if not report.materializes or report.topic not in selected])
    for topic, key in selected.items():
        if topic in by_topic and by_topic[topic].materializes:
            yield dg.MaterializeResult(asset_key=key, metadata=by_topic[topic].metadata)
    for check in sorted(context.selected_asset_check_keys):
        report = by_topic.get(names.topic_of(check.asset_key))
        state, facts, lasting = (report.state, report.metadata, report.lasting) if report else ("ok", {}, False)
        yield verdict(check.asset_key, state, facts, lasting=lasting)


def _log(context: dg.AssetExecutionContext, mirror: str, reports: Collection[TopicReport]) -> None:
    for report in reports:
        key = names.target_key(mirror, report.topic)
        # In the asset's history, a halted or waiting topic must not look copied.
        event = dg.AssetMaterialization if report.materializes else dg.AssetObservation
        context.log_event(event(key, metadata=report.metadata))
        if report.state_changed:
            context.log_event(evaluation(key, report.state, report.metadata, lasting=report.lasting))


def _failure_of(label: str, report: RunReport, selected: Collection[str]) -> dg.Failure | None:
    """Why a finished run counts as failed, in one line; None if all its selected topics are healthy.

    The lag sensor does not select topics that were halted before: their own asset and check show the halt, not every run.
    """
    halted = [topic for topic in report.topics if topic.state == HALTED and topic.topic in selected]
    down = [f"{side} down: {why}" for side, why in (("target", report.target_down), ("source", report.source_down)) if why]
    behind = [topic for topic in report.topics if topic.state == BEHIND]
    if not halted and not (down and behind):
        return None
    lines = [f"{t.topic}: {t.reason}" + (f" ({t.hint})" if t.hint else "") for t in halted]
    noun = "topic" if len(halted) == 1 else "topics"
    parts = [f"{len(halted)} {noun} halted, the others are copied. " + "; ".join(lines)] if halted and not down else lines
    return failure(
        f"lane {label}: " + "; ".join([*down, *parts]),
        details={t.topic: {metadata.REASON: t.reason, metadata.HINT_KEY: t.hint} for t in [*halted, *behind]},
    )


def lane_tags(mirror: KnownMirror, label: str, budget_seconds: float) -> dict[str, str]:
    """The tags of a lane's run."""
    return run_tags(mirror.project, names.KIND_LANE, int(budget_seconds) + STEP_GRACE_SECONDS, mirror=mirror.name, lane=label)

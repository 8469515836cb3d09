"""Failover and failback as jobs: a dry run unless the run's configuration says otherwise; the answer is in the run, as markdown.

Whoever has the page's token may launch them with any configuration. So there is no choice that deletes records of a source, and every
value is checked at the launch: numbers, choices, and names of topics, which choose among those that the mirror has copied.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of the operations at run time.
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.features.failover.report import (
    COPY_ASIDE,
    LEAVE,
    PLANNED,
    UNPLANNED,
    FailbackOptions,
    FailbackReport,
    FailoverOptions,
    FailoverReport,
)
from mirror_pipeline.orchestration import metadata, names
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import KnownMirror
from mirror_pipeline.orchestration.resource_types import MirrorsResource, SparkSessionResource
from mirror_pipeline.orchestration.run_tags import run_tags, step_tags
from mirror_pipeline.orchestration.step_thread import SupervisorGone, Worker
from mirror_pipeline.reports import Observer

FAILOVER_MAX_SECONDS = 6 * 3600
FAILOVER_LOG_SECONDS = 30.0
UNDECIDED = "undecided"
# Rows of a table; the hand-over file has all of them.
SHOWN_LINES = 200
AGAIN = "launch it again: it continues where it stopped"

_TOPICS = dg.Field(dg.Array(dg.String), default_value=[], is_required=False, description="Only these source topics; none: all of them.")
_DRY_RUN = dg.Field(dg.Bool, default_value=True, is_required=False, description="Only look: nothing is copied, promoted or written.")
FAILOVER_FIELDS = {
    "mode": dg.Field(
        dg.Enum("FailoverMode", [dg.EnumValue(PLANNED), dg.EnumValue(UNPLANNED)]),
        default_value=PLANNED,
        is_required=False,
        description="`planned` copies to the end of the source, which must answer. `unplanned` delivers what is staged without it.",
    ),
    "topics": _TOPICS,
    "wait": dg.Field(
        dg.Float, default_value=60.0, is_required=False, description="Seconds to wait for producers on the source to end."
    ),
    "accept_differences": dg.Field(
        dg.Bool, default_value=False, is_required=False, description="Promote although the verification has found differences."
    ),
    "dry_run": _DRY_RUN,
}
FAILBACK_FIELDS = {
    "topics": _TOPICS,
    "tail": dg.Field(
        dg.Enum("FailbackTail", [dg.EnumValue(value) for value in (UNDECIDED, LEAVE, COPY_ASIDE)]),
        default_value=UNDECIDED,
        is_required=False,
        description="What becomes of records on the old source that never came over; while there are some, `undecided` is refused. "
        "`rebuild` is left to the command line.",
    ),
    "dry_run": _DRY_RUN,
}
Report = TypeVar("Report")


def failover_job(mirror: KnownMirror) -> dg.JobDefinition:
    """The job that promotes topics of one mirror."""

    @dg.op(name=mirror.called("failover_op"), config_schema=FAILOVER_FIELDS, pool=_pool(mirror), tags=step_tags(mirror.project))
    def failover_op(context: dg.OpExecutionContext, mirror_project: MirrorsResource, mirror_spark: SparkSessionResource) -> None:
        config = context.op_config

        def call(observer: Observer, stop: threading.Event) -> FailoverReport:
            unplanned = config["mode"] == UNPLANNED
            options = FailoverOptions(
                config["topics"] or None, config["dry_run"], unplanned, not unplanned, config["wait"], config["accept_differences"]
            )
            live, engine = mirror_project.opened(mirror.name)
            session = lambda: mirror_spark.session_for(engine)  # noqa: E731
            return live.failover(options, observer=observer, stop=stop, session=session)

        report = _watch(context, f"failover of {mirror.name}", call)
        context.add_output_metadata(metadata.of_cluster_change(report.state, failover_text(report)))
        for topic in report.topics if not report.dry_run else ():
            facts = metadata.of_promotion(topic)
            context.log_event(dg.AssetObservation(names.target_key(mirror.name, topic.topic), metadata=facts))

    @dg.job(
        name=mirror.called("failover"),
        description=f"Hands topics of mirror `{mirror.name}` over to applications on cluster `{mirror.config.target}`. A dry run unless "
        f"`dry_run: false`. Stop the sensor `{mirror.called('lag')}` and the lanes' runs first.",
        tags=_tags(mirror),
        executor_def=dg.in_process_executor,
    )
    def failover() -> None:
        failover_op()

    return failover


def failback_job(mirror: KnownMirror) -> dg.JobDefinition:
    """The job that opens the reverse of a mirror that was failed over."""

    @dg.op(name=mirror.called("failback_op"), config_schema=FAILBACK_FIELDS, pool=_pool(mirror), tags=step_tags(mirror.project))
    def failback_op(context: dg.OpExecutionContext, mirror_project: MirrorsResource, mirror_spark: SparkSessionResource) -> None:
        config = context.op_config
        tail = None if config["tail"] == UNDECIDED else config["tail"]
        options = FailbackOptions(config["topics"] or None, config["dry_run"], tail, may_rebuild=False)

        def call(observer: Observer, stop: threading.Event) -> FailbackReport:
            live, engine = mirror_project.opened(mirror.name)
            session = lambda: mirror_spark.session_for(engine)  # noqa: E731
            return live.failback(options, observer=observer, stop=stop, session=session)

        report = _watch(context, f"failback of {mirror.name}", call)
        context.add_output_metadata(metadata.of_cluster_change(report.state, failback_text(report)))

    @dg.job(
        name=mirror.called("failback"),
        description=f"After a failover of mirror `{mirror.name}`, opens the mirror of the other direction. A dry run unless "
        "`dry_run: false`.",
        tags=_tags(mirror),
        executor_def=dg.in_process_executor,
    )
    def failback() -> None:
        failback_op()

    return failback


def _pool(mirror: KnownMirror) -> str:
    return names.pool(mirror.project, mirror.name, "failover")


def _tags(mirror: KnownMirror) -> dict[str, str]:
    return run_tags(mirror.project, names.KIND_FAILOVER, FAILOVER_MAX_SECONDS, mirror=mirror.name)


def _watch(context: dg.OpExecutionContext, label: str, call: Callable[[Observer, threading.Event], Report]) -> Report:
    """The answer of a call in its own thread; terminating the run stops it before the promotion, or after it."""
    with Worker(call, name=label) as worker:
        logged = 0.0
        try:
            for progress in worker.watch():
                if progress.seconds - logged >= FAILOVER_LOG_SECONDS:
                    logged = progress.seconds
                    context.log.info(f"{progress.records:,} records copied, lag {progress.lag_records:,}")
            return worker.report()
        except MirrorError as error:
            raise failure(f"{label}: {error.message}", hint=error.hint) from None
        except SupervisorGone as error:
            raise failure(f"{label}: {error}", hint=AGAIN) from None


def failover_text(report: FailoverReport) -> str:
    """The report as markdown."""
    head = [
        f"**{report.mode} failover {report.number} of {report.mirror}, from {report.source} to {report.target}: {_state(report)}**",
        f"Bootstrap servers of {report.target}: `{','.join(report.bootstrap_servers)}`",
    ]
    places = [(t.topic, t.target_topic, p.partition, p.source_offset, p.target_offset) for t in report.topics for p in t.partitions]
    groups = [(g.group, g.target_topic, g.partition, "" if g.offset is None else g.offset, g.why) for g in report.groups]
    lines = [f"not copied yet: {line}" for line in report.producing]
    for gap in report.missing:
        until = "" if gap.end is None else f" to {gap.end}"
        lines.append(f"missing: {gap.topic}[{gap.partition}] from offset {gap.start}{until}: {gap.why}")
    lines += [*report.notes, *([f"written to `{report.file}`"] if report.file else [])]
    columns = ("topic", "target", "partition", "source offset", "target offset")
    return _page(head, lines, (columns, places), (("group", "topic", "partition", "offset", ""), groups))


def failback_text(report: FailbackReport) -> str:
    """The report as markdown."""
    head = [f"**failback {report.number} of {report.mirror} by mirror {report.reverse}: {_state(report)}**"]
    topics = [(t.topic, t.copied, t.target_topic) for t in report.topics]
    tail = [(t.topic, t.partition, t.start, t.end, t.lost) for t in report.tail]
    lines = [f"copied aside: {topic} to {into}" for topic, into in report.aside]
    columns = ("never came over", "partition", "from offset", "to offset", "deleted there")
    return _page(head, lines, (("topic", "copied", "to"), topics), (columns, tail))


def _state(report: FailoverReport | FailbackReport) -> str:
    return f"{report.state}, a dry run: nothing was changed" if report.dry_run else report.state


def _page(head: Sequence[str], lines: Sequence[str], *tables: tuple[Sequence[str], Sequence[Sequence[Any]]]) -> str:
    parts = [*head, *("\n".join(_table(columns, rows)) for columns, rows in tables if rows)]
    more = [f"- and {len(lines) - SHOWN_LINES} more"] if len(lines) > SHOWN_LINES else []
    listed = [f"- {line}" for line in lines[:SHOWN_LINES]] + more
    return "\n\n".join([*parts, *(["\n".join(listed)] if listed else [])])


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterable[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    yield from (f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in row)} |" for row in rows[:SHOWN_LINES])
    if len(rows) > SHOWN_LINES:
        yield f"| and {len(rows) - SHOWN_LINES} more |"

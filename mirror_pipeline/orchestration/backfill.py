"""Past time ranges of a topic as a partitioned asset: a user picks hours (or days) in the UI, one run copies them all."""

# No `from __future__ import annotations`: Dagster reads the annotations of the step at run time.
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast, get_args

import dagster as dg
from pydantic import Field

from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.orchestration import metadata, names
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import KnownMirror, KnownTopic
from mirror_pipeline.orchestration.resource_types import MirrorsResource, SparkSessionResource
from mirror_pipeline.orchestration.run_config import plain_fields, settings_of
from mirror_pipeline.orchestration.run_tags import run_tags, step_tags, tag_run
from mirror_pipeline.orchestration.step_thread import SupervisorGone, Worker
from mirror_pipeline.reports import BackfillReport, Observer, Progress, RecordSource

PARTITION_ENV = "MIRROR_BACKFILL_PARTITION"
START_ENV = "MIRROR_BACKFILL_START"
# For mirrors whose first catalogue was saved by a version that did not record the time.
DEFAULT_START = "2024-01-01"
BACKFILL_MAX_SECONDS = 24 * 3600
BACKFILL_LOG_SECONDS = 30.0
# So much may be all there is, soon after the first catalogue, and is nobody's accident.
A_FEW = timedelta(hours=24)


class BackfillConfig(dg.Config):
    """Where a backfill writes, and where its records come from."""

    into: str = Field(
        default="",
        description="Target topic. Empty: the mirrored name if that topic is empty on the target, else the mirrored name with the suffix "
        "`.backfill`. A topic that the mirror keeps up to date is refused: old records would follow newer ones.",
    )
    source: str = Field(
        default="auto",
        description="Where the records come from. `auto`: the source cluster, and the archive (`buffer.archive`) for what the source has "
        "deleted. `buffer`: buffer and archive only. `cluster`: the source only.",
    )
    everything: bool = Field(
        default=False,
        description="True: copy all hours there are. Without it such a run is refused: *Materialize all* starts it for all topics.",
    )


def partitions(since: int = 0) -> dg.TimeWindowPartitionsDefinition:
    """Hours (or days: ``MIRROR_BACKFILL_PARTITION=daily``) in UTC since ``MIRROR_BACKFILL_START``.

    By default they start in the month before the mirror's first catalogue was saved (``since``, milliseconds since the epoch): few
    sources retain more, and the UI shows each unfilled hour as missing. The start is stable: Dagster identifies partitions by time.

    Raises:
        DagsterInvalidDefinitionError: the partition size is neither hourly nor daily.
    """
    size = os.environ.get(PARTITION_ENV) or "hourly"
    start = os.environ.get(START_ENV) or (_month_before(since) if since else DEFAULT_START)
    if size == "daily":
        return dg.DailyPartitionsDefinition(start_date=start)
    if size != "hourly":
        raise dg.DagsterInvalidDefinitionError(f"{PARTITION_ENV} is {size!r}; use hourly or daily")
    return dg.HourlyPartitionsDefinition(start_date=f"{start}-00:00")


def _month_before(milliseconds: int) -> str:
    first = datetime.fromtimestamp(milliseconds / 1000, UTC).replace(day=1)
    return f"{first - timedelta(days=1):%Y-%m}-01"


def backfill_asset(mirror: KnownMirror, topic: KnownTopic, parts: dg.TimeWindowPartitionsDefinition) -> dg.AssetsDefinition:
    """The partitioned asset of one topic; a range of partitions is one run."""
    spec = dg.AssetSpec(
        names.backfill_key(mirror.name, topic.topic),
        deps=[names.source_key(mirror.name, topic.topic)],
        description=f"Past records of `{topic.topic}`, by record time, copied once into `{topic.target_topic}` on cluster "
        f"`{mirror.config.target}` while that is empty, else into `{topic.target_topic}.backfill`, "
        "or where run config `into` says. Select the time range and materialize.",
        # Apart from the groups of the mirror: they can be hidden together.
        group_name=names.backfill_group(mirror.name),
        kinds={"kafka", "backfill"},
        partitions_def=parts,
        metadata={"mirror": mirror.name, metadata.TARGET_TOPIC: topic.target_topic},
    )

    @dg.multi_asset(
        name=mirror.called("backfill", topic.topic),
        specs=[spec],
        backfill_policy=dg.BackfillPolicy.single_run(),
        config_schema=plain_fields(BackfillConfig),
        pool=names.pool(mirror.project, mirror.name, "backfill", topic.topic),
        op_tags=step_tags(mirror.project),
    )
    def backfill_step(
        context: dg.AssetExecutionContext, mirror_project: MirrorsResource, mirror_spark: SparkSessionResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        config = settings_of(context, BackfillConfig)
        tag_run(context, _tags(mirror))
        window = context.partition_time_window
        if not config.everything:
            _refuse_everything(window, parts)
        bounds = tuple(int(moment.timestamp() * 1000) for moment in (window.start, window.end))

        def copy(observer: Observer, stop: threading.Event) -> BackfillReport:
            live, engine = mirror_project.opened(mirror.name)
            session = mirror_spark.session_for(engine)
            into = config.into or live.backfill_target(topic.topic)
            place = record_source(config.source)
            return live.backfill(topic.topic, *bounds, into=into, source=place, observer=observer, stop=stop, session=session)

        label = f"backfill of {topic.topic} from {window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M} UTC"
        report = _watch(context, label, Worker(copy, name=label))
        yield dg.MaterializeResult(asset_key=spec.key, metadata=metadata.of_backfill(report))

    return backfill_step


def _refuse_everything(window: dg.TimeWindow, parts: dg.TimeWindowPartitionsDefinition) -> None:
    """Raise Failure for a run of all partitions, which one click on a page full of assets starts for every topic."""
    first, last = parts.get_first_partition_window(), parts.get_last_partition_window()
    if first is None or last is None or window.start > first.start or window.end - window.start <= A_FEW:
        return
    if window.end >= last.end - (last.end - last.start):  # a partition may have ended since it was launched
        raise failure(
            f"this is every hour since {window.start:%Y-%m-%d}: nothing was copied",
            hint="choose a time range, or set `everything: true` in the run configuration if all of it is meant",
        )


def record_source(name: str) -> RecordSource:
    """The place of that name. Raises UsageError for another name."""
    for known in get_args(RecordSource):
        if name == known:
            return cast(RecordSource, known)
    raise UsageError(f"source {name!r} is none of {', '.join(get_args(RecordSource))}", hint="correct the run configuration")


def _tags(mirror: KnownMirror) -> dict[str, str]:
    return run_tags(mirror.project, names.KIND_BACKFILL, BACKFILL_MAX_SECONDS, mirror=mirror.name)


def _watch(context: dg.AssetExecutionContext, label: str, worker: Worker[BackfillReport]) -> BackfillReport:
    with worker:
        logged = 0.0
        try:
            for progress in worker.watch():
                if progress.seconds - logged >= BACKFILL_LOG_SECONDS:
                    logged = progress.seconds
                    context.log.info(_line(progress))
            report = worker.report()
        except MirrorError as error:
            raise failure(f"{label}: {error.message}", hint=error.hint) from error
        except SupervisorGone as error:
            raise failure(f"{label}: {error}", hint="launch it again: it continues where it stopped") from error
    left = [topic for topic in report.run.topics if topic.state != "ok"]
    if left:
        raise failure(f"{label}: {left[0].state}: {left[0].reason}", hint=left[0].hint or "launch it again: it continues where it stopped")
    return report


def _line(progress: Progress) -> str:
    return f"{progress.records:,} of {progress.total_records:,} records, {progress.bytes:,} bytes after {progress.seconds:.0f} s"


def backfill_job(mirror: KnownMirror) -> Any:
    """All backfill assets of a mirror, apart from its lanes: other tags, other limits."""
    return dg.define_asset_job(
        mirror.called("backfill_job"),
        selection=[names.backfill_key(mirror.name, topic.topic) for topic in mirror.topics or ()],
        description=f"Copies past time ranges of topics of mirror `{mirror.name}`. One run for each range.",
        tags=_tags(mirror),
        executor_def=dg.in_process_executor,
    )

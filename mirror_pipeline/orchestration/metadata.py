"""Names of the metadata on assets. Fixed: the UI plots each numeric one over all events of the asset.

docs/dagster.md explains every name; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from mirror_pipeline.features.failover.report import HandedTopic
from mirror_pipeline.halts import PROMOTED
from mirror_pipeline.lags import TopicLag
from mirror_pipeline.reports import BackfillReport, GroupsReport, Progress, TopicProgress
from mirror_pipeline.verdicts import VerifyReport, difference_json

LAG_RECORDS = "lag_records"
LAG_SECONDS = "lag_seconds"
EXPIRES_SECONDS = "expires_seconds"
HELD_RECORDS = "held_records"
RECORDS = "records"
BYTES = "bytes"
RECORDS_PER_SECOND = "records_per_second"
BYTES_PER_SECOND = "bytes_per_second"
MICRO_BATCHES = "micro_batches"
SECONDS = "seconds"
SECONDS_STAGING = "seconds_staging"
SECONDS_PRODUCING = "seconds_producing"
STAGED_RECORDS = "staged_records"
SPARK_BYTES = "spark_bytes"
DRIVER_BYTES = "driver_bytes"
SPARK_JOBS = "spark_jobs"
BYTES_BY_COPY = "bytes_by_copy"
STAGED_BYTES = "staged_bytes"
GAPS_KEY = "gaps"
POSITIONS = "positions"
END_OFFSETS = "end_offsets"
OFFSET_RANGES = "offset_ranges"
STATE = "state"
CODE = "code"
REASON = "reason"
HINT_KEY = "hint"
TARGET_TOPIC = "target_topic"
TARGET_DOWN = "target_down"
SINCE = "since"
FROM_TIME = "from_time"
TO_TIME = "to_time"
LEAVES_KEY = "leaves"
DIFFERENCES = "differences"
FIRST_DIFFERENCES = "first_differences"
EXPIRED = "expired"
GROUPS = "groups"
GROUPS_NOT_IN_STEP = "groups_not_in_step"
RECORDS_BEHIND = "records_behind"
LOSS = "lost_by_a_failover_now"
REPORT = "report"
METADATA_DIFFERENCES = 20

METADATA_NAMES = frozenset(
    (
        LAG_RECORDS, LAG_SECONDS, EXPIRES_SECONDS, HELD_RECORDS, RECORDS, BYTES, RECORDS_PER_SECOND, BYTES_PER_SECOND, MICRO_BATCHES,
        SECONDS, SECONDS_STAGING, SECONDS_PRODUCING, STAGED_RECORDS, STAGED_BYTES, SPARK_BYTES, DRIVER_BYTES, SPARK_JOBS, BYTES_BY_COPY,
        GAPS_KEY, POSITIONS, END_OFFSETS, OFFSET_RANGES, STATE,
        CODE, REASON, HINT_KEY, SINCE, TARGET_TOPIC, TARGET_DOWN, FROM_TIME, TO_TIME,
        LEAVES_KEY, DIFFERENCES, FIRST_DIFFERENCES, EXPIRED, GROUPS, GROUPS_NOT_IN_STEP, RECORDS_BEHIND, LOSS,
        REPORT,
    )
)  # fmt: skip
Metadata = dict[str, Any]


def _numbers(values: Mapping[int, int]) -> dg.MetadataValue[Any]:
    return dg.MetadataValue.json({str(number): values[number] for number in sorted(values)})


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _optional(name: str, value: Any) -> Metadata:
    return {} if value in (None, "") else {name: value}


def of_topic_progress(
    progress: Progress, topic: TopicProgress, *, started_at: Mapping[int, int], rates: tuple[float, float], since: float
) -> Metadata:
    """Metadata of a target asset's event while its lane runs.

    Records, bytes and positions are the topic's, since the run began; micro-batches, seconds, gaps and what is
    staged are the lane's. ``started_at`` holds the positions at the run's start, ``rates`` records and bytes a second, ``since`` when
    the topic's state began (seconds since the epoch).
    """
    ranges = {str(n): [started_at.get(n, position), position] for n, position in sorted(topic.position.items())}
    return {
        LAG_RECORDS: topic.lag_records,
        **_optional(LAG_SECONDS, _tenths(progress.lag_seconds if topic.lag_records or progress.lag_seconds is None else 0.0)),
        RECORDS: topic.records,
        BYTES: topic.bytes,
        RECORDS_PER_SECOND: round(rates[0], 1),
        BYTES_PER_SECOND: float(round(rates[1])),
        MICRO_BATCHES: progress.micro_batches,
        SECONDS: round(progress.seconds, 1),
        SECONDS_STAGING: round(progress.seconds_staging, 1),
        SECONDS_PRODUCING: round(progress.seconds_producing, 1),
        STAGED_RECORDS: progress.staged_records,
        STAGED_BYTES: progress.staged_bytes,
        SPARK_BYTES: progress.spark_bytes,
        DRIVER_BYTES: progress.staged_bytes - progress.spark_bytes,
        SPARK_JOBS: progress.spark_jobs,
        **({BYTES_BY_COPY: dg.MetadataValue.json(dict(progress.copied))} if progress.copied else {}),
        GAPS_KEY: progress.gaps,
        OFFSET_RANGES: dg.MetadataValue.json(ranges),
        STATE: topic.state,
        **_optional(CODE, topic.code),
        **_optional(REASON, topic.reason),
        **_optional(HINT_KEY, topic.hint),
        **_optional(SINCE, None if topic.state == "ok" else dg.MetadataValue.timestamp(since)),
        **_optional(TARGET_TOPIC, topic.target_topic),
        **_optional(TARGET_DOWN, progress.target_down),
    }


def of_topic_lag(lag: TopicLag) -> Metadata:
    """Metadata of a source asset's observation."""
    return {
        LAG_RECORDS: lag.lag_records,
        **_optional(LAG_SECONDS, _tenths(lag.lag_seconds)),
        **_optional(EXPIRES_SECONDS, None if lag.expires_seconds is None else round(lag.expires_seconds)),
        HELD_RECORDS: lag.held_records,
        STAGED_RECORDS: sum(max(0, p.staged - p.position) for p in lag.partitions),
        POSITIONS: _numbers({p.partition: p.position for p in lag.partitions}),
        END_OFFSETS: _numbers({p.partition: p.end for p in lag.partitions}),
        STATE: lag.state,
        **_optional(CODE, lag.code),
        **_optional(REASON, lag.reason),
        **_optional(HINT_KEY, lag.hint),
        **_optional(TARGET_TOPIC, lag.target_topic),
    }


def of_backfill(report: BackfillReport) -> Metadata:
    """Metadata of a backfilled partition range; the ranges are source offsets ``[start, end)``."""
    run = report.run
    return {
        RECORDS: run.records,
        BYTES: run.bytes,
        MICRO_BATCHES: run.micro_batches,
        SECONDS: round(run.seconds, 1),
        OFFSET_RANGES: dg.MetadataValue.json({str(n): list(ends) for n, ends in sorted(report.ranges.items())}),
        FROM_TIME: dg.MetadataValue.timestamp(report.from_time / 1000),
        TO_TIME: dg.MetadataValue.timestamp(report.to_time / 1000),
        STATE: run.state,
        TARGET_TOPIC: report.target_topic,
    }


def of_verification(topic: str, report: VerifyReport) -> Metadata:
    """Metadata of a check; differences are named by offsets and lengths, never by contents. Seconds are the whole verification's."""
    verdicts = [verdict for verdict in report.topics if verdict.topic == topic]
    differences = [difference for difference in report.differences if difference.topic == topic]
    shown = [difference_json(difference) for difference in differences[:METADATA_DIFFERENCES]]
    return {
        RECORDS: sum(verdict.records for verdict in verdicts),
        BYTES: sum(verdict.bytes for verdict in verdicts),
        LEAVES_KEY: sum(verdict.leaves for verdict in verdicts),
        DIFFERENCES: len(differences),
        EXPIRED: sum(verdict.expired for verdict in verdicts),
        SECONDS: round(report.seconds, 1),
        **_optional(FIRST_DIFFERENCES, dg.MetadataValue.json(shown) if shown else None),
        **_optional(TARGET_TOPIC, ", ".join(sorted({verdict.target_topic for verdict in verdicts}))),
    }


def of_groups(report: GroupsReport) -> Metadata:
    """Metadata of the groups' asset and check. A group that moved to the target is in step: it stands where it wants to be."""
    return {
        GROUPS: len({row.group for row in report.groups}),
        GROUPS_NOT_IN_STEP: len({row.group for row in report.groups if row.state not in ("in_step", "moved")}),
        RECORDS_BEHIND: sum(row.behind or 0 for row in report.groups if row.state not in ("in_step", "moved")),
    }


def of_cluster_change(state: str, report: str) -> Metadata:
    """Metadata of a failover's or failback's output: its outcome, and the whole report as markdown."""
    return {STATE: state, REPORT: dg.MetadataValue.md(report)}


def of_promotion(topic: HandedTopic) -> Metadata:
    """Metadata of a target asset's observation when applications take the topic over."""
    return {
        STATE: PROMOTED,
        CODE: PROMOTED,
        POSITIONS: _numbers({part.partition: part.source_offset for part in topic.partitions}),
        TARGET_TOPIC: topic.target_topic,
    }

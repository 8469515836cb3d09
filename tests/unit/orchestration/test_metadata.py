"""Metadata names are fixed and documented: plots in the UI are drawn by them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.features.failover.report import HandedTopic
from mirror_pipeline.orchestration import metadata
from mirror_pipeline.orchestration.overview import overview_events
from mirror_pipeline.orchestration.reporting import LaneReporter
from mirror_pipeline.orchestration.sensors.lag_decision import OverviewMemory
from mirror_pipeline.reports import GroupsReport
from tests.support.orchestration_fakes import FakeMirror, mirror_lag, topic_lag

DOCS = Path(__file__).parents[3] / "docs" / "dagster.md"
FIXED = {
    "lag_records", "lag_seconds", "expires_seconds", "held_records", "records", "bytes", "records_per_second", "bytes_per_second",
    "micro_batches", "seconds", "seconds_staging", "seconds_producing", "staged_records", "staged_bytes", "spark_bytes",
    "driver_bytes", "spark_jobs", "bytes_by_copy", "gaps", "positions", "end_offsets", "offset_ranges", "state", "code", "reason", "hint",
    "since", "target_topic", "target_down", "from_time", "to_time", "leaves", "differences", "first_differences", "expired",
    "groups", "groups_not_in_step", "records_behind", "lost_by_a_failover_now", "report",
}  # fmt: skip


def test_names_do_not_change() -> None:
    assert metadata.METADATA_NAMES == FIXED


def test_every_name_is_in_the_documentation() -> None:
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", DOCS.read_text().split("## Metadata")[1], re.MULTILINE))
    assert documented == metadata.METADATA_NAMES


def test_what_is_emitted_has_a_fixed_name() -> None:
    fake = FakeMirror(halted={"bad": ("why", "what to do")})
    progress = fake.picture()
    progress.target_down, progress.lag_seconds, progress.copied = "no answer", 3.0, {"north": 70}
    emitted = {name for report in LaneReporter(1.0).final(progress) for name in report.metadata}
    emitted |= set(metadata.of_topic_lag(replace(topic_lag("orders", 3), expires_seconds=9.0)))
    emitted |= set(metadata.of_backfill(fake.backfill("orders", 0, 1, into=None)))
    emitted |= set(metadata.of_verification("orders", fake.verify()))
    emitted |= set(metadata.of_groups(GroupsReport("m", ())))
    emitted |= set(overview_events(Facts("m", lag=mirror_lag(orders=1), starting=True), OverviewMemory(), 0.0)[0].metadata)
    emitted |= set(metadata.of_cluster_change("promoted", "")) | set(metadata.of_promotion(HandedTopic("orders", "east.orders", ())))
    assert emitted == metadata.METADATA_NAMES


def test_the_topic_is_none_of_the_metadata_of_numbers() -> None:
    """Numbers stay numbers: text would not be drawn."""
    facts = LaneReporter(1.0).final(FakeMirror().picture())[0].metadata
    for name in ("records", "bytes", "lag_records", "micro_batches", "gaps", "staged_records", "staged_bytes"):
        assert type(facts[name]) is int
    for name in ("seconds", "seconds_staging", "seconds_producing", "records_per_second", "bytes_per_second"):
        assert type(facts[name]) is float

"""Every metric parses as OpenMetrics, is documented, and is what rules and dashboard ask for."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from mirror_pipeline.buffer.place.lane_file import LaneFile
from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.exporter.families import MOST_TOPICS, MirrorCollector
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.reports import CarriedGroup, GroupsReport, Latency, Progress, TopicProgress
from tests.support.cli_fakes import STATUS

ROOT = Path(__file__).parents[3]
ROWS = re.compile(r"^\| `(mirror_\w+)` \| ([\w, ]+) \| (.+) \|$", re.M)
ORDER = ["version", "mirror", "lane", "topic", "partition", "group", "cluster", "code", "state", "le"]
NAMES = re.compile(r"\bmirror_[a-z_]+\b")


def facts() -> Facts:
    latency = Latency()
    latency.add(0.2, 30)
    latency.add(9e9, 5)
    progress = Progress(
        "m", "lane-0", topics={"a": TopicProgress("east.a", records=35, bytes=700)}, confirmed_at=100.0, latency=latency.counts,
        latency_seconds=latency.seconds, copied={"north": 600},
    )  # fmt: skip
    behind = TopicLag("a", "east.a", (PartitionLag(0, 10, 50, 30, 40),), 12.0, expires_seconds=100.0, unread_seconds=7.0)
    halted = TopicLag("b", "east.b", (), state="halted", code="trimmed")
    groups = tuple(CarriedGroup("m", "g", "a", number, 5, 5, 3, 0, "pending") for number in range(2))
    now = time.time()
    return Facts(
        "m", replace(STATUS, verified_at=now), (LaneFile(progress, "running", heartbeat=now),),
        gap_records=4, quarantined=1, promoted=frozenset({"p"}),
        lag=MirrorLag("m", (behind, halted), 12.0), lag_at=now, groups=GroupsReport("m", groups),
    )  # fmt: skip


def exposed(*of: Facts, partitions: bool = False) -> dict[str, Metric]:
    registry = CollectorRegistry()
    registry.register(MirrorCollector(lambda: of, partitions=partitions))
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    return {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]


def values(family: Metric) -> dict[str, float]:
    def key(labels: dict[str, str]) -> str:
        return " ".join(labels[name] for name in ORDER if name in labels)

    return {f"{sample.name} {key(sample.labels)}": sample.value for sample in family.samples}


def test_what_is_known_is_exposed() -> None:
    found = exposed(facts(), partitions=True)
    assert values(found["mirror_lag_records"]) == {"mirror_lag_records m a": 40, "mirror_lag_records m b": 0}
    assert values(found["mirror_partition_lag_records"]) == {"mirror_partition_lag_records m a 0": 40}
    assert list(values(found["mirror_failover_loss_records"]).values()) == [20]
    assert list(values(found["mirror_failover_loss_seconds"]).values()) == [7]
    assert values(found["mirror_halts"]) == {"mirror_halts m trimmed": 1}
    assert values(found["mirror_groups"]) == {"mirror_groups m pending": 1}
    assert values(found["mirror_group_lag_records"]) == {"mirror_group_lag_records m g": 6}
    assert values(found["mirror_records"]) == {"mirror_records_total m a": 35}
    assert values(found["mirror_copied_bytes"]) == {"mirror_copied_bytes_total m north": 600}
    latency = values(found["mirror_replication_latency_seconds"])
    steps = [latency[f"mirror_replication_latency_seconds_bucket m {bound}"] for bound in ("0.1", "0.25", "86400.0", "+Inf")]
    assert steps == [0, 30, 30, 35]


def test_the_oldest_missing_record_has_a_time_and_none_is_zero() -> None:
    known = facts()
    assert known.lag is not None and known.lag_at is not None
    (since,) = values(exposed(known)["mirror_unreplicated_since_timestamp_seconds"]).values()
    assert abs(since - (known.lag_at - 12)) < 0.01
    none = replace(known, lag=replace(known.lag, lag_seconds=0.0))
    (none_since,) = values(exposed(none)["mirror_unreplicated_since_timestamp_seconds"]).values()
    assert none_since == 0


def test_before_the_first_look_and_of_very_many_topics_there_are_no_series() -> None:
    found = exposed(Facts("m", error="not yet"))
    assert values(found["mirror_look_failed"]) == {"mirror_look_failed m": 1} and not found["mirror_lag_records"].samples
    many = replace(facts(), lag=MirrorLag("m", tuple(TopicLag(str(n), "x", ()) for n in range(MOST_TOPICS + 1)), 0.0))
    assert not exposed(many)["mirror_lag_records"].samples
    assert values(exposed(many)["mirror_topics"]) == {"mirror_topics m ok": MOST_TOPICS + 1}


def test_every_metric_is_documented_with_its_labels() -> None:
    rows = ROWS.findall((ROOT / "docs/metrics.md").read_text())
    told = {name.removesuffix("_total").removesuffix("_info"): (labels, text) for name, labels, text in rows}
    shown = {}
    for name, family in exposed(facts(), partitions=True).items():
        labels = sorted(family.samples[0].labels.keys() - {"le"}, key=ORDER.index)
        shown[name] = (", ".join(labels), family.documentation)
    assert told == shown


def test_rules_and_dashboard_ask_for_what_there_is() -> None:
    there = {sample.name for family in exposed(facts(), partitions=True).values() for sample in family.samples}
    for file in ("alerts.yml", "mirrormaker-names.yml", "grafana.json"):
        asked = set(NAMES.findall((ROOT / "observability" / file).read_text()))
        assert asked and asked <= there, f"{file}: {asked - there}"

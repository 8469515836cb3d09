"""A mirror between two clusters: every shape of record, repeated runs, time ranges, whatever the Kafka version."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline.errors import UsageError
from mirror_pipeline.local.shapes.fill import fill
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import add_partitions, assert_identical, create_topic, end_offsets, make_mirror, produce, verdicts


def test_all_shapes_are_copied_once(versioned_clusters: ClusterPair, tmp_path: Path, spark: SparkSession) -> None:
    source, target = versioned_clusters
    prefix = f"s{time.time_ns()}-"
    filled = fill(source.bootstrap_servers, scale=2000, prefix=prefix)
    seeded = [topic.name for topic in filled]
    mirror = make_mirror(tmp_path, source.bootstrap_servers, target.bootstrap_servers, [f"{prefix}.*"])

    report = mirror.run(once=True, session=spark)
    assert report.state == "ok", [t for t in report.topics if t.state != "ok"]
    assert_identical(mirror, seeded)
    # Verification reads as copying does: what consumers of the source get is known from elsewhere.
    assert report.records == sum(topic.records_committed for topic in filled)
    ends = {name: end_offsets(mirror, f"east.{name}", target=True) for name in seeded}
    assert sum(sum(e.values()) for e in ends.values()) == report.records

    again = mirror.run(once=True, session=spark)
    assert (again.state, again.records) == ("ok", 0)
    assert {name: end_offsets(mirror, f"east.{name}", target=True) for name in seeded} == ends

    plain = next(name for name in seeded if "plain" in name or "none" in name)
    produce(source.bootstrap_servers, plain, 50, start=10**6)
    third = mirror.run(once=True, session=spark)
    assert (third.state, third.records) == ("ok", 50)
    assert_identical(mirror, seeded)


def test_a_continuous_run_copies_what_comes_and_new_partitions_later(
    clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 2)
    produce(source, topic_name, 100, partitions=2)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    seen: list[int] = []

    def more(progress: object) -> None:
        if not seen:
            produce(source, topic_name, 100, partitions=2, start=100)
        seen.append(1)

    report = mirror.run(seconds=60, idle_seconds=10, observer=more, session=spark)
    assert (report.state, report.records) == ("ok", 200)
    assert_identical(mirror, [topic_name])

    add_partitions(source, topic_name, 4)
    produce(source, topic_name, 100, partitions=4, start=200)
    assert mirror.run(once=True, session=spark).state == "ok"
    assert len(end_offsets(mirror, f"east.{topic_name}", target=True)) == 4
    assert_identical(mirror, [topic_name])


def test_a_lost_ledger_never_doubles_records(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name)
    produce(source, topic_name, 10)
    assert make_mirror(tmp_path / "one", source, target, [topic_name]).run(once=True, session=spark).records == 10
    other = make_mirror(tmp_path / "two", source, target, [topic_name])
    assert "already holds 10 records" in " ".join(other.plan().topics[0].blockers)
    report = other.run(once=True, session=spark)
    assert report.state == "halted"
    assert "already holds 10 records" in report.topics[0].reason
    assert_identical(other, [topic_name])


def test_start_latest_and_by_time(
    clusters: ClusterPair, tmp_path: Path, spark: SparkSession, new_topic_name: Callable[[], str]
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    late, timed = new_topic_name(), new_topic_name()
    for name in (late, timed):
        create_topic(source, name, retention__ms="-1")
        produce(source, name, 20, at=1_600_000_000_000)
    mirror = make_mirror(tmp_path / "late", source, target, [late], start="latest")
    assert mirror.run(once=True, session=spark).records == 0
    produce(source, late, 5, start=20)
    assert mirror.run(once=True, session=spark).records == 5
    by_time = make_mirror(tmp_path / "timed", source, target, [timed], start="2020-09-13T12:26:40.015Z")
    assert by_time.run(once=True, session=spark).records == 5


def test_backfill_copies_exactly_its_range(
    clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    began = int(time.time() * 1000) - 7_200_000
    create_topic(source, topic_name, 2)
    produce(source, topic_name, 1000, partitions=2, at=began)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.backfill_target(topic_name) == f"east.{topic_name}"
    report = mirror.backfill(topic_name, began + 100, began + 700, into=f"{topic_name}-past", session=spark)
    assert (report.run.state, report.run.records) == ("ok", 600)
    assert report.ranges == {0: (50, 350), 1: (50, 350)}
    assert end_offsets(mirror, f"{topic_name}-past", target=True) == {0: 300, 1: 300}
    repeated = mirror.backfill(topic_name, began + 100, began + 700, into=f"{topic_name}-past", session=spark)
    assert (repeated.run.state, repeated.run.records) == ("ok", 0)
    behind = mirror.backfill(topic_name, began + 700, began + 800, into=f"{topic_name}-past", session=spark)
    assert behind.run.records == 100
    with pytest.raises(UsageError, match="later or overlapping"):
        mirror.backfill(topic_name, began, began + 50, into=f"{topic_name}-past", session=spark)

    assert mirror.run(once=True, session=spark).records == 1000
    assert mirror.backfill_target(topic_name) == f"east.{topic_name}.backfill"
    with pytest.raises(UsageError, match="mirrored continuously"):
        mirror.backfill(topic_name, began, began + 50, session=spark)
    assert verdicts(mirror, [topic_name])[0].verdict == "identical"

"""Verification against real brokers: untouched copies are fine whatever their shape, every damage is called by its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.ledger import Ledger
from mirror_pipeline.buffer.spans import SpanTable
from mirror_pipeline.engine.spark import SparkRunner
from mirror_pipeline.local.shapes import fill
from mirror_pipeline.local.shapes_ground import Ground
from mirror_pipeline.model import TopicPartition, Verdict
from mirror_pipeline.verify.external import verify_external
from mirror_pipeline.verify.read import read_log
from mirror_pipeline.verify.report import VerifyReport
from mirror_pipeline.verify.staged import StagedVerdict, verify_staged
from mirror_pipeline.wire.batch import OpenRecord, seal, tail_of
from tests.conftest import ClusterPair
from tests.damage import DAMAGE
from tests.integration.mirrors import create_topic, make_mirror, produce, write_config


def staged(mirror: Mirror, spark: SparkSession, budget: int = 1 << 30) -> StagedVerdict:
    """Verify what one lane has staged."""
    store = mirror.lane_stores()[0]
    return verify_staged(
        ledger=Ledger(store),
        spans=SpanTable(store),
        runner=SparkRunner(spark),
        target=mirror.target,
        timeout=10.0,
        budget_bytes=budget,
    )


def verdicts_of(mirror: Mirror) -> list[tuple[str, int, int, int, str, str]]:
    rows = Ledger(mirror.lane_stores()[0]).verifications()
    return sorted((r.topic, r.partition, r.source_start, r.source_end, r.verdict.value, r.kind) for r in rows)


def test_what_was_staged_is_found_on_the_target(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 3)
    produce(source, topic_name, 3000, partitions=3)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.run(once=True, session=spark).state == "ok"
    life = Ledger(mirror.lane_stores()[0]).incarnations()[topic_name].incarnation

    first = staged(mirror, spark)
    assert (first.records, first.differences, first.unreadable) == (3000, (), ())
    assert first.verified == {(topic_name, p, life): 1000 for p in range(3)}
    assert verdicts_of(mirror) == [(topic_name, p, 0, 1000, "same", "staged") for p in range(3)]

    again = staged(mirror, spark)
    assert (again.records, again.verified) == (0, first.verified)
    produce(source, topic_name, 30, partitions=3, start=3000)
    assert mirror.run(once=True, session=spark).records == 30
    assert staged(mirror, spark).verified == {(topic_name, p, life): 1010 for p in range(3)}
    assert Verdict.SAME in {row.verdict for row in Ledger(mirror.lane_stores()[0]).verifications()}


def test_untouched_copies_of_every_shape_are_identical(clusters: ClusterPair, tmp_path: Path, spark: SparkSession) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    prefix = f"v{time.time_ns()}-"
    seeded = {topic.name: topic for topic in fill(source, scale=2000, prefix=prefix)}
    mirror = make_mirror(tmp_path, source, target, [f"{prefix}.*"])
    assert mirror.run(once=True, session=spark).state == "ok"

    report = mirror.verify(session=spark)
    assert report.differences == ()
    assert {t.topic: (t.verdict, t.note) for t in report.topics} == dict.fromkeys(seeded, ("identical", ""))
    assert {t.topic: t.records for t in report.topics} == {name: topic.records_committed for name, topic in seeded.items()}
    assert report.ok and report.to_json()["ok"] is True

    found = staged(mirror, spark)
    assert (found.differences, found.unreadable) == ((), ())
    assert mirror.verify(session=spark, since_verified=True).records == 0


@pytest.fixture(scope="module")
def ground(clusters: ClusterPair) -> Iterator[Ground]:
    with closing(Ground(clusters[0].bootstrap_servers, prefix=f"ext-{uuid4().hex[:8]}.")) as made:
        yield made


@pytest.fixture(scope="module")
def original(ground: Ground) -> str:
    """500 records in partition 0 as tests/damage.py expects them, in batches of 40; something else in partition 1."""
    topic = ground.create("original", 2)
    for partition in range(2):
        for batch in batched([record_of(partition, number) for number in range(500)]):
            ground.append(topic, partition, seal(batch, codec=4, base_offset=0))
    return topic


def record_of(partition: int, number: int) -> OpenRecord:
    name = number * 3 if partition == 0 else number + 10_000
    return OpenRecord(number, 1_700_000_000_000 + number, tail_of(b"key-%d" % name, b"value %d of %d" % (name, partition), ((b"h", b"x"),)))


def batched(records: list[OpenRecord]) -> Iterator[list[OpenRecord]]:
    return (records[first : first + 40] for first in range(0, len(records), 40))


@pytest.fixture(scope="module")
def outside(clusters: ClusterPair, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, str]], VerifyReport]:
    """``mirror verify --external`` inside the source cluster."""
    config = load_config(write_config(tmp_path_factory.mktemp("external"), clusters[0].bootstrap_servers, clusters[1].bootstrap_servers, ["x"]))
    return lambda pairs: verify_external(config, "east", "east", pairs, session=spark)


def test_each_damage_is_reported_exactly(
    ground: Ground, original: str, outside: Callable[[dict[str, str]], VerifyReport], clusters: ClusterPair
) -> None:
    expected, found = {}, {}
    for damage, (kind, source_offset, target_offset) in DAMAGE.items():
        copy = ground.create(f"copy.{damage.__name__}", 2)
        for partition in range(2):
            records = [record_of(partition, number) for number in range(500)]
            if partition == 0:
                damage(records)
            for batch in batched(records):
                ground.append(copy, partition, seal(batch, codec=4, base_offset=0))
        report = outside({original: copy})
        expected[damage.__name__] = [(kind, 0, source_offset, target_offset)]
        found[damage.__name__] = [(d.kind, d.partition, d.source_offset, d.target_offset) for d in report.differences]
        assert (report.records, report.ok) == (1000, False)
    assert found == expected
    assert outside({original: original}).ok


def test_a_foreign_record_and_a_deleted_stretch_on_the_target(
    clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 2)
    produce(source, topic_name, 2000, partitions=2)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.run(once=True, session=spark).state == "ok"
    copy = f"east.{topic_name}"
    produce(target, copy, 1)
    report = mirror.verify(topics=[topic_name], session=spark)
    assert [(d.kind, d.topic, d.partition, d.target_offset) for d in report.differences] == [("extra", topic_name, 0, 1000)]

    admin = AdminClient({"bootstrap.servers": target})
    for answer in admin.delete_records([ClientPartition(copy, 1, 400)]).values():
        answer.result(15)
    report = mirror.verify(topics=[topic_name], session=spark)
    assert [(t.expired, t.records) for t in report.topics] == [(400, 1600)]
    assert [d.kind for d in report.differences] == ["extra"]
    found = staged(mirror, spark)
    assert (found.differences, found.records) == ((), 2000)
    assert (topic_name, 1, 0, 400, "deleted_on_target", "staged") in verdicts_of(mirror)

    configs = {"retention.ms": "-1", "retention.bytes": "-1"}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    for future in admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, copy, incremental_configs=entries)]).values():
        future.result(15)
    report = mirror.verify(topics=[topic_name], session=spark)
    assert [d.source_offset for d in report.differences if d.kind == "missing"] == list(range(400))


def test_staged_digests_find_a_target_that_differs(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    """The copy is deleted and made again with one record altered and one left out, as a broken mirror would have done it."""
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 1)
    produce(source, topic_name, 1000)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.run(once=True, session=spark).state == "ok"
    copy = f"east.{topic_name}"
    with closing(Ground(target)) as there:
        whole = [p for p in read_log(there.wire, TopicPartition(copy, 0), 0, 1000, isolation=0)]
        records = [record for piece in whole for record in piece.opened()]
        mirror.target_admin().delete_topic(copy)
        eventually(lambda: copy not in mirror.target_admin().topics())
        there.create(copy, 1)
        records[300] = records[300]._replace(timestamp=records[300].timestamp + 1)
        del records[700]
        there.append(copy, 0, seal(records, codec=0, base_offset=0))
    found = staged(mirror, spark)
    assert [(d.kind, d.source_offset, d.target_offset) for d in found.differences] == [("altered", 300, 300), ("missing", 700, None)]
    assert found.verified == {}
    assert [row[4] for row in verdicts_of(mirror)] == ["different"]
    (topic,) = mirror.verify(session=spark).topics
    assert (topic.verdict, "created anew" in topic.note) == ("unreadable", True)


def eventually(true: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)

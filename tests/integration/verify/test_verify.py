"""Verification against real brokers: untouched copies are fine whatever their shape, every damage is called by its name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution.spark import SparkRunner
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.records.batch import OpenRecord, seal, tail_of
from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.local.shapes.fill import fill
from mirror_pipeline.local.shapes.ground import FOREVER_MS, Ground
from mirror_pipeline.model import HoleCause, TopicPartition, Verdict
from mirror_pipeline.verdicts import VerifyReport
from mirror_pipeline.verify.external import verify_external
from mirror_pipeline.verify.log_walk import read_log
from mirror_pipeline.verify.pieces import contents, key_digest
from mirror_pipeline.verify.record_tasks import LookTask, Terms, run_look
from mirror_pipeline.verify.staged import StagedVerdict, verify_staged
from tests.support.damage import DAMAGE
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, end_offsets, make_mirror, produce, trim, write_config

Outside = Callable[[dict[str, str]], VerifyReport]


def staged(mirror: Mirror, spark: SparkSession, budget: int = 1 << 30) -> StagedVerdict:
    """Verify what one lane has staged."""
    store = mirror.flow.lane_stores()[0]
    return verify_staged(
        ledger=Ledger(store),
        spans=SpanTable(store),
        runner=SparkRunner(spark.sparkContext),
        target=mirror.flow.target,
        timeout=10.0,
        budget_bytes=budget,
    )


def verdicts_of(mirror: Mirror) -> list[tuple[str, int, int, int, str, str]]:
    rows = Ledger(mirror.flow.lane_stores()[0]).verifications()
    return sorted((r.topic, r.partition, r.source_start, r.source_end, r.verdict.value, r.kind) for r in rows)


def test_what_was_staged_is_found_on_the_target(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 3)
    produce(source, topic_name, 3000, partitions=3)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.run(once=True, session=spark).state == "ok"
    life = Ledger(mirror.flow.lane_stores()[0]).incarnations()[topic_name].incarnation

    first = staged(mirror, spark)
    assert (first.records, first.differences, first.unreadable) == (3000, (), ())
    assert first.verified == {(topic_name, p, life): 1000 for p in range(3)}
    assert verdicts_of(mirror) == [(topic_name, p, 0, 1000, "same", "staged") for p in range(3)]

    again = staged(mirror, spark)
    assert (again.records, again.verified) == (0, first.verified)
    produce(source, topic_name, 30, partitions=3, start=3000)
    assert mirror.run(once=True, session=spark).records == 30
    assert staged(mirror, spark).verified == {(topic_name, p, life): 1010 for p in range(3)}
    assert Verdict.SAME in {row.verdict for row in Ledger(mirror.flow.lane_stores()[0]).verifications()}


@pytest.mark.long
def test_batches_that_were_merged_are_compared_by_digests(
    clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str
) -> None:
    """Kafka's own batches of 16 KB become larger ones on the way; no record need be looked at for that."""
    source, target = (c.bootstrap_servers for c in clusters)
    records = fill_bulk(source, topic_name, 2, 40_000_000)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.run(once=True, session=spark).records == records
    (store,) = mirror.flow.lane_stores()
    assert sum(ref.batches for ref in SpanTable(store).spans()) < records / 100
    stages: list[str] = []
    report = mirror.verify(topics=[topic_name], observer=lambda progress: stages.append(progress.stage), session=spark)
    assert (report.ok, report.topics[0].records) == (True, records)
    assert stages and "records" not in stages


def test_keys_are_looked_for_up_to_the_end_as_it_is_by_then(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """A cleaner takes a record away as soon as a later one with its key is there, which a look begun before does not know of."""
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(target, topic_name)
    produce(target, topic_name, 10)
    config = make_mirror(tmp_path, source, target, [topic_name])
    place, key = TopicPartition(topic_name, 0), key_digest(b"key-9")
    terms = Terms(thin_target=True)
    look = run_look(LookTask(config.flow.target, config.flow.target, place, place, (0, 5), 3, (), (key,), terms, 10.0))
    assert (look.keys, look.last) == ({key}, {})
    earlier = key_digest(b"key-2")
    look = run_look(LookTask(config.flow.target, config.flow.target, place, place, (0, 5), 3, (), (key, earlier), terms, 10.0))
    assert (look.keys, look.last) == ({key}, {earlier: 2})


def test_untouched_copies_of_every_shape_are_identical(clusters: ClusterPair, tmp_path: Path, spark: SparkSession) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    prefix = f"v{time.time_ns()}-"
    seeded = {topic.name: topic for topic in fill(source, scale=500, prefix=prefix)}
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


def write_topic(ground: Ground, name: str, change: Callable[[list[OpenRecord]], None] = lambda _: None) -> str:
    """500 records in partition 0 as tests/support/damage.py expects them, in batches of 40, ``change`` applied; others in partition 1."""
    topic = ground.create(name, 2)
    for partition in range(2):
        records = [record_of(partition, number) for number in range(500)]
        if partition == 0:
            change(records)
        for batch in batched(records):
            ground.append(topic, partition, seal(batch, codec=4, base_offset=0))
    return topic


def record_of(partition: int, number: int) -> OpenRecord:
    name = number * 3 if partition == 0 else number + 10_000
    return OpenRecord(number, 1_700_000_000_000 + number, tail_of(b"key-%d" % name, b"value %d of %d" % (name, partition)))


def batched(records: list[OpenRecord]) -> Iterator[list[OpenRecord]]:
    return (records[first : first + 40] for first in range(0, len(records), 40))


@pytest.fixture(scope="module")
def outside(clusters: ClusterPair, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outside:
    """``mirror verify --external`` inside the source cluster."""
    folder, addresses = tmp_path_factory.mktemp("external"), tuple(cluster.bootstrap_servers for cluster in clusters)
    config = load_config(write_config(folder, addresses[0], addresses[1], ["x"]))
    return lambda pairs: verify_external(config, "east", "east", pairs, session=spark)


def test_each_damage_is_reported_exactly(ground: Ground, outside: Outside) -> None:
    pairs, expected = {}, {}
    for damage, (kind, source_offset, target_offset) in DAMAGE.items():
        topic = write_topic(ground, f"original.{damage.__name__}")
        pairs[topic] = write_topic(ground, f"copy.{damage.__name__}", damage)
        expected[topic] = [(kind, 0, source_offset, target_offset)]
    sound = write_topic(ground, "original.sound")
    report = outside({**pairs, sound: sound})
    found = {verdict.topic: [] for verdict in report.topics if verdict.verdict == "different"}
    for d in report.differences:
        found[d.topic].append((d.kind, d.partition, d.source_offset, d.target_offset))
    assert found == expected
    assert (report.records, report.ok, report.topics[-1].verdict) == (1000 * (len(DAMAGE) + 1), False, "identical")


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
    trim(target, copy, {1: 400})
    found = staged(mirror, spark)
    assert (found.differences, found.records) == ((), 2000)
    assert [row[1:5] for row in verdicts_of(mirror)] == [(0, 0, 1000, "same"), (1, 0, 400, "deleted_on_target"), (1, 400, 1000, "same")]

    report = mirror.verify(topics=[topic_name], session=spark)
    assert [(t.expired, t.records) for t in report.topics] == [(400, 1600)]
    assert [(d.kind, d.topic, d.partition, d.target_offset) for d in report.differences] == [("extra", topic_name, 0, 1000)]

    alter(target, copy, {"retention.ms": "-1", "retention.bytes": "-1"})
    report = mirror.verify(topics=[topic_name], session=spark)
    assert [d.source_offset for d in report.differences if d.kind == "missing"] == list(range(400))
    check_repair(mirror, topic_name, spark)


def check_repair(mirror: Mirror, topic: str, spark: SparkSession) -> None:
    """The 400 records go beside the copy, once; what is there is left alone."""
    side = f"east.{topic}.repair"
    planned = mirror.repair(topic, dry_run=True, session=spark)
    assert ({r.state for r in planned.records}, len(planned.records)) == ({"would be written"}, 400)
    assert side not in mirror.flow.target_admin().topics()
    first = mirror.repair(topic, session=spark)
    assert [(r.partition, r.source_offset, r.state, r.target_offset) for r in first.records] == [(1, n, "written", n) for n in range(400)]
    with closing(WireClient(mirror.flow.source)) as source, closing(WireClient(mirror.flow.target)) as target:
        assert logged(target, TopicPartition(side, 1), 0, 400) == logged(source, TopicPartition(topic, 1), 0, 400)
    again = mirror.repair(topic, session=spark)
    assert [(r.state, r.target_offset) for r in again.records] == [("already there", n) for n in range(400)]
    assert again.ok and again.side_topic == side
    assert end_offsets(mirror, side, target=True) == {0: 0, 1: 400}
    # A verification knows what a repair put beside: it is named, and red is only what remains.
    report = mirror.verify(topics=[topic], session=spark)
    (verdict,) = report.topics
    assert (verdict.verdict, verdict.differences, verdict.repaired) == ("different", 1, 400)
    assert ([d.kind for d in report.differences], [d.source_offset for d in report.repaired]) == (["extra"], list(range(400)))
    status = mirror.status()
    assert status.different == (topic,) and status.verified_at is not None


def logged(client: WireClient, tp: TopicPartition, start: int, end: int) -> list[object]:
    return [contents(record) for piece in read_log(client, tp, start, end, isolation=0) for record in piece.opened()]


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
        mirror.flow.target_admin().delete_topic(copy)
        eventually(lambda: copy not in mirror.flow.target_admin().topics())
        there.create(copy, 1)
        records[300] = records[300]._replace(timestamp=records[300].timestamp + 1)
        del records[700]
        there.append(copy, 0, seal(records, codec=0, base_offset=0))
    found = staged(mirror, spark)
    assert [(d.kind, d.source_offset, d.target_offset) for d in found.differences] == [("altered", 300, 300), ("missing", 700, None)]
    assert found.verified == {}
    assert [row[4] for row in verdicts_of(mirror)] == ["different"]
    (topic,) = mirror.verify(session=spark).topics
    assert (topic.verdict, "has been recreated" in topic.note) == ("unreadable", True)


def eventually(true: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_compaction_after_the_copy_is_no_difference(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    """Twelve rounds of the same keys are copied whole; then both brokers take away what they like."""
    source, target = (c.bootstrap_servers for c in clusters)
    held = {"cleanup.policy": "compact", "segment.ms": "1000", "segment.jitter.ms": "0", "min.cleanable.dirty.ratio": "0.01"}
    settings: dict[str, Any] = {key.replace(".", "__"): value for key, value in held.items()}
    create_topic(source, topic_name, 1, **settings, min__compaction__lag__ms=FOREVER_MS)
    began = int(time.time() * 1000) - 3_600_000
    with closing(Ground(source)) as here:
        for number in range(12):
            batch = [
                OpenRecord(n, began + number * 10_000, tail_of(b"key-%d" % n, None if n == number else b"round %d" % number))
                for n in range(20)
            ]
            here.append(topic_name, 0, seal(batch, codec=4, base_offset=0))
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.run(once=True, session=spark).records == 240
    for address, name in ((source, topic_name), (target, f"east.{topic_name}")):
        alter(address, name, {"min.compaction.lag.ms": "0"})
    with closing(WireClient(mirror.flow.source)) as here, closing(WireClient(mirror.flow.target)) as there:
        eventually(lambda: len(logged(here, TopicPartition(topic_name, 0), 0, 240)) < 240, 30)
        eventually(lambda: len(logged(there, TopicPartition(f"east.{topic_name}", 0), 0, 240)) < 240, 30)
    report = mirror.verify(session=spark)
    assert (report.differences, [t.verdict for t in report.topics], report.records < 240) == ((), ["identical"], True)
    found = staged(mirror, spark)
    assert (found.differences, found.unreadable) == ((), ())
    outside = verify_external(mirror.flow.config, "east", "west", {topic_name: f"east.{topic_name}"}, session=spark)
    assert outside.ok and "last record of each key" in outside.topics[0].note


def alter(bootstrap: str, topic: str, configs: dict[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its calls end with it
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(15)


def test_verification_beside_a_running_lane(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 2)
    produce(source, topic_name, 500, partitions=2)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.run(once=True, session=spark).records == 500
    stop = threading.Event()

    def copy() -> None:
        with suppress(MirrorError):
            mirror.run(stop=stop, session=spark)

    lane = threading.Thread(target=copy)
    lane.start()
    try:
        for number in range(1, 4):
            produce(source, topic_name, 500, partitions=2, start=500 * number)
            report = mirror.verify(session=spark)
            assert (report.differences, [t.verdict for t in report.topics]) == ((), ["identical"])
            found = staged(mirror, spark)
            assert (found.differences, found.unreadable) == ((), ())
        eventually(lambda: mirror.lag().topics[0].lag_records == 0, 30)
    finally:
        stop.set()
        lane.join(60)
    last = mirror.verify(session=spark)
    assert (last.ok, last.records) == (True, 2000)


def test_an_accepted_gap_is_no_difference(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    """A record too large for the target goes to quarantine: it is on the source, not on the target, and named."""
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 1)
    create_topic(target, f"east.{topic_name}", 1, max__message__bytes="3000")
    for number, size in enumerate((100, 100, 20_000, 100)):
        produce(source, topic_name, 1, start=number, size=size)
    mirror = make_mirror(tmp_path, source, target, [topic_name], on_loss="record_gap")
    assert mirror.run(once=True, session=spark).records == 3
    assert [(gap.start, gap.end, gap.cause) for gap in mirror.gaps()] == [(2, 3, HoleCause.QUARANTINED)]
    report = mirror.verify(session=spark)
    assert (report.differences, [t.verdict for t in report.topics]) == ((), ["identical"])
    assert staged(mirror, spark).differences == ()

"""Logs that were written before Kafka 0.11: messages of magic 0 and 1, single and in compressed wrappers, on today's brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError
from confluent_kafka import TopicPartition as Place
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror
from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters, stop_clusters
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce, trim
from tests.support.old_log import FIRST_TIME, GZIP, LZ4, NONE, SNAPPY, old_batch, put_into_log

FOREVER: dict[str, Any] = {"retention__ms": "-1", "message__timestamp__before__max__ms": "9223372036854775807"}
APPENDED = FIRST_TIME + 5_000_000
CODECS = (GZIP, SNAPPY, LZ4)


def dense_log() -> bytes:
    """Offsets 0 to 89: every codec in both formats, single messages, append times."""
    log = b"".join(old_batch(range(start, start + 10), 0, codec) for start, codec in zip((0, 10, 20), CODECS, strict=True))
    log += b"".join(old_batch(range(start, start + 10), 1, codec) for start, codec in zip((30, 40, 50), CODECS, strict=True))
    log += old_batch(range(60, 65), 0) + old_batch(range(65, 70), 1)
    return log + old_batch(range(70, 80), 1, GZIP, append_time=APPENDED) + old_batch(range(80, 90), 1, NONE, append_time=APPENDED)


def cleaned_log() -> bytes:
    """What a cleaner leaves of wrappers: holes inside, in front and behind, and a wrapper that is left with one record."""
    log = old_batch([0, 3, 4, 9], 0, GZIP) + old_batch([12, 13, 17], 0, LZ4)
    log += old_batch([22, 23, 28], 1, SNAPPY) + old_batch([35], 1, GZIP)
    return log + old_batch([40, 42, 49], 1, LZ4, append_time=APPENDED) + old_batch(range(50, 90), 1, GZIP, size=300)


def read_all(servers: str, topic: str, partition: int) -> list[tuple[int, bytes | None, bytes | None, int]]:
    """Offset, key, value and time (-1: none) of all records, as a Kafka client of others reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False,
            "enable.partition.eof": True, "check.crcs": True, "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([Place(topic, partition, 0)])
    rows: list[tuple[int, bytes | None, bytes | None, int]] = []
    try:
        while True:
            found = consumer.poll(30)
            assert found is not None, f"{topic}[{partition}] is silent"
            error = found.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return rows
            kind, at = found.timestamp()
            rows.append((found.offset() or 0, found.key(), found.value(), -1 if kind == TIMESTAMP_NOT_AVAILABLE else at))
    finally:
        consumer.close()


def old_cluster(cluster_factory: Callable[..., list[LocalCluster]], version: str) -> LocalCluster:
    """A source whose topics hold old formats: ``old-delete`` and ``old-compact``, of two partitions.

    One broker: a follower would not have what is written into the leader's files, and would never get it.
    """
    (cluster,) = cluster_factory(names=["source"], version=version, brokers=1, heap="256m", config={"log.cleaner.enable": "false"})
    servers = cluster.bootstrap_servers
    for policy in ("delete", "compact"):
        create_topic(servers, f"old-{policy}", 2, cleanup__policy=policy, **FOREVER)
    folder = cluster.directory
    stop_clusters(folder.parent, "source")
    for number, log in enumerate([dense_log(), cleaned_log()]):
        put_into_log(cluster.brokers[0].data, "old-compact", number, log)
        put_into_log(cluster.brokers[0].data, "old-delete", number, dense_log())
    (again,) = start_clusters(folder.parent, names=["source"])
    trim(again.bootstrap_servers, "old-delete", {1: 37})  # inside a wrapper
    return again


def old_mirror(cluster_factory: Callable[..., list[LocalCluster]], version: str, folder: Path) -> tuple[str, str, Mirror]:
    """Addresses of such a source and of an empty target, and the mirror between them."""
    source = old_cluster(cluster_factory, version).bootstrap_servers
    (other,) = cluster_factory(names=["target"], version=version, brokers=1, heap="256m")
    return source, other.bootstrap_servers, make_mirror(folder, source, other.bootstrap_servers, ["old-.*"], engine={"inline_bytes": "1GB"})


@pytest.mark.long
def test_every_record_of_old_wrappers_is_copied(
    cluster_factory: Callable[..., list[LocalCluster]], kafka_version: str, tmp_path: Path, spark: SparkSession
) -> None:
    source, target, mirror = old_mirror(cluster_factory, kafka_version, tmp_path)
    report = mirror.run(once=True, session=spark)
    assert {(topic.topic, topic.state) for topic in report.topics} == {("old-delete", "ok"), ("old-compact", "ok")}, report.topics
    produce(source, "old-compact", 20, partitions=2, start=1000)  # today's format behind the old ones
    produce(source, "old-delete", 20, partitions=2, start=1000)
    assert mirror.run(once=True, session=spark).state == "ok"
    expected = {("old-delete", 0): 100, ("old-delete", 1): 63, ("old-compact", 0): 100, ("old-compact", 1): 64}
    for (topic, partition), count in expected.items():
        ours, copied = (read_all(servers, name, partition) for servers, name in ((source, topic), (target, f"east.{topic}")))
        assert len(ours) == count
        assert [row[1:] for row in copied] == [row[1:] for row in ours]
    assert mirror.gaps() == []
    assert_identical(mirror, ["old-delete", "old-compact"])
    verdict = mirror.verify(session=spark)
    assert {(topic.topic, topic.verdict) for topic in verdict.topics} == {("old-delete", "identical"), ("old-compact", "identical")}


@pytest.mark.long
def test_a_backfill_may_begin_and_end_inside_old_wrappers(
    cluster_factory: Callable[..., list[LocalCluster]], kafka_version: str, tmp_path: Path, spark: SparkSession
) -> None:
    source, target, mirror = old_mirror(cluster_factory, kafka_version, tmp_path)
    report = mirror.backfill("old-delete", FIRST_TIME + 33, FIRST_TIME + 54, into="past", session=spark)
    assert report.run.state == "ok", report
    for partition, (start, end) in report.ranges.items():
        ours, copied = (read_all(servers, name, partition) for servers, name in ((source, "old-delete"), (target, "past")))
        assert [row[1:] for row in copied] == [row[1:] for row in ours if start <= row[0] < end]
    assert report.ranges[0][0] % 10, "the range does not begin inside a wrapper"
    assert report.ranges[0][1] % 10, "the range does not end inside a wrapper"

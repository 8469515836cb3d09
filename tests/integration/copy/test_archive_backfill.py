"""Records that the source has deleted come back from the archive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror, crash_points
from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.errors import UsageError
from tests.integration.processes import wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, end_offsets, make_mirror, trim

Read = tuple[Any, ...]
ARCHIVED = {"retention": "1s", "archive": "90d"}
IN_PROCESS = {"inline_bytes": "64MB"}


def consumed(bootstrap: str, topic: str) -> dict[int, list[Read]]:
    """What a consumer that knows nothing of mirrors sees of a topic, by partition: key, value, headers, timestamp."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False, "enable.partition.eof": False})
    found: dict[int, list[Read]] = {}
    try:
        for number in consumer.list_topics(topic, timeout=15).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=15)
            consumer.assign([TopicPartition(topic, number, low)])
            rows = found[number] = []
            deadline = time.monotonic() + 60
            while consumer.position([TopicPartition(topic, number)])[0].offset < high and low < high:
                assert time.monotonic() < deadline
                message = consumer.poll(1.0)
                if message is not None:
                    assert message.error() is None, message.error()
                    headers = tuple(message.headers() or ())
                    rows.append((message.partition(), message.key(), message.value(), headers, message.timestamp()))
    finally:
        consumer.close()
    return found


def fill(bootstrap: str, topic: str, count: int, *, partitions: int, at: int, first: int = 0, transactions: bool = True) -> None:
    """Records with headers, without keys, without values, of several codecs, in transactions, some of which are aborted.

    Brokers give transaction markers their own time and find these by time too: records of the past go without transactions.
    """
    codecs = ("none", "lz4", "zstd", "gzip")
    for turn, codec in enumerate(codecs):
        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
        producer = Producer(settings | ({"transactional.id": f"{topic}-{first}-{turn}"} if transactions else {}))
        part = count // len(codecs)
        if transactions:
            producer.init_transactions(30)
        for aborted in (False, True, False) if transactions else (False,):
            if transactions:
                producer.begin_transaction()
            for number in range(first + turn * part, first + (turn + 1) * part, 2 if aborted else 1):
                producer.produce(
                    topic,
                    None if number % 7 == 0 else f"value {number} ".encode() * (number % 50),
                    None if number % 5 == 0 else f"key {number}".encode(),
                    number % partitions,
                    timestamp=at + number,
                    headers=[("h", str(number).encode()), ("h", None)] if number % 3 else None,
                )
            assert producer.flush(30) == 0  # an aborted transaction is in the log as well
            if transactions:
                (producer.abort_transaction if aborted else producer.commit_transaction)(30)


def now() -> int:
    return int(time.time() * 1000)


def archive_all(mirror: Mirror) -> int:
    """Let all spans of the mirror's lanes move into the archive; how many it holds."""
    (store,) = mirror.flow.lane_stores()
    spans = SpanTable(store)
    wait_until(lambda: time.time() > (spans.oldest() or 0.0) + 1.2, 10, "retention to be over")
    mirror.evict()
    assert SpanTable(store).spans() == []
    return Archive(store).totals().spans


@pytest.mark.parametrize("with_spark", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_the_source_has_deleted_comes_back(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, request: pytest.FixtureRequest, *, with_spark: bool
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 2, retention__ms="-1")
    fill(source, topic_name, 400, partitions=2, at=now() - 1000)
    before_that = now()
    session: SparkSession | None = request.getfixturevalue("spark") if with_spark else None
    mirror = make_mirror(tmp_path, source, target, [topic_name], buffer=ARCHIVED, engine={"inline_bytes": 0} if with_spark else IN_PROCESS)
    assert mirror.run(once=True, session=session).state == "ok"
    before = consumed(source, topic_name)
    assert archive_all(mirror) > 0
    ends = end_offsets(mirror, topic_name, target=False)
    fill(source, topic_name, 100, partitions=2, at=now(), first=400)  # these are on the source alone
    trim(source, topic_name, {0: ends[0], 1: ends[1] // 2})

    report = mirror.backfill(topic_name, 0, before_that, into=f"{topic_name}-past", session=session)
    assert report.run.state == "ok"
    again = mirror.backfill(topic_name, 0, before_that, into=f"{topic_name}-past", session=session)
    assert (again.run.state, again.run.records) == ("ok", 0)
    assert consumed(target, f"{topic_name}-past") == before
    assert report.from_buffer == {0: (0, ends[0]), 1: (0, ends[1] // 2)}
    if session is not None:
        assert report.run.spark_jobs > 0
        told = mirror.sql("SELECT topic, day, sum(records) AS records, max(end_offset) AS last FROM archive GROUP BY ALL", session=session)
        (row,) = told.collect()
        assert (row["topic"], row["records"], row["last"]) == (topic_name, sum(map(len, before.values())), max(ends.values()))


def test_a_time_range_begins_and_ends_inside_archived_spans(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    began = int(time.time() * 1000) - 7_200_000
    create_topic(source, topic_name, 2, retention__ms="-1")
    fill(source, topic_name, 400, partitions=2, at=began, transactions=False)
    mirror = make_mirror(tmp_path, source, target, [topic_name], buffer=ARCHIVED, engine=IN_PROCESS)
    assert mirror.run(once=True).state == "ok"
    before = consumed(source, topic_name)
    archive_all(mirror)
    wanted = mirror.backfill(topic_name, began + 33, began + 217, into="kept-by-source", source="cluster")
    trim(source, topic_name, end_offsets(mirror, topic_name, target=False))
    report = mirror.backfill(topic_name, began + 33, began + 217, into=f"{topic_name}-part")
    assert report.ranges == wanted.ranges
    first, last = began + 33, began + 217
    part = {number: [row for row in rows if first <= row[4][1] < last] for number, rows in before.items()}
    assert consumed(target, f"{topic_name}-part") == part


def test_what_is_nowhere_is_named(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    topic, other = new_topic_name(), new_topic_name()
    began = int(time.time() * 1000) - 7_200_000
    for name in (topic, other):
        create_topic(source, name, 1, retention__ms="-1")
        fill(source, name, 40, partitions=1, at=began, transactions=False)
    without = make_mirror(tmp_path / "without", source, target, [other], engine=IN_PROCESS)
    assert without.run(once=True).state == "ok"
    with pytest.raises(UsageError, match=r"mirror m has no archive: buffer\.archive is not set"):
        without.backfill(other, 0, began + 100, into=f"{other}-past", source="buffer")

    mirror = make_mirror(tmp_path / "with", source, target, [topic], buffer=ARCHIVED, engine=IN_PROCESS, naming="x.{topic}")
    assert mirror.run(once=True).state == "ok"
    archive_all(mirror)
    (end,) = end_offsets(mirror, topic, target=False).values()
    fill(source, topic, 40, partitions=1, at=began, first=40, transactions=False)
    (later,) = end_offsets(mirror, topic, target=False).values()
    trim(source, topic, {0: later - 5})
    message = rf"offsets {end} to {later - 6} of {topic}\[0\] may belong to the time range and are neither on the source nor in the buffer"
    with pytest.raises(UsageError, match=message) as raised:
        mirror.backfill(topic, 0, began + 200, into=f"{topic}-past")
    assert "--from-source" in raised.value.hint
    assert f"{topic}-past" not in mirror.flow.target_admin().topics()
    assert mirror.backfill(topic, 0, began + 200, into=f"{topic}-past", source="cluster").run.state == "ok"


@pytest.mark.long
@pytest.mark.parametrize("point", ["commit.before", "commit.after", "produce.after_send", "record.before"])
def test_a_killed_backfill_from_the_archive_continues(clusters: ClusterPair, tmp_path: Path, topic_name: str, point: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 2, retention__ms="-1")
    fill(source, topic_name, 400, partitions=2, at=now() - 1000)
    mirror = make_mirror(tmp_path, source, target, [topic_name], buffer=ARCHIVED, engine=IN_PROCESS)
    assert mirror.run(once=True).state == "ok"
    before = consumed(source, topic_name)
    archive_all(mirror)
    trim(source, topic_name, end_offsets(mirror, topic_name, target=False))
    times = ("--from", "2020-01-01T00:00:00Z", "--to", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    words = [sys.executable, "-m", "mirror_pipeline.cli", "backfill", "-m", "m", "-t", topic_name, *times, "--from-buffer"]
    words += ["--into", f"{topic_name}-past", "-c", str(tmp_path / "mirror.yaml")]
    ended = subprocess.run(words, env={**os.environ, crash_points.CRASH: point}, check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert consumed(target, f"{topic_name}-past") == before

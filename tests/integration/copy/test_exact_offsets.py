"""``offsets: exact``: every record has the same offset on both sides."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from pyspark.sql import SparkSession

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.crash_points import CRASH
from mirror_pipeline.engine.driver.write.marker_epochs import MARKERS
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.records.blank import blank_batch
from mirror_pipeline.local.shapes.fill import fill
from mirror_pipeline.local.shapes.ground import local_settings
from mirror_pipeline.model import Stamp, TopicPartition
from mirror_pipeline.topics.alter import alter_topics
from tests.integration.processes import wait_until
from tests.support.exact import assert_same_offsets, begin_at, contents, transactions
from tests.support.groups import IN_PROCESS, carry, commit, committed, mirror_of, running
from tests.support.kafka_source import VERSIONS, ClusterPair
from tests.support.mirrors import assert_identical, create_topic, end_offsets, log_starts, make_mirror, produce, trim


def test_all_shapes_keep_their_offsets(clusters: ClusterPair, tmp_path: Path, spark: SparkSession) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    prefix = f"e{time.time_ns()}-"
    seeded = [topic.name for topic in fill(source, scale=400, prefix=prefix)]
    mirror = make_mirror(tmp_path, source, target, [f"{prefix}.*"], offsets="exact")
    report = mirror.run(once=True, session=spark)
    assert report.state == "ok", [t for t in report.topics if t.state != "ok"]
    assert_identical(mirror, seeded)
    assert_same_offsets(mirror, seeded)
    again = mirror.run(once=True, session=spark)
    assert (again.state, again.records) == ("ok", 0)
    assert mirror.verify(session=spark).ok


@pytest.mark.long
def test_versions_take_each_others_offsets(cluster_pairs: Callable[[str], ClusterPair], kafka_version: str, tmp_path: Path) -> None:
    """All shapes of the demo (a compacted log, one that begins late), a log that ends with markers, and one with an open end."""
    source = cluster_pairs(kafka_version)[0].bootstrap_servers
    prefix = f"v{time.time_ns()}-"
    names = [topic.name for topic in fill(source, scale=200, prefix=prefix)]
    aborted_last, unfinished = f"{prefix}aborted-last", f"{prefix}unfinished"
    for name in (aborted_last, unfinished):
        create_topic(source, name)
        transactions(source, name, 7)
    others = [version for version in VERSIONS if kafka_version in VERSIONS and version != kafka_version] or [kafka_version]
    targets = {version: cluster_pairs(version)[1].bootstrap_servers for version in others}
    wanted: dict[str, Any] = {"offsets": "exact", "engine": IN_PROCESS}
    mirrors = [make_mirror(tmp_path / version, source, target, [f"{prefix}.*"], **wanted) for version, target in targets.items()]
    stable = end_offsets(mirrors[0], unfinished, target=False)
    producer = Producer({"bootstrap.servers": source, "transactional.id": unfinished, "transaction.timeout.ms": 600_000})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(unfinished, b"neither committed nor aborted")
    producer.flush(20)
    for mirror in mirrors:
        report = mirror.run(once=True)
        assert report.state == "ok", [t for t in report.topics if t.state != "ok"]
        assert_same_offsets(mirror, [*names, aborted_last])
        assert end_offsets(mirror, f"east.{unfinished}", target=True) == stable
    producer.abort_transaction(20)
    transactions(source, unfinished, 2)
    for mirror in mirrors:
        assert mirror.run(once=True).state == "ok"
        assert_same_offsets(mirror, [*names, aborted_last, unfinished])
        assert mirror.verify().ok


def test_transactions_a_trimmed_start_and_what_comes_later(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 2)
    transactions(source, topic_name, 30)
    produce(source, topic_name, 40, partitions=2)
    trim(source, topic_name, {0: 11, 1: 3})
    mirror = make_mirror(tmp_path, source, target, [topic_name], offsets="exact", engine=IN_PROCESS)
    for more in range(3):
        assert mirror.run(once=True).state == "ok"
        assert_same_offsets(mirror, [topic_name])
        transactions(source, topic_name, 7, start=100 + more * 10)
    assert mirror.run(once=True).state == "ok"
    assert_same_offsets(mirror, [topic_name])


def test_a_target_that_is_ahead_halts_the_topic(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name)
    create_topic(target, f"east.{topic_name}")
    produce(source, topic_name, 10)
    produce(target, f"east.{topic_name}", 5)
    trim(target, f"east.{topic_name}", {0: 5})
    mirror = make_mirror(tmp_path, source, target, [topic_name], offsets="exact", engine=IN_PROCESS)
    (topic,) = mirror.run(once=True).topics
    assert (topic.state, topic.code) == ("halted", "target_ahead")
    assert end_offsets(mirror, f"east.{topic_name}", target=True) == {0: 5}



def test_a_lost_buffer_is_no_matter_where_the_logs_agree(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 3)
    transactions(source, topic_name, 30)
    trim(source, topic_name, {0: 11})
    mirror = make_mirror(tmp_path, source, target, [topic_name], offsets="exact", engine=IN_PROCESS)
    for more in range(4):
        report = mirror.run(once=True)
        assert report.state == "ok", report.topics
        assert_same_offsets(mirror, [topic_name])
        shutil.rmtree(tmp_path / "buffer")
        transactions(source, topic_name, 5, start=100 + more * 10)
        produce(source, topic_name, 6, partitions=3, start=more * 6)


def test_a_group_keeps_its_offset_after_the_buffer_was_lost(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """It stands before the offset at which the new ledger begins."""
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name)
    transactions(source, topic_name, 10)
    mirror = mirror_of(clusters, tmp_path, topic_name, offsets="exact")
    assert mirror.run(once=True).state == "ok"
    shutil.rmtree(tmp_path / "buffer")
    transactions(source, topic_name, 10)
    here, there = Place(topic_name, 0), Place(f"east.{topic_name}", 0)
    end = end_offsets(mirror, topic_name, target=False)[0]
    places = {f"{topic_name}-{number}": number for number in (0, 7, 13, 58, 64, end)}
    for group, offset in places.items():
        commit(source, group, {here: offset})
    assert mirror.run(once=True).state == "ok"
    carry(mirror)
    records = [offset for offset, _, _ in contents(source, [topic_name])[topic_name, 0][0]]
    for group, offset in places.items():
        expected = next((each for each in records if each >= offset), end)
        assert committed(target, group)[there.topic, 0][0] in (offset, expected), group
    assert mirror.translate(topic_name, partition=0, offset=13)[0].target_offset == 13


@pytest.mark.parametrize(("theirs", "said"), [(["0", "1", "x"], "differ at offset 2"), (["0"] * 9, "ends at offset 9, the source at 6")])
def test_without_a_buffer_what_differs_is_not_continued(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, theirs: list[str], said: str
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    for bootstrap, name, values in ((source, topic_name, [str(n) for n in range(6)]), (target, f"east.{topic_name}", theirs)):
        create_topic(bootstrap, name)
        producer = Producer({"bootstrap.servers": bootstrap})
        for number, value in enumerate(values):
            producer.produce(name, value, timestamp=1_700_000_000_000 + number)
        producer.flush(20)
    mirror = make_mirror(tmp_path, source, target, [topic_name], offsets="exact", engine=IN_PROCESS)
    (topic,) = mirror.run(once=True).topics
    assert (topic.state, topic.code) == ("halted", "target_filled")
    assert said in topic.reason and "adopt" not in topic.hint
    assert sum(end_offsets(mirror, f"east.{topic_name}", target=True).values()) == len(theirs)


def test_a_log_that_begins_late_is_not_filled_marker_by_marker(versioned_clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in versioned_clusters)
    create_topic(source, topic_name, 3)
    begin_at(source, topic_name, 30_200_123)
    begin_at(source, topic_name, 100_001, partition=1)
    transactions(source, topic_name, 9)
    mirror = make_mirror(tmp_path, source, target, [topic_name], offsets="exact", engine=IN_PROCESS)
    assert mirror.run(once=True).state == "ok"
    assert_same_offsets(mirror, [topic_name])
    assert log_starts(mirror, f"east.{topic_name}", target=True) == {0: 30_200_123, 1: 100_001, 2: 0}
    transactions(source, topic_name, 3, start=50)
    assert mirror.run(once=True).state == "ok"
    assert_same_offsets(mirror, [topic_name])
    assert mirror.verify().ok


@pytest.mark.long
@pytest.mark.parametrize("point", ["padding.before_send:3", "padding.before_delete", "padding.before_delete:2"])
def test_a_run_killed_while_it_pads_is_continued_and_what_it_sends_late_lands_nowhere(
    versioned_clusters: ClusterPair, tmp_path: Path, topic_name: str, point: str
) -> None:
    source, target = (c.bootstrap_servers for c in versioned_clusters)
    start, copy = 11_300_123, TopicPartition(f"east.{topic_name}", 0)
    create_topic(source, topic_name)
    begin_at(source, topic_name, start)
    transactions(source, topic_name, 9)
    mirror = make_mirror(tmp_path, source, target, [topic_name], offsets="exact", engine=IN_PROCESS)
    words = [sys.executable, "-m", "mirror_pipeline.cli", "run", "--once", "-c", str(tmp_path / "mirror.yaml")]
    killed = subprocess.run(words, env={**os.environ, CRASH: point}, check=False, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert mirror.run(once=True).state == "ok"
    assert_same_offsets(mirror, [topic_name])
    end = end_offsets(mirror, copy.topic, target=True)
    with WireClient(mirror.flow.target) as client:
        (store,) = mirror.flow.lane_stores()
        markers = Ledger(store).producer(client.metadata([copy.topic]).cluster_id + MARKERS)
        assert markers is not None
        stamp = Stamp(markers.producer_id, 0)
        for at in (0, 1_000_000, 10_500_000, 11_000_000):
            connection = client.connection(client.leader(copy))
            batch = blank_batch(min(500_000, start - at), stamp, at, at_ms=int(time.time() * 1000))
            send_produce(connection, {copy: batch}, timeout_ms=20_000)
            answer = receive_produce(connection)[copy]
            assert answer.error or answer.base_offset == at
    assert end_offsets(mirror, copy.topic, target=True) == end
    assert log_starts(mirror, copy.topic, target=True) == {0: start}


def test_a_compacted_log_that_begins_late_gets_markers(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 1)
    begin_at(source, topic_name, 120_000)
    produce(source, topic_name, 5)
    with Admin(local_settings(source)) as admin:
        assert alter_topics(admin, {topic_name: {"cleanup.policy": "compact"}}) == {topic_name: None}
    mirror = make_mirror(tmp_path, source, target, [topic_name], offsets="exact", engine=IN_PROCESS)
    assert mirror.run(once=True).state == "ok"
    assert_same_offsets(mirror, [topic_name])
    assert log_starts(mirror, f"east.{topic_name}", target=True) == {0: 0}


def test_the_start_of_the_log_follows_the_source_where_nothing_unread_was_deleted(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 2)
    produce(source, topic_name, 40, partitions=2)
    topics = {"include": [topic_name], "follow_trim": True, "configs": {"interval": "1s"}}
    mirror = make_mirror(tmp_path, source, target, [topic_name], offsets="exact", engine=IN_PROCESS, topics=topics)
    with running(mirror):
        wait_until(lambda: end_offsets(mirror, f"east.{topic_name}", target=True) == {0: 20, 1: 20}, 60, "the copy")
        trim(source, topic_name, {0: 13})
        wait_until(lambda: log_starts(mirror, f"east.{topic_name}", target=True) == {0: 13, 1: 0}, 60, "the start to follow")
    assert_same_offsets(mirror, [topic_name])
    assert mirror.verify().ok
    produce(source, topic_name, 20, partitions=2, start=40)
    trim(source, topic_name, {1: 25})
    assert [row.code for row in mirror.run(once=True).topics] == ["trimmed"]
    assert log_starts(mirror, f"east.{topic_name}", target=True) == {0: 13, 1: 0}
    mirror.resolve(topic_name, "trimmed")
    assert mirror.run(once=True).state == "ok"
    assert log_starts(mirror, f"east.{topic_name}", target=True) == {0: 13, 1: 25}

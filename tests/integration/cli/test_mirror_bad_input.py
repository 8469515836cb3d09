"""Wrong input and unfit surroundings: one clear message, nothing lost, nothing half done."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.errors import BufferUnusable, LaneBusy
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, end_offsets, make_mirror, produce, trim, write_config


def mirror_command(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mirror_pipeline.cli", *arguments, "-c", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_a_regex_that_matches_nothing_is_exit_1_and_says_so(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name)
    config = write_config(tmp_path, source, target, [topic_name[:-1]])
    ran = mirror_command(config, "run", "--once")
    assert ran.returncode == 1
    assert "matches none of the" in ran.stderr
    assert "must match the whole name" in ran.stderr
    planned = mirror_command(config, "plan", "--json")
    assert planned.returncode == 1
    assert json.loads(planned.stdout)["mirrors"][0]["topics"] == []


def test_an_unreachable_source_is_exit_3_within_15_seconds(clusters: ClusterPair, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        config = write_config(tmp_path, nobody, clusters[1].bootstrap_servers, [".*"])
        ran = mirror_command(config, "run", "--once")
    assert ran.returncode == 3
    assert "east" in ran.stderr
    assert nobody in ran.stderr


@pytest.mark.long
def test_an_unreachable_target_is_exit_3_when_nothing_is_known_yet(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession
) -> None:
    create_topic(clusters[0].bootstrap_servers, topic_name)
    config = write_config(tmp_path, clusters[0].bootstrap_servers, "127.0.0.1:1", [topic_name])
    ran = mirror_command(config, "run", "--once")
    assert ran.returncode == 3
    assert "west" in ran.stderr


def test_two_runs_of_one_lane(clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name)
    produce(source, topic_name, 10)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    with (
        lane_lock(open_lane(mirror.flow.config.buffer, "m", "lane-0")),
        pytest.raises(LaneBusy, match=f"process {os.getpid()}"),
    ):
        mirror.run(once=True, session=spark)
    assert mirror.run(once=True, session=spark).records == 10


def test_a_buffer_that_cannot_be_written(clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name)
    (tmp_path / "file").write_text("in the way")
    mirror = make_mirror(tmp_path, source, target, [topic_name], buffer={"uri": "./file"})
    with pytest.raises(BufferUnusable, match="not a directory"):
        mirror.run(once=True, session=spark)
    assert f"east.{topic_name}" not in mirror.flow.target_admin().topics()


def test_a_target_with_fewer_partitions(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], spark: SparkSession
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    topic = new_topic_name()
    create_topic(source, topic, 3)
    create_topic(target, f"east.{topic}", 2)
    produce(source, topic, 30, partitions=3)
    strict = make_mirror(tmp_path / "strict", source, target, [topic], topics={"include": [topic], "manage": False})
    report = strict.run(once=True, session=spark)
    assert report.state == "halted"
    assert "2" in report.topics[0].reason
    assert "3" in report.topics[0].reason
    assert "--alter" in report.topics[0].reason + report.topics[0].hint
    assert sum(end_offsets(strict, f"east.{topic}", target=True).values()) == 0
    managing = make_mirror(tmp_path / "managing", source, target, [topic])
    assert managing.run(once=True, session=spark).state == "ok"
    assert_identical(managing, [topic])


def test_a_record_larger_than_the_target_takes_halts_its_topic_alone(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], spark: SparkSession
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    large, small = new_topic_name(), new_topic_name()
    create_topic(source, large)
    create_topic(target, f"east.{large}", max__message__bytes="2000")
    create_topic(source, small)
    produce(source, large, 3, size=100)
    produce(source, large, 1, start=3, size=5000)
    produce(source, large, 3, start=4, size=100)
    produce(source, small, 10)
    mirror = make_mirror(tmp_path, source, target, [large, small])
    report = mirror.run(once=True, session=spark)
    states = {t.topic: t for t in report.topics}
    assert (states[large].state, states[small].state) == ("halted", "ok")
    assert "larger than the target" in states[large].reason
    assert "max.message.bytes" in states[large].hint
    assert sum(end_offsets(mirror, f"east.{large}", target=True).values()) == 3
    assert_identical(mirror, [small])

    recording = make_mirror(tmp_path, source, target, [large, small], on_loss="record_gap")
    assert recording.run(once=True, session=spark).state == "ok"
    assert [(g.topic, g.start, g.end, g.cause.value) for g in recording.gaps()] == [(large, 3, 4, "quarantined")]
    assert sum(end_offsets(recording, f"east.{large}", target=True).values()) == 6


def ten_copied(clusters: ClusterPair, folder: Path, topic: str, spark: SparkSession) -> tuple[str, str, Mirror]:
    """A new topic with ten records and its mirror, which has copied them; the addresses of source and target, and the mirror."""
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic)
    produce(source, topic, 10)
    mirror = make_mirror(folder, source, target, [topic])
    assert mirror.run(once=True, session=spark).records == 10
    return source, target, mirror


def test_a_trimmed_source_halts_or_records_the_gap(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession
) -> None:

    source, target, mirror = ten_copied(clusters, tmp_path, topic_name, spark)
    produce(source, topic_name, 10, start=10)
    trim(source, topic_name, {0: 15})
    report = mirror.run(once=True, session=spark)
    assert report.state == "halted"
    assert "[10, 15)" in report.topics[0].reason
    assert mirror.gaps() == []
    recording = make_mirror(tmp_path, source, target, [topic_name], on_loss="record_gap")
    assert recording.run(once=True, session=spark).records == 5
    assert [(g.start, g.end, g.cause.value) for g in recording.gaps()] == [(10, 15, "retention")]


def test_a_recreated_source_topic_halts(clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession) -> None:
    source, _, mirror = ten_copied(clusters, tmp_path, topic_name, spark)
    mirror.flow.source_admin().delete_topic(topic_name)
    deadline = time.monotonic() + 20
    while topic_name in mirror.flow.source_admin().topics():
        assert time.monotonic() < deadline
    create_topic(source, topic_name)
    produce(source, topic_name, 20)
    report = mirror.run(once=True, session=spark)
    assert report.state == "halted"
    assert "recreated" in report.topics[0].reason
    assert end_offsets(mirror, f"east.{topic_name}", target=True) == {0: 10}


def test_another_writer_on_the_target_is_noticed(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession
) -> None:
    source, target, mirror = ten_copied(clusters, tmp_path, topic_name, spark)
    produce(target, f"east.{topic_name}", 1)
    produce(source, topic_name, 10, start=10)
    report = mirror.run(once=True, session=spark)
    assert report.state == "halted"
    assert "did not write" in report.topics[0].reason


def test_a_topic_the_principal_may_not_read_is_left_alone(
    clusters: ClusterPair, cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, spark: SparkSession
) -> None:
    guarded = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root",
        "allow.everyone.if.no.acl.found": "true",
    }
    # One broker: the others would need rights among themselves.
    source = cluster_factory(1, brokers=1, config=guarded)[0].bootstrap_servers
    target = clusters[1].bootstrap_servers
    stem = f"acl{time.time_ns()}"
    for name in ("open", "closed"):
        create_topic(source, f"{stem}-{name}")
        produce(source, f"{stem}-{name}", 10)
    deny(source, f"{stem}-closed")
    mirror = make_mirror(tmp_path, source, target, [f"{stem}-.*"])
    report = mirror.run(once=True, session=spark)
    states = {t.topic: t for t in report.topics}
    assert states[f"{stem}-open"].state == "ok"
    assert states[f"{stem}-closed"].state == "halted"
    assert "READ" in states[f"{stem}-closed"].reason
    assert_identical(mirror, [f"{stem}-open"])


def deny(bootstrap: str, topic: str) -> None:
    """Take READ of a topic from everybody."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )  # fmt: skip

    rule = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.READ, AclPermissionType.DENY
    )
    allow = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.DESCRIBE, AclPermissionType.ALLOW
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_acls([rule, allow]).values():
        future.result(15)


def test_stopping_a_run_ends_it_cleanly(clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name)
    produce(source, topic_name, 1000)
    mirror, stop = make_mirror(tmp_path, source, target, [topic_name]), threading.Event()
    report = mirror.run(seconds=120, observer=lambda p: stop.set() if p.records else None, stop=stop, session=spark)
    assert report.records == 1000
    assert report.seconds < 120

"""Settings of target topics follow their source's while a lane runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from mirror_pipeline import Mirror
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.crash_points import CRASH
from mirror_pipeline.features.failover.report import FailoverOptions
from mirror_pipeline.features.topic_sync.sync_state import topics_store
from mirror_pipeline.features.topic_sync.topic_changes import TopicChanges
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.topics.alter import Changes, alter_topics
from tests.integration.processes import wait_until
from tests.support.deleted_topics import delete_everywhere
from tests.support.groups import IN_PROCESS, running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce

pytestmark = pytest.mark.long

OFTEN = {"interval": "1s"}


def admin_of(servers: str) -> Admin:
    return Admin(ClusterSettings("any", tuple(servers.split(","))))


def alter(servers: str, topic: str, **changes: str | None) -> None:
    with admin_of(servers) as admin:
        own: Changes = {key.replace("__", "."): value for key, value in changes.items()}
        assert alter_topics(admin, {topic: own}) == {topic: None}


def held(servers: str, topic: str, *keys: str) -> tuple[str | None, ...]:
    """Values in force, in the order of ``keys``."""
    with admin_of(servers) as admin:
        found = admin.topic_configs([topic])[topic]
    assert isinstance(found, dict), found
    return tuple(found[key].value for key in keys)


def mirror_of(clusters: ClusterPair, folder: Path, topic: str, configs: dict[str, Any] | None = None, **settings: Any) -> Mirror:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    topics = {"include": [topic], "configs": {**OFTEN, **(configs or {})}}
    return make_mirror(folder, east, west, [topic], **{"engine": IN_PROCESS, "topics": topics, **settings})


def test_a_change_on_the_source_reaches_the_target_while_a_lane_runs(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    target = f"east.{topic_name}"
    create_topic(east, topic_name, retention__ms="90000000")
    produce(east, topic_name, 20)
    mirror = mirror_of(clusters, tmp_path, topic_name)
    keys = ("retention.ms", "cleanup.policy", "max.message.bytes")
    with running(mirror):
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the records to be copied")
        assert held(west, target, *keys) == ("90000000", "delete", "1048588")
        alter(east, topic_name, retention__ms="70000000", cleanup__policy="compact,delete", max__message__bytes="3000000")
        wait_until(lambda: held(west, target, *keys) == ("70000000", "compact,delete", "3000000"), 60, "the settings to follow")
        alter(east, topic_name, retention__ms=None, cleanup__policy=None, max__message__bytes="2000000")
        wait_until(lambda: held(west, target, *keys) == ("604800000", "delete", "2000000"), 60, "the settings to follow again")
        produce(east, topic_name, 10, start=20)
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the rest to be copied")
    assert_identical(mirror, [topic_name])


def test_a_lane_neither_halts_nor_waits_for_a_restart_after_the_source_was_changed(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    """Compaction leaves holes, and larger records come, while the lane still remembers the settings of before."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, segment__ms="100", min__cleanable__dirty__ratio="0.01", delete__retention__ms="100")
    produce(east, topic_name, 20)
    mirror = mirror_of(clusters, tmp_path, topic_name)
    with running(mirror):
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the records to be copied")
        began = time.monotonic()
        alter(east, topic_name, retention__ms="70000000", cleanup__policy="compact", max__message__bytes="3000000")
        large = Producer({"bootstrap.servers": east, "message.max.bytes": 3_000_000})
        large.produce(topic_name, os.urandom(2_000_000), b"large")
        assert large.flush(30) == 0
        for turn in range(15):  # the cleaner removes all but the last of each key behind the active segment
            produce_keys(east, topic_name, turn)
            time.sleep(0.2)
        keys = ("retention.ms", "cleanup.policy", "max.message.bytes")
        wait_until(lambda: held(west, f"east.{topic_name}", *keys) == ("70000000", "compact", "3000000"), 120, "the settings to follow")
        assert time.monotonic() - began < 120
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the rest to be copied")
        assert [(row.topic, row.state) for row in mirror.lag().topics] == [(topic_name, "ok")]
    assert [(row.topic, row.state, row.code) for row in mirror.run(once=True).topics] == [(topic_name, "ok", "")]


def produce_keys(servers: str, topic: str, turn: int) -> None:
    """Ten records of the same ten keys."""
    producer = Producer({"bootstrap.servers": servers})
    for number in range(10):
        producer.produce(topic, f"turn {turn}", f"key-{number}")
    assert producer.flush(30) == 0


def test_a10_what_someone_alters_on_the_target_returns_to_the_sources_value(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    """MirrorMaker 2's case A10: an included setting comes back, an excluded one stays as it was altered."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    target, keys = f"east.{topic_name}", ("retention.bytes", "delete.retention.ms")
    create_topic(east, topic_name, retention__bytes="1000000", delete__retention__ms="1000")
    produce(east, topic_name, 10)
    mirror = mirror_of(clusters, tmp_path, topic_name, {"exclude": [r"delete\.retention\.ms"]})
    with running(mirror):
        wait_until(lambda: mirror.lag().lag_records == 0 and mirror_knows(mirror, target, "retention.bytes"), 60, "the topic in step")
        alter(west, target, retention__bytes="2000000", delete__retention__ms="2000")
        wait_until(lambda: held(west, target, *keys) == ("1000000", "2000"), 30, "the value to come back")


def mirror_knows(mirror: Mirror, target: str, key: str) -> bool:
    """Whether a round has written down that it keeps a setting."""
    store = topics_store(mirror.flow)
    return store is not None and any(made.topic == target and made.name == key for made in TopicChanges(store).read())


def test_a11_the_sources_defaults_are_kept_on_the_target(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """MirrorMaker 2's case A11: ``defaults_from: source``; the target is altered. The topic has an own value nowhere."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    target, keys = f"east.{topic_name}", ("retention.bytes", "delete.retention.ms")
    create_topic(east, topic_name)
    produce(east, topic_name, 10)
    mirror = mirror_of(clusters, tmp_path, topic_name, {"defaults_from": "source", "exclude": [r"delete\.retention\.ms"]})
    with running(mirror):
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the records to be copied")
        alter(west, target, retention__bytes="2000000", delete__retention__ms="2000")
        wait_until(lambda: held(west, target, *keys) == ("-1", "2000"), 30, "the source's default")


def test_a12_a_setting_that_the_source_loses_falls_back_to_the_targets_default(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    """MirrorMaker 2's case A12."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    target = f"east.{topic_name}"
    create_topic(east, topic_name, retention__bytes="1000000")
    produce(east, topic_name, 10)
    mirror = mirror_of(clusters, tmp_path, topic_name)
    with running(mirror):
        wait_until(lambda: mirror.lag().lag_records == 0 and mirror_knows(mirror, target, "retention.bytes"), 60, "the topic in step")
        assert held(west, target, "retention.bytes") == ("1000000",)
        alter(east, topic_name, retention__bytes=None)
        wait_until(lambda: held(west, target, "retention.bytes") == ("-1",), 30, "the default")


def test_c2_a_topic_grown_from_10_to_11_partitions_while_a_lane_runs(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """MirrorMaker 2's case C2; the records of the new partition come along. A lane looks for it every 30 s."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 10)
    produce(east, topic_name, 20, partitions=10)
    mirror = mirror_of(clusters, tmp_path, topic_name)
    with running(mirror), admin_of(east) as source, admin_of(west) as target:
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the records to be copied")
        source.grow(topic_name, 11)
        wait_until(lambda: target.topics([f"east.{topic_name}"])[f"east.{topic_name}"].partitions == 11, 90, "the partition")
        produce(east, topic_name, 22, partitions=11, start=20)
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the rest to be copied")
    assert_identical(mirror, [topic_name])


def test_c3_the_policy_of_a_compacted_source_is_on_the_new_target(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """MirrorMaker 2's case C3; there a plug-in does it."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, cleanup__policy="compact")
    produce(east, topic_name, 10)
    assert mirror_of(clusters, tmp_path, topic_name).run(once=True).state == "ok"
    assert held(west, f"east.{topic_name}", "cleanup.policy") == ("compact",)


def in_step(clusters: ClusterPair, folder: Path, topic: str) -> Mirror:
    """A mirror after the first round over a topic that keeps its records for 90,000 seconds."""
    east = clusters[0].bootstrap_servers
    create_topic(east, topic, retention__ms="90000000")
    produce(east, topic, 10)
    mirror = mirror_of(clusters, folder, topic)
    assert mirror.run(once=True).state == "ok"
    wait_until(lambda: mirror_knows(mirror, f"east.{topic}", "retention.ms"), 30, "the round")
    return mirror


def test_settings_of_a_topic_that_was_recreated_on_the_source_are_not_taken(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    """Its copy is of the old topic, and a short retention of the new one would delete it."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = in_step(clusters, tmp_path, topic_name)
    delete_everywhere(east, topic_name)
    create_topic(east, topic_name, retention__ms="1000000")
    assert [row.code for row in mirror.run(seconds=8).topics] == ["recreated"]
    assert held(west, f"east.{topic_name}", "retention.ms") == ("90000000",)


def test_settings_of_a_topic_that_was_handed_over_are_the_applications_own(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = in_step(clusters, tmp_path, topic_name)
    mirror.failover(FailoverOptions())
    alter(west, f"east.{topic_name}", retention__ms="50000000")
    mirror.run(seconds=8)
    assert held(west, f"east.{topic_name}", "retention.ms") == ("50000000",)


@pytest.mark.parametrize("point", ["settings.named", "settings.changed"])
def test_a_round_that_was_killed_is_settled_by_the_next_one(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, point: str
) -> None:
    """The setting follows, and is still known to be the mirror's: the next change follows too."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    target = f"east.{topic_name}"
    create_topic(east, topic_name)
    produce(east, topic_name, 10)
    mirror = mirror_of(clusters, tmp_path, topic_name)
    assert mirror.run(once=True).state == "ok"
    alter(east, topic_name, retention__ms="70000000")
    line = [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(tmp_path / "mirror.yaml"), "run", "--for", "2m"]
    killed = subprocess.run(line, env={**os.environ, CRASH: point}, capture_output=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    with running(mirror):
        wait_until(lambda: held(west, target, "retention.ms") == ("70000000",), 30, "the setting to follow")
        alter(east, topic_name, retention__ms="60000000")
        wait_until(lambda: held(west, target, "retention.ms") == ("60000000",), 30, "the next one to follow")

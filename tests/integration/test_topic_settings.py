"""Settings of target topics follow their source's while a lane runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirror_pipeline import Mirror
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.topics.alter import Changes, alter_topics
from tests.integration.processes import wait_until
from tests.support.groups import IN_PROCESS, running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce

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

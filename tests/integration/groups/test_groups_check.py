"""What is said of groups that are not carried over: before a run by `mirror check`, and after it by `mirror groups`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place

from mirror_pipeline.reports import Finding
from tests.integration.processes import wait_until
from tests.support.groups import commit, consumer, mirror_of
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, produce
from tests.support.share_groups import join_share_group


@pytest.fixture
def prefix(topic_name: str) -> str:
    return f"{topic_name}-"


@pytest.fixture
def new_clusters(cluster_pairs: Callable[[str], ClusterPair]) -> ClusterPair:
    """Kafka 3.9 has no share groups."""
    return cluster_pairs("4.4.0")


def about_groups(findings: list[Finding]) -> Finding:
    (finding,) = [finding for finding in findings if finding.what == "groups"]
    return finding


def test_share_groups_silent_patterns_and_active_groups_are_said(new_clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in new_clusters)
    topic, shared, active = f"{prefix}t", f"{prefix}share", f"{prefix}active"
    create_topic(east, topic)
    produce(east, topic, 20)
    join_share_group(east, shared, topic)
    commit(east, active, {Place(topic, 0): 5})
    patterns = {"include": [f"{prefix}.*", f"no-{prefix}.*"], "interval": "1s"}
    mirror = mirror_of(new_clusters, tmp_path, prefix, groups=patterns)
    before = about_groups(mirror.check())
    assert before.ok and before.detail.startswith("1 of ")
    assert f"groups.include: 'no-{prefix}.*' matches none of the " in before.detail
    assert f"{shared} is not carried over: share group: brokers keep a state of each record" in before.detail
    assert "active on" not in before.detail
    mirror.run(once=True)
    report = mirror.groups()
    assert {row.group: (row.state, row.target_offset) for row in report.groups} == {
        active: ("in_step", 5), shared: ("not_carried", None),
    }  # fmt: skip
    member = consumer(west, active)
    member.subscribe([f"east.{topic}"])
    wait_until(lambda: member.poll(0.5) is not None, 60, "the group's member on the target to join")
    assert f"warning: active on west: {active}; offsets are not written there" in about_groups(mirror.check()).detail
    member.close()


def test_a_mirror_without_groups_has_no_such_finding(clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    create_topic(clusters[0].bootstrap_servers, f"{prefix}t")
    mirror = mirror_of(clusters, tmp_path, prefix, groups={"include": []})
    assert "groups" not in {finding.what for finding in mirror.check()}

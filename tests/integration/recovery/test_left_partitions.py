"""A target that answers and does not take one topic's records: `run --once` copies the others, ends, and names what it left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline.errors import UsageError
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.integration.processes import wait_until
from tests.support.groups import IN_PROCESS
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce

pytestmark = pytest.mark.long

WAIT = 5


def create_on(servers: str, topic: str, brokers: list[int], **configs: str) -> None:
    """A topic of two partitions with its replicas on these brokers."""
    settings = {key.replace("__", "."): value for key, value in configs.items()}
    new = NewTopic(topic, 2, replica_assignment=[brokers, brokers], config=settings)
    admin = AdminClient({"bootstrap.servers": servers})  # kept: its calls end with it
    admin.create_topics([new])[topic].result(15)


def in_sync(servers: str, topic: str) -> list[int]:
    """How many replicas of each partition are in sync, as this broker knows."""
    partitions = AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=10).topics[topic].partitions
    return [len(partition.isrs) for partition in partitions.values()]


@pytest.mark.parametrize("full", [False, True], ids=["room", "full buffer"])
def test_a_topic_below_its_minimum_of_replicas_is_left_and_the_others_are_copied(
    clusters: ClusterPair, cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, new_topic_name: Callable[[], str], full: bool
) -> None:
    (target,) = cluster_factory(1, config={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"})
    east, west = clusters[0].bootstrap_servers, target.bootstrap_servers
    good, bad = new_topic_name(), new_topic_name()
    engine = {**IN_PROCESS, "target_wait": f"{WAIT}s", "micro_batch_bytes": "1MB"}
    buffer = {"max_bytes": "8MB"} if full else {}
    for topic in (good, bad):
        create_topic(east, topic, 2)
        produce(east, topic, 100, partitions=2)
    first = west.split(",")[0]  # leads both partitions, and is not the one that stops
    one, two, three = (broker.node for broker in target.brokers)
    create_on(west, f"east.{good}", [one, three])
    create_on(west, f"east.{bad}", [one, two], min__insync__replicas="2")
    mirror = make_mirror(tmp_path, east, west, [good, bad], engine=engine, buffer=buffer)
    assert mirror.run(once=True).state == "ok"
    target.brokers[1].signal(signal.SIGSTOP)
    wait_until(lambda: in_sync(first, f"east.{bad}") == [1, 1], 60, "the controller to know")
    produce(east, bad, 20_000 if full else 100, partitions=2, start=100, size=1000)
    produce(east, good, 2_000 if full else 100, partitions=2, start=100, size=1000)
    began = time.monotonic()
    report = mirror.run(once=True)
    assert time.monotonic() - began < WAIT + 30
    rows = {row.topic: row for row in report.topics}
    assert (report.state, report.target_down, rows[bad].state) == ("behind", "", "behind")
    assert all(name in rows[bad].reason for name in (f"east.{bad}[0], east.{bad}[1]", "NOT_ENOUGH_REPLICAS", "the next run"))
    if not full:
        assert rows[good].state == "ok"
        assert_identical(mirror, [good])
    target.brokers[1].signal(signal.SIGCONT)
    wait_until(lambda: in_sync(first, f"east.{bad}") == [2, 2], 60, "the replicas to follow")
    assert mirror.run(once=True).state == "ok"
    assert_identical(mirror, [good, bad])


def test_a_topic_without_a_leader_is_named_by_verify_and_the_others_are_compared_and_repaired(
    clusters: ClusterPair, cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, new_topic_name: Callable[[], str]
) -> None:
    (target,) = cluster_factory(1)
    east, west = clusters[0].bootstrap_servers, target.bootstrap_servers
    good, bad = new_topic_name(), new_topic_name()
    one, _, three = (broker.node for broker in target.brokers)
    for topic, broker in ((good, one), (bad, three)):
        create_topic(east, topic, 2)
        produce(east, topic, 100, partitions=2)
        create_on(west, f"east.{topic}", [broker])
    mirror = make_mirror(tmp_path, east, west, [good, bad], engine=IN_PROCESS)
    assert mirror.run(once=True).state == "ok"
    target.kill(node=three)
    verified = {row.topic: row for row in mirror.verify().topics}
    assert (verified[good].verdict, verified[good].records) == ("identical", 100)
    assert verified[bad].verdict == "unreadable"
    assert f"east.{bad}[0]" in verified[bad].note
    assert mirror.repair(good).ok
    with pytest.raises(UsageError, match="cannot be repaired"):
        mirror.repair(bad)

"""What the leader has appended and its replicas have not: no consumer sees it, the tail must not miss it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.write.recovery import NotReplicated, read_tail
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.model import Position, TopicPartition
from tests.integration.processes import wait_until

PLACE = TopicPartition("t", 0)


@pytest.mark.slow
def test_the_end_of_the_leaders_log_is_told_and_a_tail_waits_for_it(cluster_factory: Callable[..., list[LocalCluster]]) -> None:
    (cluster,) = cluster_factory(1, brokers=3, config={"replica.lag.time.max.ms": "120000"})
    servers = cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("t", 1, 3, config={"min.insync.replicas": "1"})])["t"].result(30)
    producer = Producer({"bootstrap.servers": servers, "acks": "1"})
    producer.produce("t", b"seen by all")
    assert producer.flush(30) == 0
    with WireClient(ClusterSettings("c", tuple(servers.split(",")))) as client:
        leader = client.leader(PLACE)
        wait_until(lambda: client.list_offsets({PLACE: -1}, isolation=0)[PLACE].offset == 1, 30, "the first record to be replicated")
        followers = [broker for broker in cluster.brokers if broker.node != leader]
        for broker in followers:
            broker.signal(signal.SIGSTOP)
        try:
            producer.produce("t", b"on the leader alone")
            assert producer.flush(30) == 0
            assert client.list_offsets({PLACE: -1}, isolation=0)[PLACE].offset == 1
            assert client.log_ends([PLACE])[PLACE].offset == 2
            with pytest.raises(NotReplicated):
                read_tail(client, PLACE, Position(1, 1, 1), None, timeout=0.5)
        finally:
            for broker in followers:
                broker.signal(signal.SIGCONT)
        wait_until(lambda: client.list_offsets({PLACE: -1}, isolation=0)[PLACE].offset == 2, 60, "the replicas to catch up")

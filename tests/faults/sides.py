"""A cluster of several brokers as the faults see it: one broker dies, hangs or is restarted, leaders move, quotas come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.errors import KafkaError

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.child import wait_for

STOP_SECONDS = 30.0
IN_SYNC_SECONDS = 60.0
QUICK = {
    "min.insync.replicas": "2", "replica.lag.time.max.ms": "5000", "broker.session.timeout.ms": "6000",
    "auto.leader.rebalance.enable": "false",
}  # fmt: skip
"""A broker that is not heard of for 6 s loses its leaders (Kafka's own default: 9 s)."""
STEADY = {**QUICK, "broker.session.timeout.ms": "45000"}
"""Leaders stay where they are while a broker hangs."""
FORGETFUL = {"producer.id.expiration.ms": "1000", "producer.id.expiration.check.interval.ms": "300"}
"""Producers whose last record is older than a second are forgotten."""


@dataclass(frozen=True, slots=True)
class Side:
    """Source or target."""

    name: str
    cluster: LocalCluster

    @property
    def nodes(self) -> list[int]:
        """Ids of the brokers."""
        return [broker.node for broker in self.cluster.brokers]

    def stop(self, node: int) -> None:
        """A clean stop of one broker: it hands its leaders over."""
        broker = next(broker for broker in self.cluster.brokers if broker.node == node)
        broker.terminate()
        broker.end(time.monotonic() + STOP_SECONDS)

    def restart(self, node: int) -> None:
        """A broker is stopped, started, and has caught up."""
        self.stop(node)
        self.cluster.start()
        self.in_sync()

    def in_sync(self) -> None:
        """Wait until all replicas follow: what is acknowledged by two must not be lost with the next kill.

        Raises:
            Stuck: they do not.
        """
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})

        def follow() -> bool:
            with suppress(KafkaException):
                topics = admin.list_topics(timeout=10).topics.values()
                return all(p.leader >= 0 and len(p.isrs) == len(p.replicas) for t in topics for p in t.partitions.values())
            return False

        wait_for(f"replicas of {self.name} to be in sync", follow, IN_SYNC_SECONDS, poll=0.2)

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """Who leads each partition, -1 for none; nothing while the cluster cannot be asked."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})
        with suppress(KafkaException):
            found = admin.list_topics(timeout=5).topics
            return {(name, n): p.leader for name in topics if name in found for n, p in found[name].partitions.items()}
        return {}

    def move_leaders(self, topics: Sequence[str], turn: int) -> tuple[int, str]:
        """Every partition's replicas are turned by ``turn`` places, and the then preferred ones elected.

        Returns:
            How many partitions have another preferred leader now, and what the cluster said when it refused.
        """
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap_servers.split(","), request_timeout_ms=15_000)
        try:
            turned = {
                KafkaPartition(topic["name"], part["partition_index"]): part["replica_nodes"][turn:] + part["replica_nodes"][:turn]
                for topic in admin.describe_topics(list(topics))
                for part in topic["partitions"]
                if len(part["replica_nodes"]) > 1
            }
            admin.alter_partition_reassignments(turned)
            admin.elect_leaders(0, {name: [tp.partition for tp in turned if tp.topic == name] for name in topics}, raise_errors=False)
        except KafkaError as error:
            return 0, str(error)
        finally:
            admin.close()
        return len(turned), ""

    def hang(self, node: int, seconds: float, meanwhile: Callable[[float], None] | None = None) -> None:
        """A broker gets SIGSTOP, and SIGCONT when ``seconds`` are over and ``meanwhile``, which gets the end time, has returned."""
        began = time.monotonic()
        self.cluster.pause(node=node)
        try:
            if meanwhile is not None:
                meanwhile(began + seconds)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        finally:
            self.cluster.resume(node=node)

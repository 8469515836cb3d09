"""Both clusters of the hazards as an administrator and a producer see them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.account import read_values
from tests.faults.child import wait_for
from tests.faults.report import Account

ADMIN_SECONDS = 30.0


class Ground:
    """Creates, fills, trims, deletes topics on two clusters."""

    def __init__(self, source: LocalCluster, target: LocalCluster, account: Account) -> None:
        self.source, self.target, self.account = source, target, account
        self.connect()

    def connect(self) -> None:
        """New clients; after a crash of the source too."""
        quiet = {"log_level": 0}
        self._source = AdminClient({"bootstrap.servers": self.source.bootstrap_servers, **quiet})
        self._target = AdminClient({"bootstrap.servers": self.target.bootstrap_servers, **quiet})
        settings = {"enable.idempotence": True, "message.max.bytes": 2_000_000, **quiet}
        self._producer = Producer({"bootstrap.servers": self.source.bootstrap_servers, **settings})

    def _admin(self, target: bool) -> AdminClient:
        return self._target if target else self._source

    def create(self, topic: str, partitions: int, *, target: bool = False, **more: str) -> None:
        """A topic with unlimited retention; retried while an older one of the name is being deleted."""
        new = NewTopic(topic, partitions, 1, config={"retention.ms": "-1", "max.message.bytes": "2000000", **more})

        def created() -> bool:
            try:
                self._admin(target).create_topics([new])[topic].result(ADMIN_SECONDS)
            except KafkaException:
                return False
            return True

        wait_for(f"topic {topic} to be created", created, ADMIN_SECONDS)
        wait_for(f"leaders of {topic}", lambda: self._led(topic, partitions, target), ADMIN_SECONDS)

    def _led(self, topic: str, partitions: int, target: bool) -> bool:
        found = self._admin(target).list_topics(topic, timeout=10).topics[topic].partitions
        return len(found) == partitions and all(part.leader >= 0 for part in found.values())

    def delete(self, topic: str, *, target: bool = False) -> None:
        """Delete and wait until it is in no broker's metadata."""
        self._admin(target).delete_topics([topic])[topic].result(ADMIN_SECONDS)
        wait_for(f"{topic} to be gone", lambda: topic not in self._admin(target).list_topics(timeout=10).topics, ADMIN_SECONDS)

    def topics(self) -> list[str]:
        """Names of the source's topics."""
        return sorted(self._source.list_topics(timeout=10).topics)

    def grow(self, topic: str, partitions: int) -> None:
        """More partitions on the source."""
        self._source.create_partitions([NewPartitions(topic, partitions)])[topic].result(ADMIN_SECONDS)
        wait_for(f"leaders of {topic}", lambda: self._led(topic, partitions, False), ADMIN_SECONDS)

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Settings of a target topic."""
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._target.incremental_alter_configs([resource])[resource].result(ADMIN_SECONDS)

    def trim(self, topic: str, firsts: Mapping[int, int]) -> None:
        """DeleteRecords: the log starts at these offsets now."""
        for future in self._source.delete_records([Place(topic, p, at) for p, at in firsts.items()]).values():
            future.result(ADMIN_SECONDS)

    def put(self, topic: str, partition: int, name: str, *, size: int, age: float, key: str | None) -> None:
        """One record whose value begins with its name."""
        body = name.encode() + b" "
        body += os.urandom(size) if size > 1000 else b"x" * size
        when: dict[str, Any] = {"timestamp": int((time.time() - age) * 1000)} if age else {}
        self._producer.produce(topic, body, key, partition, **when)

    def flush(self) -> None:
        """All records are on the source."""
        if self._producer.flush(60):
            raise AssertionError("the source does not take records")

    def transaction(self, topic: str) -> Producer:
        """A producer in a transaction that lasts ten minutes unless it is ended."""
        times = {"transactional.id": topic, "transaction.timeout.ms": 600_000}
        client = Producer({"bootstrap.servers": self.source.bootstrap_servers, "log_level": 0, **times})
        client.init_transactions(30)
        client.begin_transaction()
        return client

    def names(self, topic: str) -> dict[int, list[str]]:
        """The records' names on a target topic, by partition; nothing while it does not exist."""
        return read_values(self.target.bootstrap_servers, topic, committed=False)

"""Topics in trouble of different kinds beside healthy ones: how each trouble is made, and what must be said of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.model import TopicPartition
from tests.faults.child import wait_for
from tests.support.scram import USER

FEED_SECONDS = 0.25
LOOK_SECONDS = 0.5
ADMIN_SECONDS = 30.0
DARK = 3
"""The broker of each cluster that goes away: topics of it alone have no leader then, others one replica less."""


class Feeder:
    """One record to each topic four times a second, until stopped; what a cluster refuses is the trouble's business."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 20, "message.timeout.ms": 5000, "log_level": 0}
        self._producer = Producer(settings)
        self._topics: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._thread.start()

    def add(self, *topics: str) -> None:
        """Feed these too."""
        self._topics = self._topics.union(topics)

    def leave_out(self, topic: str) -> None:
        """Feed it no more."""
        self._topics = self._topics.difference({topic})

    def stop(self) -> None:
        """No more records; those on their way arrive or fail."""
        self._stop.set()
        self._thread.join(60)
        self._producer.flush(30)

    def _feed(self) -> None:
        number = 0
        while not self._stop.wait(FEED_SECONDS):
            for topic in self._topics:
                self._producer.produce(topic, f"{topic}/{number} ".encode().ljust(400, b"x"), f"k{number}".encode())
            number += 1
            self._producer.poll(0)


class StandStill:
    """How long the copies of healthy topics stood still at most, by the ends of their logs."""

    def __init__(self, target: Any, topics: Mapping[str, str]) -> None:
        self._target, self._topics = target, topics
        self._ends: dict[str, int] = {}
        self._moved: dict[str, float] = {}
        self.longest: dict[str, float] = dict.fromkeys(topics, 0.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stand-still", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join(60)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                with WireClient(self._target, timeout=5.0) as client:
                    while not self._stop.wait(LOOK_SECONDS):
                        self._look(client)
            except MirrorError:
                continue  # the observer's own connection: the next look is over a new one, and the clock goes on

    def _look(self, client: WireClient) -> None:
        answers = client.list_offsets({TopicPartition(copy, 0): -1 for copy in self._topics.values()}, isolation=0)
        now = time.monotonic()
        for topic, copy in self._topics.items():
            answer = answers[TopicPartition(copy, 0)]
            since = self._moved.setdefault(topic, now)
            if not answer.error and answer.offset != self._ends.get(topic):
                self._ends[topic], self._moved[topic] = answer.offset, now
            self.longest[topic] = max(self.longest[topic], now - since)


@dataclass
class Sides:
    """Both clusters as their operator sees them; the mirror comes in as USER, with all rights that are not denied."""

    source: LocalCluster
    target: LocalCluster
    feeder: Feeder
    admins: dict[str, AdminClient] = field(default_factory=dict)

    def admin(self, cluster: LocalCluster) -> AdminClient:
        """Kept: its calls end with it."""
        return self.admins.setdefault(cluster.name, AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}))

    def create(self, cluster: LocalCluster, topic: str, *, brokers: list[int] | None = None, **settings: str) -> None:
        """A topic of one partition, on three brokers or on those that are named."""
        config = {key.replace("__", "."): value for key, value in settings.items()}
        place: dict[str, Any] = {"replica_assignment": [brokers]} if brokers else {"replication_factor": 3}
        self.admin(cluster).create_topics([NewTopic(topic, 1, config=config, **place)])[topic].result(ADMIN_SECONDS)

    def delete(self, cluster: LocalCluster, topic: str) -> None:
        """Delete a topic, and wait until no broker knows it."""
        self.admin(cluster).delete_topics([topic])[topic].result(ADMIN_SECONDS)
        wait_for(f"{topic} to be gone", lambda: topic not in self.admin(cluster).list_topics(timeout=10).topics, ADMIN_SECONDS)

    def configure(self, cluster: LocalCluster, topic: str, **settings: str) -> None:
        """Set settings of a topic."""
        set_to = AlterConfigOpType.SET
        entries = [ConfigEntry(k.replace("__", "."), v, incremental_operation=set_to) for k, v in settings.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin(cluster).incremental_alter_configs([resource])[resource].result(ADMIN_SECONDS)

    def deny(self, cluster: LocalCluster, topic: str, operation: str) -> AclBinding:
        """Take a right on a topic away from the mirror."""
        denied = AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation[operation], AclPermissionType.DENY
        )
        self.admin(cluster).create_acls([denied])[denied].result(ADMIN_SECONDS)
        return denied

    def trim(self, topic: str) -> None:
        """Delete every record of a source topic."""
        place = Place(topic, 0, -1)
        self.admin(self.source).delete_records([place])[place].result(ADMIN_SECONDS)

    def write(self, cluster: LocalCluster, topic: str, value: bytes) -> None:
        """One record by an application."""
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, "message.max.bytes": 5_000_000})
        producer.produce(topic, value)
        if producer.flush(30):
            raise KafkaException(f"{topic} takes no record")


Trouble = Callable[[Sides, str], None]


def recreated(sides: Sides, topic: str) -> None:
    """Deleted and made again."""
    sides.feeder.leave_out(topic)
    sides.delete(sides.source, topic)
    sides.create(sides.source, topic)
    sides.feeder.add(topic)


def gone(sides: Sides, topic: str) -> None:
    """Deleted."""
    sides.feeder.leave_out(topic)
    sides.delete(sides.source, topic)


def read_denied(sides: Sides, topic: str) -> None:
    """The mirror may not read it any more."""
    sides.deny(sides.source, topic, "READ")


def write_denied(sides: Sides, topic: str) -> None:
    """The mirror may not write its copy any more."""
    sides.deny(sides.target, "east." + topic, "WRITE")


def create_denied(sides: Sides, topic: str) -> None:
    """A topic appears whose copy the mirror may not create."""
    sides.deny(sides.target, "east." + topic, "CREATE")
    sides.create(sides.source, topic)
    sides.feeder.add(topic)


def too_long(sides: Sides, topic: str) -> None:
    """A topic appears whose copy would have a longer name than Kafka allows."""
    sides.create(sides.source, topic)
    sides.feeder.add(topic)


def trimmed(sides: Sides, topic: str) -> None:
    """The source deletes records that were not read: they came while reading was denied."""
    denied = sides.deny(sides.source, topic, "READ")
    time.sleep(10)
    sides.trim(topic)
    sides.admin(sides.source).delete_acls([_filter(denied)])


def foreign_writer(sides: Sides, topic: str) -> None:
    """An application writes into the copy."""
    sides.write(sides.target, "east." + topic, b"foreign")


def oversize(sides: Sides, topic: str) -> None:
    """The copy takes no large records any more, and one comes."""
    sides.configure(sides.target, "east." + topic, max__message__bytes="2000")
    sides.configure(sides.source, topic, max__message__bytes="3000000")
    sides.write(sides.source, topic, b"large" * 400_000)


def few_replicas(sides: Sides, topic: str) -> None:
    """The copy needs three replicas in sync, and one broker is away."""
    sides.configure(sides.target, "east." + topic, min__insync__replicas="3")


def _filter(binding: AclBinding) -> Any:
    from confluent_kafka.admin import AclBindingFilter

    return AclBindingFilter(
        binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host, binding.operation,
        binding.permission_type,
    )  # fmt: skip


LONG = "x" * 246
"""A name that fits on the source, and not with ``east.`` in front."""
TROUBLES: dict[str, Trouble] = {
    "t-recreated": recreated, "t-gone": gone, "t-read-denied": read_denied, "t-write-denied": write_denied,
    "t-create-denied": create_denied, LONG: too_long, "t-trimmed": trimmed, "t-foreign": foreign_writer, "t-oversize": oversize,
    "t-few-replicas": few_replicas,
}  # fmt: skip
"""What happens to each topic; ``t-dark-source`` and ``t-dark-target`` lose their leader when broker DARK stops."""
APPEAR_LATER = frozenset({"t-create-denied", LONG})
DARK_SOURCE, DARK_TARGET = "t-dark-source", "t-dark-target"

"""Help for tests that run a whole mirror between two clusters."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.local.embedded.ports import free_port
from mirror_pipeline.local.shapes.ground import known_everywhere, local_settings
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.compare import TopicComparison, compare_topics
from mirror_pipeline.verify.log_walk import read_log
from tests.support.paths import path_settings
from tests.support.replicas import replicas_for


def write_config(folder: Path, source: str, target: str, include: Iterable[str], **mirror: Any) -> Path:
    """A mirror.yaml (JSON is YAML) with one mirror ``m``; ``engine``, ``buffer`` and ``clusters`` go to their own blocks.

    Unless ``engine`` has ``inline_bytes``, the test's folder decides whether Spark runs every micro-batch, see ``tests.support.paths``.
    """
    body = {
        "clusters": mirror.pop("clusters", {"east": {"bootstrap_servers": source}, "west": {"bootstrap_servers": target}}),
        "buffer": {"uri": "./buffer", **mirror.pop("buffer", {})},
        "engine": {"request_timeout": "10s", "target_wait": "20s", "source_wait": "20s", **path_settings(), **mirror.pop("engine", {})},
        "mirrors": [{"name": "m", "source": "east", "target": "west", "topics": {"include": list(include)}, **mirror}],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mirror.yaml"
    path.write_text(json.dumps(body, indent=1))
    return path


def make_mirror(folder: Path, source: str, target: str, include: Iterable[str], **mirror: Any) -> Mirror:
    """The mirror of :func:`write_config`."""
    return Mirror(load_config(write_config(folder, source, target, include, **mirror)), "m")


def nowhere(cluster: ClusterSettings) -> ClusterSettings:
    """The cluster under an address where nobody listens."""
    return replace(cluster, bootstrap_servers=(f"127.0.0.1:{free_port()}",))


def create_topic(bootstrap: str, name: str, partitions: int = 1, *, replicas: int | None = None, **configs: str) -> None:
    """Create a topic and wait for the answer; dots in a setting's name are written as two underscores.

    ``replicas``: three or one unless a number is given, see :func:`replicas_for`.
    """
    settings = {key.replace("__", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its calls end with it
    admin.create_topics([NewTopic(name, partitions, replicas or replicas_for(bootstrap), config=settings)])[name].result(15)
    known_everywhere(local_settings(bootstrap), name, partitions)


def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    """Let a topic have so many partitions, known to all brokers."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its calls end with it
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(15)
    known_everywhere(local_settings(bootstrap), topic, partitions)


def trim(bootstrap: str, topic: str, starts: Mapping[int, int]) -> None:
    """Move the starts of logs, as retention does; a broker that has just started may not lead the partition yet."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    until = time.monotonic() + 30
    for partition, offset in starts.items():
        place = Place(topic, partition, offset)
        while True:
            try:
                admin.delete_records([place])[place].result(15)
                break
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > until:
                    raise
                time.sleep(0.2)


def produce(bootstrap: str, topic: str, count: int, *, partitions: int = 1, start: int = 0, at: int | None = None, size: int = 20) -> None:
    """Put records with unique values into a topic, one after the other over its partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for number in range(start, start + count):
        extra: dict[str, Any] = {} if at is None else {"timestamp": at + number - start}
        producer.produce(topic, f"value-{number}".encode().ljust(size, b"."), f"key-{number}".encode(), number % partitions, **extra)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def end_offsets(mirror: Mirror, topic: str, *, target: bool) -> dict[int, int]:
    """Log end offsets of a topic, uncommitted records included."""
    return _offsets(mirror, topic, LATEST_TIME, target=target)


def log_starts(mirror: Mirror, topic: str, *, target: bool) -> dict[int, int]:
    """Log start offsets of a topic."""
    return _offsets(mirror, topic, EARLIEST_TIME, target=target)


def _offsets(mirror: Mirror, topic: str, at: int, *, target: bool) -> dict[int, int]:
    with WireClient(mirror.flow.target if target else mirror.flow.source) as client:
        parts = [TopicPartition(topic, number) for number in client.metadata([topic]).topics[topic].partitions]
        return {tp.partition: answer.offset for tp, answer in client.list_offsets(dict.fromkeys(parts, at), isolation=0).items()}


def verdicts(mirror: Mirror, topics: Collection[str], prefix: str = "east.") -> list[TopicComparison]:
    """Compare every record of the topics on both sides."""
    return compare_topics(mirror.flow.source, mirror.flow.target, {topic: prefix + topic for topic in topics})


def assert_identical(mirror: Mirror, topics: Collection[str], prefix: str = "east.") -> None:
    """Fail with the first differences unless both sides hold the same records in the same order."""
    different = {v.topic: (v.verdict, v.differences[:3]) for v in verdicts(mirror, topics, prefix) if v.verdict != "identical"}
    assert different == {}


def values(mirror: Mirror, topic: str, partition: int = 0) -> list[str]:
    """Every value of a target partition as a read_uncommitted consumer sees them, in order."""
    place = TopicPartition(topic, partition)
    with WireClient(mirror.flow.target) as client:
        start, end = log_range(client, [place], isolation=0)[place]
        return [(record.value or b"").decode() for piece in read_log(client, place, start, end, isolation=0) for record in piece.records()]

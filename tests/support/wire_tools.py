"""Stamped batches for the wire's integration tests, and a reader that shares no code with it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline.config import ClusterSettings, Security
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.produce import ProduceAnswer, receive_produce, send_produce
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, OpenRecord, headers, restamp, seal, tail_of
from mirror_pipeline.local.shapes.ground import known_everywhere
from mirror_pipeline.model import Stamp, TopicPartition
from tests.support.replicas import replicas_for

NOW = int(time.time() * 1000)


def settings(servers: str, security: Security | None = None, alias: str = "test") -> ClusterSettings:
    """Settings of a cluster by its addresses."""
    return ClusterSettings(alias, tuple(servers.split(",")), security or Security())


def new_topic(servers: str, *, partitions: int = 1, replicas: int | None = None, config: Mapping[str, str] | None = None) -> str:
    """A topic of the test's own."""
    name = f"wire-{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_topics([NewTopic(name, partitions, replicas or replicas_for(servers), config=dict(config or {}))]).values():
        done.result(60)
    known_everywhere(settings(servers), name, partitions)
    with WireClient(settings(servers)) as client:  # a leader that metadata names may not serve the partition yet
        answers = client.list_offsets({TopicPartition(name, i): -1 for i in range(partitions)})
    assert {answer.error for answer in answers.values()} == {0}
    return name


def batch(values: list[bytes], *, codec: int = 0, timestamp: int = NOW) -> bytes:
    """An unstamped batch."""
    return seal([OpenRecord(i, timestamp + i, tail_of(None, value)) for i, value in enumerate(values)], codec=codec)


def stamped(body: bytes, stamp: Stamp, sequence: int) -> tuple[bytes, memoryview]:
    """Head and rest as produce takes them."""
    ((_, header),) = headers(body)
    return restamp(header, memoryview(body), stamp, sequence), memoryview(body)[HEADER_BYTES:]


def put(client: WireClient, tp: TopicPartition, body: bytes, stamp: Stamp, sequence: int, *, lane: int = 0) -> ProduceAnswer:
    """Produce one batch and wait for the answer."""
    connection = client.connection(client.leader(tp), lane)
    send_produce(connection, {tp: stamped(body, stamp, sequence)}, timeout_ms=20_000)
    return receive_produce(connection)[tp]


def read_values(servers: str, tp: TopicPartition, **more: str) -> list[tuple[int, bytes | None]]:
    """Offsets and values of a whole partition, by librdkafka."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "enable.partition.eof": True, **more})
    consumer.assign([ConfluentPartition(tp.topic, tp.partition, 0)])
    got = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            consumer.close()
            return got
        got.append((message.offset() or 0, message.value()))
    raise AssertionError(f"no end of {tp} within 60 s, {len(got)} records so far")

"""What brokers say about a cluster: metadata, offsets, producers. Facts, and how to read them from responses."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from mirror_pipeline.model import TopicPartition

EARLIEST_TIME, LATEST_TIME, MAX_TIMESTAMP = -2, -1, -3  # times that ListOffsets gives a meaning of their own
NO_TOPIC_ID = ""  # brokers before Kafka 2.8


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Leader and replicas of a partition; ``leader`` is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; ``topic_id`` as Kafka prints it (KIP-516), empty when the broker has none or ``error`` is set."""

    name: str
    topic_id: str
    error: int
    internal: bool
    partitions: dict[int, PartitionMetadata]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A cluster as one broker sees it."""

    cluster_id: str
    controller: int
    brokers: dict[int, tuple[str, int]]
    topics: dict[str, TopicMetadata]


class OffsetAnswer(NamedTuple):
    """An offset, the time of its record (-1 for earliest and latest), an error code, and the offset's leader epoch."""

    offset: int
    timestamp: int
    error: int
    leader_epoch: int = -1


class ProducerState(NamedTuple):
    """What a partition remembers about a producer (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start: int


class TopicIds:
    """Ids of a cluster's topics by name, and names by id. Names are never forgotten: an answer must find the one that was asked for."""

    __slots__ = ("by_name", "names", "texts")

    def __init__(self) -> None:
        self.by_name: dict[str, bytes] = {}
        self.names: dict[bytes, str] = {}
        self.texts: dict[str, str] = {}

    def learn(self, name: str, topic_id: str) -> None:
        """Take over what metadata says of a topic; "" is not known."""
        if not topic_id or self.texts.get(name) == topic_id:
            return
        self.texts[name], as_bytes = topic_id, topic_uuid(topic_id).bytes
        self.names[as_bytes] = name
        self.by_name[name] = as_bytes


def cluster_metadata(response: Any) -> ClusterMetadata:
    """Read a Metadata response."""
    return ClusterMetadata(
        cluster_id=response.cluster_id or "",
        controller=response.controller_id,
        brokers={broker.node_id: (broker.host, broker.port) for broker in response.brokers},
        topics={topic.name: _topic(topic) for topic in response.topics if topic.name is not None},
    )


def offset_answers(response: Any) -> Iterator[tuple[TopicPartition, OffsetAnswer]]:
    """Read a ListOffsets response."""
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            yield tp, OffsetAnswer(part.offset, part.timestamp, part.error_code, part.leader_epoch)


def producer_answers(response: Any) -> Iterator[tuple[TopicPartition, tuple[int, str | None, list[ProducerState]]]]:
    """Read a DescribeProducers response: error code, message, producers."""
    for topic in response.topics:
        for part in topic.partitions:
            states = [
                ProducerState(
                    p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp, p.coordinator_epoch, p.current_txn_start_offset
                )
                for p in part.active_producers
            ]
            yield TopicPartition(topic.name, part.partition_index), (part.error_code, part.error_message, states)


def topic_id_text(topic_id: uuid.UUID | None) -> str:
    """A topic id in Kafka's own notation: URL-safe base64 without padding."""
    if topic_id is None or topic_id.int == 0:
        return NO_TOPIC_ID
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_uuid(topic_id: str) -> uuid.UUID:
    """The topic id that :func:`topic_id_text` prints so."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=" * (-len(topic_id) % 4)))


def _topic(topic: Any) -> TopicMetadata:
    parts = {
        part.partition_index: PartitionMetadata(
            part.leader_id, part.leader_epoch, tuple(part.replica_nodes), tuple(part.isr_nodes), part.error_code
        )
        for part in topic.partitions
    }
    return TopicMetadata(topic.name, topic_id_text(topic.topic_id), topic.error_code, bool(topic.is_internal), parts)


def epoch_answers(response: Any) -> Iterator[tuple[TopicPartition, OffsetAnswer]]:
    """The partitions of an OffsetForLeaderEpoch response."""
    for topic in response.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.topic, part.partition), OffsetAnswer(part.end_offset, -1, part.error_code, part.leader_epoch)

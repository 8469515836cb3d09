"""Requests about many partitions at once, built for one leader's share of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from mirror_pipeline.kafka.wire.messages import DescribeProducersRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from mirror_pipeline.model import TopicPartition

Build = Callable[[list[TopicPartition]], Any]


# Replica ids of clients. To a debugger ListOffsets tells the log's very end, replicated or not (Kafka sources,
# ``ReplicaManager.fetchOffset``: the isolation level counts for consumers only).
CONSUMER, DEBUGGER = -1, -2


def offsets(at: Mapping[TopicPartition, int], isolation: int, replica_id: int = CONSUMER) -> Build:
    """ListOffsets for a time of each partition."""
    kind = ListOffsetsRequest.ListOffsetsTopic
    part = kind.ListOffsetsPartition

    def build(tps: list[TopicPartition]) -> Any:
        topics = [
            kind(name=name, partitions=[part(partition_index=tp.partition, current_leader_epoch=-1, timestamp=at[tp]) for tp in group])
            for name, group in _by_topic(tps)
        ]
        return ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation, topics=topics)

    return build


def epochs(at: Mapping[TopicPartition, int]) -> Build:
    """OffsetForLeaderEpoch for an epoch of each partition."""
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    part = kind.OffsetForLeaderPartition

    def build(tps: list[TopicPartition]) -> Any:
        topics = [
            kind(topic=name, partitions=[part(partition=tp.partition, current_leader_epoch=-1, leader_epoch=at[tp]) for tp in group])
            for name, group in _by_topic(tps)
        ]
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)

    return build


def producers(tps: list[TopicPartition]) -> Any:
    """DescribeProducers."""
    kind = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(
        topics=[kind(name=name, partition_indexes=[tp.partition for tp in group]) for name, group in _by_topic(tps)]
    )


def _by_topic(tps: Iterable[TopicPartition]) -> Iterator[tuple[str, Iterator[TopicPartition]]]:
    return groupby(sorted(tps), key=lambda tp: tp.topic)

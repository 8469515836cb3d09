"""The hand-written WriteTxnMarkers against kafka-python's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.markers import write_markers
from mirror_pipeline.model import MarkerStamp, TopicPartition

A0, A1, B7 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b" * 200, 7)


class Broker:
    """Takes one request and gives one answer."""

    peer = "broker 1"

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.body = b""
        self.closed = False

    def send(self, api: int, version: int, parts: list[bytes]) -> int:
        assert (api, version) == (27, 1)
        self.body = b"".join(parts)
        return 1

    def receive(self) -> Any:
        return SimpleNamespace(body=memoryview(self.answer))

    def close(self) -> None:
        self.closed = True


def answer(*rows: tuple[TopicPartition, int]) -> bytes:
    marker, topic = WriteTxnMarkersResponse.WritableTxnMarkerResult, WriteTxnMarkersResponse.WritableTxnMarkerResult
    topics = [
        topic.WritableTxnMarkerTopicResult(
            name=tp.topic,
            partitions=[
                topic.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=code)
            ],
        )
        for tp, code in rows
    ]
    return bytes(WriteTxnMarkersResponse(markers=[marker(producer_id=9, topics=topics)]).encode(version=1))


def test_each_partition_gets_as_many_markers_as_asked_for() -> None:
    broker = Broker(answer((A0, 0), (A1, 52), (B7, 0)))
    found = write_markers(broker, {A0: 2, A1: 1, B7: 3}, MarkerStamp(9, 70_000))  # type: ignore[arg-type]
    assert found == {A0: 0, A1: 52, B7: 0}
    request = WriteTxnMarkersRequest.decode(broker.body, version=1)
    sent = [
        TopicPartition(topic.name, number) for marker in request.markers for topic in marker.topics for number in topic.partition_indexes
    ]
    assert {tp: sent.count(tp) for tp in sent} == {A0: 2, A1: 1, B7: 3}
    heads = {(m.producer_id, m.producer_epoch, m.transaction_result, m.coordinator_epoch) for m in request.markers}
    assert heads == {(9, 0, False, 70_000)}


def test_an_answer_without_one_of_the_partitions_is_no_answer() -> None:
    with pytest.raises(ConnectionLost, match="no answer for the markers of a"):
        write_markers(Broker(answer((A1, 0))), {A0: 1, A1: 1}, MarkerStamp(9, 1))  # type: ignore[arg-type]


def test_a_malformed_answer_closes_the_connection() -> None:
    broker = Broker(answer((A0, 0))[:-6])
    with pytest.raises(ConnectionLost, match="malformed"):
        write_markers(broker, {A0: 1}, MarkerStamp(9, 1))  # type: ignore[arg-type]
    assert broker.closed


def test_of_several_outcomes_of_a_partition_a_failure_counts() -> None:
    assert write_markers(Broker(answer((A0, 52), (A0, 0))), {A0: 1}, MarkerStamp(9, 1)) == {A0: 52}  # type: ignore[arg-type]

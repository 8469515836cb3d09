"""Hand-written Fetch and Produce against kafka-python's schemas, every version we may negotiate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.connection import Connection, Reply
from mirror_pipeline.kafka.fetch import fetch, receive_fetch, send_fetch
from mirror_pipeline.kafka.messages import SPOKEN, Api
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.model import TopicPartition
from tests.support.fetch_responses import aborted, fetch_response, int64

FETCH_VERSIONS = range(SPOKEN[Api.FETCH].lowest, SPOKEN[Api.FETCH].highest + 1)
PRODUCE_VERSIONS = range(SPOKEN[Api.PRODUCE].lowest, SPOKEN[Api.PRODUCE].highest + 1)
partitions = st.builds(TopicPartition, st.sampled_from(["a", "orders", "ünï", "x" * 249]), st.integers(0, 2**31 - 1))
code = st.sampled_from([0, 0, 0, 1, 6, 10, 45])


class Wire:
    """Takes a connection's place: notes what is sent, hands out one prepared reply."""

    peer = "broker:9092"

    def __init__(self, api: Api, version: int, body: bytes = b"") -> None:
        self.api, self.negotiated = api, version
        self.reply = Reply(7, api, version, memoryview(bytearray(body)))
        self.sent = b""
        self.parts: list[Any] = []
        self.wait = -1.0
        self.throttle = 0
        self.fetch_share = None
        self.closed = False

    def version(self, api: int) -> int:
        assert api == self.api
        return self.negotiated

    def send(self, api: int, version: int, parts: Sequence[Any], *, wait: float = 0.0) -> int:
        assert (api, version) == (self.api, self.negotiated)
        self.parts, self.sent, self.wait = list(parts), b"".join(parts), wait
        return 7

    def receive(self) -> Reply:
        return self.reply

    def throttled(self, milliseconds: int) -> None:
        self.throttle = milliseconds

    def close(self) -> None:
        self.closed = True


def encoded(message: Any, version: int) -> bytes:
    """A decoded request written again by kafka-python."""
    message._header = None  # only constructed messages have one
    written: bytes = message.encode(version=version)
    return written


def wire(api: Api, version: int, body: bytes = b"") -> tuple[Wire, Connection]:
    stand_in = Wire(api, version, body)
    return stand_in, cast(Connection, stand_in)


@given(
    st.sampled_from(FETCH_VERSIONS),
    st.dictionaries(partitions, st.tuples(int64, st.integers(0, 2**31 - 1)), max_size=6),
    st.integers(0, 60_000),
    st.sampled_from([0, 1]),
    st.integers(-1, 99),
)
def test_fetch_request_is_what_kafka_python_reads(version: int, wants: Any, max_wait: int, isolation: int, epoch: int) -> None:
    stand_in, connection = wire(Api.FETCH, version)
    send_fetch(
        connection, wants, max_wait_ms=max_wait, min_bytes=1, max_bytes=99, isolation=isolation, leader_epochs=dict.fromkeys(wants, epoch)
    )
    read = FetchRequest.decode(stand_in.sent, version=version)
    assert (read.replica_id, read.max_wait_ms, read.min_bytes, read.max_bytes, read.isolation_level) == (-1, max_wait, 1, 99, isolation)
    got = {TopicPartition(t.topic, p.partition): (p.fetch_offset, p.partition_max_bytes) for t in read.topics for p in t.partitions}
    assert got == wants
    assert len({t.topic for t in read.topics}) == len(read.topics)
    if version >= 7:
        assert (read.session_id, read.session_epoch, list(read.forgotten_topics_data)) == (0, -1, [])
    if version >= 9:
        assert all(p.current_leader_epoch == epoch for t in read.topics for p in t.partitions)
    if version >= 11:
        assert read.rack_id == ""
    assert stand_in.wait == max_wait / 1000
    assert encoded(read, version) == stand_in.sent


fetched = st.tuples(code, int64, int64, int64, aborted, st.none() | st.binary(max_size=99))


@given(st.sampled_from(FETCH_VERSIONS), st.dictionaries(partitions, fetched, max_size=6), st.integers(0, 5000))
def test_fetch_answer_as_kafka_python_writes_it(version: int, answers: Any, throttle: int) -> None:
    stand_in, connection = wire(Api.FETCH, version, fetch_response(answers, throttle).encode(version=version))
    read = receive_fetch(connection)
    assert stand_in.throttle == throttle
    assert set(read) == set(answers)
    for tp, (error, high, stable, start, cancelled, records) in answers.items():
        got = read[tp]
        assert (got.error, got.high_watermark, got.last_stable_offset) == (error, high, stable)
        assert got.log_start_offset == (start if version >= 5 else -1)
        assert got.aborted == (cancelled or [])
        assert bytes(got.records) == (records or b"")




def test_fetched_records_are_views_of_the_response() -> None:
    tp = TopicPartition("t", 0)
    body = fetch_response({tp: (0, 9, 9, 0, None, b"batch bytes")}).encode(version=11)
    stand_in, connection = wire(Api.FETCH, 11, body)
    records = fetch(connection, {tp: (0, 100)}, max_wait_ms=5, min_bytes=1, max_bytes=100)[tp].records
    assert records.obj is stand_in.reply.body.obj
    records[0] = ord("B")
    assert bytes(records) == b"Batch bytes"


def test_a_refused_fetch_request_is_a_broker_error() -> None:
    _, connection = wire(Api.FETCH, 11, fetch_response({}, error=35).encode(version=11))
    with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION") as caught:
        receive_fetch(connection)
    assert caught.value.code == 35


@given(st.data())
def test_a_cut_fetch_answer_closes_the_connection(data: st.DataObject) -> None:
    answers = {TopicPartition("orders", 3): (0, 9, 9, 0, [(1, 2)], b"0123456789")}
    whole = fetch_response(answers).encode(version=11)
    stand_in, connection = wire(Api.FETCH, 11, whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ConnectionLost, match="malformed"):
        receive_fetch(connection)
    assert stand_in.closed


batch = st.tuples(st.binary(min_size=61, max_size=61), st.binary(max_size=300))


@given(st.sampled_from(PRODUCE_VERSIONS), st.dictionaries(partitions, batch, min_size=1, max_size=6), st.integers(0, 60_000))
def test_produce_request_is_what_kafka_python_reads(version: int, batches: Any, timeout: int) -> None:
    stand_in, connection = wire(Api.PRODUCE, version)
    send_produce(connection, {tp: (head, memoryview(rest)) for tp, (head, rest) in batches.items()}, timeout_ms=timeout)
    read = ProduceRequest.decode(stand_in.sent, version=version)
    assert (read.transactional_id, read.acks, read.timeout_ms) == (None, -1, timeout)
    got = {TopicPartition(t.name, p.index): bytes(p.records) for t in read.topic_data for p in t.partition_data}
    assert got == {tp: head + rest for tp, (head, rest) in batches.items()}
    assert len({t.name for t in read.topic_data}) == len(read.topic_data)
    assert stand_in.wait == timeout / 1000
    assert encoded(read, version) == stand_in.sent


def test_produce_sends_the_very_buffers_it_was_given() -> None:
    stand_in, connection = wire(Api.PRODUCE, 9)
    head, rest = bytes(61), memoryview(bytearray(1 << 20))
    send_produce(connection, {TopicPartition("t", 0): (head, rest)}, timeout_ms=1)
    assert any(part is head for part in stand_in.parts) and any(part is rest for part in stand_in.parts)


details = st.lists(st.tuples(st.integers(0, 99), st.none() | st.text(max_size=9)), max_size=2)
produced = st.tuples(code, int64, int64, int64, details, st.none() | st.text())


@given(st.sampled_from(PRODUCE_VERSIONS), st.dictionaries(partitions, produced, max_size=6), st.integers(0, 5000))
def test_produce_answer_as_kafka_python_writes_it(version: int, answers: Any, throttle: int) -> None:
    stand_in, connection = wire(Api.PRODUCE, version, produce_response(answers, throttle).encode(version=version))
    read = receive_produce(connection)
    assert stand_in.throttle == throttle
    assert set(read) == set(answers)
    for tp, (error, base, append, start, details, message) in answers.items():
        got = read[tp]
        assert (got.error, got.base_offset, got.log_append_time) == (error, base, append)
        assert got.log_start_offset == (start if version >= 5 else -1)
        if version >= 8:
            expected = [message] if message else []
            expected += [f"record {index}: {text}" if text else f"record {index}" for index, text in details]
            assert got.message == ("; ".join(expected) or None)
        else:
            assert got.message is None


def produce_response(answers: Any, throttle: int = 0) -> Any:
    topic_kind = ProduceResponse.TopicProduceResponse
    part_kind = topic_kind.PartitionProduceResponse
    detail_kind = part_kind.BatchIndexAndErrorMessage
    topics = []
    for tp, (error, base, append, start, details, message) in answers.items():
        part = part_kind(
            index=tp.partition,
            error_code=error,
            base_offset=base,
            log_append_time_ms=append,
            log_start_offset=start,
            record_errors=[detail_kind(batch_index=index, batch_index_error_message=text) for index, text in details],
            error_message=message,
        )
        topics.append(topic_kind(name=tp.topic, partition_responses=[part]))
    return ProduceResponse(responses=topics, throttle_time_ms=throttle)


def test_answers_are_read_in_the_order_of_requests() -> None:
    _, connection = wire(Api.PRODUCE, 9, produce_response({}).encode(version=9))
    with pytest.raises(RuntimeError, match="not a fetch"):
        receive_fetch(connection)
    _, connection = wire(Api.FETCH, 11, fetch_response({}).encode(version=11))
    with pytest.raises(RuntimeError, match="not a produce"):
        receive_produce(connection)

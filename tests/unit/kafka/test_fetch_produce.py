"""Hand-written Fetch and Produce against kafka-python's schemas, every version we may negotiate."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.answers import TopicIds, topic_id_text
from mirror_pipeline.kafka.fetch import fetch, receive_fetch, send_fetch
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.wire.connection import Connection, Reply
from mirror_pipeline.kafka.wire.messages import SPOKEN, Api
from mirror_pipeline.model import TopicPartition
from tests.support.fetch_responses import aborted, fetch_response, int64

BY_ID = 13
FETCH_VERSIONS = [*range(SPOKEN[Api.FETCH].lowest, 12), BY_ID]
PRODUCE_VERSIONS = [*range(SPOKEN[Api.PRODUCE].lowest, 9), BY_ID]
NAMES = {uuid.UUID(int=number): name for number, name in enumerate(["a", "orders", "ünï", "x" * 249], 1)}
partitions = st.builds(TopicPartition, st.sampled_from([*NAMES.values()]), st.integers(0, 2**31 - 1))
code = st.sampled_from([0, 0, 0, 1, 6, 10, 45])


class Wire:
    """Takes a connection's place: notes what is sent, hands out one prepared reply."""

    peer = "broker:9092"

    def __init__(self, api: Api, version: int, body: bytes = b"") -> None:
        self.api, self.negotiated = api, version
        self.used = version  # less where the topics' ids are not known
        self.reply = Reply(7, api, version, memoryview(bytearray(body)))
        self.sent = b""
        self.parts: list[Any] = []
        self.wait = -1.0
        self.throttle = 0
        self.fetch_share = None
        self.closed = False
        self.topics = TopicIds()
        for number, name in NAMES.items():
            self.topics.learn(name, topic_id_text(number))

    def version(self, api: int) -> int:
        assert api == self.api
        return self.negotiated

    def send(self, api: int, version: int, parts: Sequence[Any], *, wait: float = 0.0) -> int:
        assert (api, version) == (self.api, self.used)
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


def name_of(topic: Any) -> str:
    """The name of a topic in a message, by its id from v13 on."""
    return NAMES[topic.topic_id] if getattr(topic, "topic_id", None) in NAMES else getattr(topic, "topic", None) or topic.name


def by_id(answer: Any, topics: Iterable[Any]) -> Any:
    """The same answer as brokers give it from v13 on."""
    ids = {name: number for number, name in NAMES.items()}
    for topic in topics:
        topic.topic_id = ids[name_of(topic)]
    return answer


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
    got = {TopicPartition(name_of(t), p.partition): (p.fetch_offset, p.partition_max_bytes) for t in read.topics for p in t.partitions}
    assert got == wants
    assert len({name_of(t) for t in read.topics}) == len(read.topics)
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
    response = fetch_response(answers, throttle)
    stand_in, connection = wire(Api.FETCH, version, by_id(response, response.responses).encode(version=version))
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
    got = {TopicPartition(name_of(t), p.index): bytes(p.records) for t in read.topic_data for p in t.partition_data}
    assert got == {tp: head + rest for tp, (head, rest) in batches.items()}
    assert len({name_of(t) for t in read.topic_data}) == len(read.topic_data)
    assert stand_in.wait == timeout / 1000
    assert encoded(read, version) == stand_in.sent


def test_produce_sends_the_very_buffers_it_was_given() -> None:
    stand_in, connection = wire(Api.PRODUCE, 8)
    head, rest = bytes(61), memoryview(bytearray(1 << 20))
    send_produce(connection, {TopicPartition("t", 0): (head, rest)}, timeout_ms=1)
    assert any(part is head for part in stand_in.parts) and any(part is rest for part in stand_in.parts)


details = st.lists(st.tuples(st.integers(0, 99), st.none() | st.text(max_size=9)), max_size=2)
produced = st.tuples(code, int64, int64, int64, details, st.none() | st.text())


@given(st.sampled_from(PRODUCE_VERSIONS), st.dictionaries(partitions, produced, max_size=6), st.integers(0, 5000))
def test_produce_answer_as_kafka_python_writes_it(version: int, answers: Any, throttle: int) -> None:
    response = produce_response(answers, throttle)
    stand_in, connection = wire(Api.PRODUCE, version, by_id(response, response.responses).encode(version=version))
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


def test_a_topic_without_a_known_id_is_named() -> None:
    """Of old brokers, and before the first metadata; a request names all of its topics in one way."""
    known, unknown = TopicPartition("orders", 0), TopicPartition("new", 0)
    stand_in, connection = wire(Api.FETCH, BY_ID)
    stand_in.used = 11
    send_fetch(connection, {known: (0, 9), unknown: (0, 9)}, max_wait_ms=0, min_bytes=1, max_bytes=9)
    assert [topic.topic for topic in FetchRequest.decode(stand_in.sent, version=11).topics] == ["new", "orders"]
    stand_in, connection = wire(Api.PRODUCE, BY_ID)
    stand_in.used = 8
    send_produce(connection, {unknown: (bytes(61), b"")}, timeout_ms=1)
    assert [topic.name for topic in ProduceRequest.decode(stand_in.sent, version=8).topic_data] == ["new"]


@pytest.mark.parametrize(("api", "version", "used"), [(Api.FETCH, 12, 11), (Api.PRODUCE, 12, 8)])
def test_versions_between_are_not_used(api: Api, version: int, used: int) -> None:
    stand_in, connection = wire(api, version)
    stand_in.used = used
    if api is Api.FETCH:
        send_fetch(connection, {TopicPartition("orders", 0): (0, 9)}, max_wait_ms=0, min_bytes=1, max_bytes=9)
    else:
        send_produce(connection, {TopicPartition("orders", 0): (bytes(61), b"")}, timeout_ms=1)
    assert stand_in.sent


LEADER = b"\x01\x00\x04none"  # one tagged field, number 0: the new leader (KIP-951)


def test_tags_of_an_answer_are_stepped_over() -> None:
    tp = TopicPartition("orders", 3)
    fetched = fetch_response({tp: (6, 9, 9, 0, None, b"")})
    body = by_id(fetched, fetched.responses).encode(version=BY_ID)
    assert body.endswith(b"\x00\x00\x00")  # of the partition, the topic, the response
    _, connection = wire(Api.FETCH, BY_ID, body[:-3] + LEADER + b"\x00\x00")
    assert receive_fetch(connection)[tp].error == 6
    produced = produce_response({tp: (6, -1, -1, -1, [], None)})
    body = by_id(produced, produced.responses).encode(version=BY_ID)
    _, connection = wire(Api.PRODUCE, BY_ID, body[:-7] + LEADER + b"\x00" + body[-5:])
    assert receive_produce(connection)[tp].error == 6


def test_an_id_that_was_not_asked_for_is_no_answer() -> None:
    response = fetch_response({TopicPartition("orders", 0): (0, 9, 9, 0, None, b"foreign")})
    response.responses[0].topic_id = uuid.UUID(int=99)
    stand_in, connection = wire(Api.FETCH, BY_ID, response.encode(version=BY_ID))
    with pytest.raises(ConnectionLost, match="malformed"):
        receive_fetch(connection)
    assert stand_in.closed

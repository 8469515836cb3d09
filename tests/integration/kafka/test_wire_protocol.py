"""What real brokers do with stamped batches: the rules of duplicate detection (KIP-98) that exactly once rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.fetch import fetch, receive_fetch, send_fetch
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.records.batch import decode, headers
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.model import Stamp, TopicPartition
from tests.support.wire_tools import NOW, batch, new_topic, put, read_values, settings, stamped

OUT_OF_ORDER, INVALID_EPOCH = 45, 47
LIMITS: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 8 << 20}


class Broker(NamedTuple):
    servers: str
    client: WireClient


@pytest.fixture
def broker(versioned_clusters: tuple[object, object]) -> Iterator[Broker]:
    servers = versioned_clusters[0].bootstrap_servers  # type: ignore[attr-defined]
    with WireClient(settings(servers)) as client:
        yield Broker(servers, client)


@pytest.fixture
def tp(broker: Broker) -> TopicPartition:
    return TopicPartition(new_topic(broker.servers), 0)


@pytest.fixture
def stamp(broker: Broker) -> Stamp:
    return broker.client.init_producer_id()


def values(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


def test_the_same_batch_again_gets_its_first_offset_and_is_not_appended(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    first, second = batch(values("a", "b")), batch(values("c"))
    assert put(broker.client, tp, first, stamp, 0)[:2] == (0, 0)
    assert put(broker.client, tp, second, stamp, 2)[:2] == (0, 2)
    assert put(broker.client, tp, first, stamp, 0)[:2] == (0, 0)
    assert put(broker.client, tp, first, stamp, 0, lane=1)[:2] == (0, 0)
    with WireClient(settings(broker.servers)) as other:
        again = put(other, tp, second, stamp, 2)
    assert again[:2] == (0, 2)
    assert again.log_append_time == NOW  # a duplicate's answer carries the batch's own time
    assert read_values(broker.servers, tp) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_batch_older_than_the_last_five_is_refused(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    bodies = [batch(values(f"v{i}")) for i in range(6)]
    for i, body in enumerate(bodies):
        assert put(broker.client, tp, body, stamp, i)[:2] == (0, i)
    assert put(broker.client, tp, bodies[1], stamp, 1)[:2] == (0, 1)
    assert put(broker.client, tp, bodies[0], stamp, 0).error == OUT_OF_ORDER
    assert len(read_values(broker.servers, tp)) == 6


def test_a_gap_is_refused(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    assert put(broker.client, tp, batch(values("a")), stamp, 0).error == 0
    assert put(broker.client, tp, batch(values("c")), stamp, 2).error == OUT_OF_ORDER
    assert put(broker.client, tp, batch(values("b")), stamp, 1)[:2] == (0, 1)
    assert read_values(broker.servers, tp) == [(0, b"a"), (1, b"b")]


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    newer = Stamp(stamp.producer_id, stamp.producer_epoch + 1)
    assert put(broker.client, tp, batch(values("a")), stamp, 0).error == 0
    assert put(broker.client, tp, batch(values("x")), newer, 1).error == OUT_OF_ORDER
    assert put(broker.client, tp, batch(values("b")), newer, 0)[:2] == (0, 1)
    assert put(broker.client, tp, batch(values("x")), stamp, 1).error == INVALID_EPOCH
    assert put(broker.client, tp, batch(values("c")), newer, 1)[:2] == (0, 2)
    assert read_values(broker.servers, tp) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize("sequence", [1, 5000, 2**31 - 1])
def test_an_unknown_producer_may_begin_anywhere(broker: Broker, tp: TopicPartition, stamp: Stamp, sequence: int) -> None:
    assert put(broker.client, tp, batch(values("a")), stamp, sequence)[:2] == (0, 0)
    following = (sequence + 1) % 2**31
    assert put(broker.client, tp, batch(values("b")), stamp, following)[:2] == (0, 1)


def test_a_batch_may_straddle_the_wrap_of_sequences(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    assert put(broker.client, tp, batch(values("a", "b", "c", "d")), stamp, 2**31 - 2)[:2] == (0, 0)
    assert put(broker.client, tp, batch(values("e")), stamp, 2)[:2] == (0, 4)
    assert put(broker.client, tp, batch(values("e")), stamp, 2)[:2] == (0, 4)


def test_describe_producers_knows_the_last_sequence(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    assert broker.client.describe_producers([tp]) == {tp: []}
    put(broker.client, tp, batch(values("a", "b", "c"), timestamp=NOW - 7), stamp, 10)
    states = broker.client.describe_producers([tp])[tp]
    assert isinstance(states, list)
    (state,) = states
    assert (state.producer_id, state.producer_epoch, state.last_sequence, state.current_txn_start) == (stamp.producer_id, 0, 12, -1)
    assert state.last_timestamp == NOW - 7 + 2
    missing = TopicPartition(tp.topic, 99)
    answer = broker.client.describe_producers([missing])[missing]
    assert isinstance(answer, BrokerError) and answer.code == 3


def test_producer_ids_are_never_given_twice(broker: Broker) -> None:
    stamps = [broker.client.init_producer_id() for _ in range(3)]
    assert len({s.producer_id for s in stamps}) == 3 and {s.producer_epoch for s in stamps} == {0}


def test_pipelined_requests_of_many_partitions_arrive_in_order(broker: Broker, stamp: Stamp) -> None:
    topics = [new_topic(broker.servers, partitions=6) for _ in range(2)]
    node = broker.client.leader(TopicPartition(topics[0], 0))
    tps = [tp for topic in topics for i in range(6) if broker.client.leader(tp := TopicPartition(topic, i)) == node]
    assert len(tps) > 2
    connection = broker.client.connection(node)
    for i in range(8):
        send_produce(connection, {tp: stamped(batch([b"%d %d" % (tp.partition, i)]), stamp, i) for tp in tps}, timeout_ms=20_000)
    answers = [receive_produce(connection) for _ in range(8)]
    assert [{tp: a[:2] for tp, a in answer.items()} for answer in answers] == [dict.fromkeys(tps, (0, i)) for i in range(8)]
    for tp in tps:
        assert read_values(broker.servers, tp) == [(i, b"%d %d" % (tp.partition, i)) for i in range(8)]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_bytes_go_in_and_come_out_unchanged(broker: Broker, tp: TopicPartition, stamp: Stamp, codec: int) -> None:
    body = batch([b"v%d" % i * 40 for i in range(50)], codec=codec)
    put(broker.client, tp, body, stamp, 0)
    put(broker.client, tp, body, stamp, 50)
    connection = broker.client.connection(broker.client.leader(tp))
    got = fetch(connection, {tp: (0, 1 << 20)}, **LIMITS)[tp]
    assert (got.error, got.high_watermark, got.last_stable_offset, got.log_start_offset, got.aborted) == (0, 100, 100, 0, [])
    found = list(headers(got.records))
    assert [(h.base_offset, h.producer_id, h.base_sequence) for _, h in found] == [(0, stamp.producer_id, 0), (50, stamp.producer_id, 50)]
    for position, header in found:
        assert bytes(got.records[position + 61 : position + header.size]) == body[61:]
    assert [value for _, value in read_values(broker.servers, tp)] == [r.value for r in decode(body)] * 2


def test_a_batch_of_many_megabytes(broker: Broker, stamp: Stamp) -> None:
    tp = TopicPartition(new_topic(broker.servers, config={"max.message.bytes": str(32 << 20)}), 0)
    body = batch([bytes([i]) * (1 << 20) for i in range(20)])
    assert put(broker.client, tp, body, stamp, 0)[:2] == (0, 0)
    connection = broker.client.connection(broker.client.leader(tp))
    got = fetch(connection, {tp: (7, 1000)}, **LIMITS)[tp]  # the first batch comes whole, whatever the limits
    assert bytes(got.records[61:]) == body[61:]


def test_a_record_larger_than_the_topic_takes_is_refused(broker: Broker, stamp: Stamp) -> None:
    tp = TopicPartition(new_topic(broker.servers, config={"max.message.bytes": "1000"}), 0)
    assert put(broker.client, tp, batch([bytes(2000)]), stamp, 0).error == 10
    assert put(broker.client, tp, batch([b"small"]), stamp, 0)[:2] == (0, 0)


def test_a_refusal_says_why(broker: Broker, stamp: Stamp) -> None:
    tp = TopicPartition(new_topic(broker.servers, config={"cleanup.policy": "compact"}), 0)
    answer = put(broker.client, tp, batch([b"no key"]), stamp, 0)
    assert answer.error == 87 and answer.message is not None and "key" in answer.message


def test_errors_of_one_partition_leave_the_others(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    missing = TopicPartition("there-is-no-such-topic", 0)
    connection = broker.client.connection(broker.client.leader(tp))
    send_produce(connection, {tp: stamped(batch(values("a")), stamp, 0), missing: stamped(batch(values("a")), stamp, 0)}, timeout_ms=20_000)
    answer = receive_produce(connection)
    assert (answer[tp].error, answer[missing].error) == (0, 3)
    got = fetch(connection, {tp: (0, 1000), TopicPartition(tp.topic, 9): (0, 1000)}, **LIMITS)
    assert (got[tp].error, got[TopicPartition(tp.topic, 9)].error) == (0, 3)
    with pytest.raises(BrokerError) as caught:
        broker.client.leader(missing)
    assert caught.value.code == 3


def test_an_offset_outside_the_log_and_a_wrong_epoch(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    put(broker.client, tp, batch(values("a")), stamp, 0)
    connection = broker.client.connection(broker.client.leader(tp))
    assert fetch(connection, {tp: (77, 1000)}, **LIMITS)[tp].error == 1
    assert fetch(connection, {tp: (0, 1000)}, **LIMITS, leader_epochs={tp: 99})[tp].error == 75
    epoch = broker.client.metadata([tp.topic]).topics[tp.topic].partitions[0].leader_epoch
    assert fetch(connection, {tp: (0, 1000)}, **LIMITS, leader_epochs={tp: epoch})[tp].error == 0


def test_offsets_by_time(broker: Broker, stamp: Stamp) -> None:
    topic = new_topic(broker.servers, partitions=2)
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    put(broker.client, full, batch(values("a", "b", "c"), timestamp=NOW), stamp, 0)
    put(broker.client, full, batch(values("d"), timestamp=NOW - 500), stamp, 3)

    def ask(at: int) -> tuple[int, int]:
        answers = broker.client.list_offsets({full: at, empty: at})
        assert {a.error for a in answers.values()} == {0}
        return answers[full].offset, answers[empty].offset

    assert ask(-2) == (0, 0)
    assert ask(-1) == (4, 0)
    assert ask(-3) == (2, -1)
    assert ask(NOW + 1) == (1, -1)
    assert ask(NOW + 3) == (-1, -1)
    assert broker.client.list_offsets({full: NOW + 1})[full].timestamp == NOW + 1


def test_open_and_aborted_transactions(broker: Broker, tp: TopicPartition) -> None:
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": tp.topic, "linger.ms": 0})
    producer.init_transactions(60)
    for i, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        producer.produce(tp.topic, f"value {i}", partition=0)
        producer.flush(60)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
    producer.begin_transaction()
    producer.produce(tp.topic, "open", partition=0)
    producer.flush(60)
    stable = broker.client.list_offsets({tp: -1})[tp].offset
    end = broker.client.list_offsets({tp: -1}, isolation=0)[tp].offset
    assert (stable, end) == (6, 7)
    connection = broker.client.connection(broker.client.leader(tp))
    got = fetch(connection, {tp: (0, 1 << 20)}, **LIMITS)[tp]
    assert (got.last_stable_offset, got.high_watermark) == (6, 7)
    found = [header for _, header in headers(got.records)]
    assert [(h.base_offset, h.is_control) for h in found] == [(0, False), (1, True), (2, False), (3, True), (4, False), (5, True)]
    assert got.aborted == [(found[2].producer_id, 2)]
    everything = fetch(connection, {tp: (0, 1 << 20)}, **LIMITS, isolation=0)[tp]
    assert [h.base_offset for _, h in headers(everything.records)][-1] == 6
    producer.abort_transaction(60)


def test_the_next_fetch_is_under_way_while_this_one_is_worked_on(broker: Broker, tp: TopicPartition, stamp: Stamp) -> None:
    bodies = [batch([b"%03d" % i * 3000]) for i in range(12)]
    for i, body in enumerate(bodies):
        put(broker.client, tp, body, stamp, i)
    connection = broker.client.connection(broker.client.leader(tp))
    held = []
    send_fetch(connection, {tp: (0, 10_000)}, **LIMITS)
    for i in range(12):
        got = receive_fetch(connection)[tp]
        if i < 11:
            send_fetch(connection, {tp: (i + 1, 10_000)}, **LIMITS)
        held.append(got.records)
    for view, body in zip(held, bodies, strict=True):
        assert bytes(view[61 : len(body)]) == body[61:]


def test_versions_both_lines_speak(broker: Broker, tp: TopicPartition, kafka_version: str) -> None:
    connection = broker.client.connection(broker.client.leader(tp))
    spoken = {api: connection.version(api) for api in (Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS, Api.METADATA)}
    by_id = 11 if kafka_version == "3.9.1" else 13  # 11 has no topic ids: then version 8 is used, by name
    assert spoken == {Api.PRODUCE: by_id, Api.FETCH: 13, Api.LIST_OFFSETS: 7, Api.METADATA: 12}


def test_metadata_tells_ids_and_errors(broker: Broker, tp: TopicPartition) -> None:
    everything = broker.client.metadata()
    assert tp.topic in everything.topics and everything.cluster_id and everything.controller in everything.brokers
    some = broker.client.metadata([tp.topic, "there-is-no-such-topic"])
    assert some.topics["there-is-no-such-topic"].error == 3
    assert len(some.topics[tp.topic].topic_id) == 22
    assert broker.client.metadata([]).topics == {}
    assert broker.client.metadata().topics.keys() == everything.topics.keys()  # asking made nothing

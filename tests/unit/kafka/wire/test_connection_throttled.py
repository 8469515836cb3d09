"""A broker under a client quota answers a fetch at once, without any partition, and says when to ask again (KIP-219)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka import fetch as fetch_module
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.fetch import fetch
from mirror_pipeline.kafka.wire.connection import Connection
from mirror_pipeline.operations.state.log_times import first_times
from mirror_pipeline.verify.log_walk import LogWalk
from tests.support.scripted_broker import ScriptedBroker
from tests.support.throttling import BATCH, PLACE, Throttling

pytestmark = pytest.mark.timeout(60)




def ask(connection: Connection, patience: float = 30.0) -> bytes:
    found = fetch(connection, {PLACE: (0, 1 << 20)}, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, patience=patience)
    return bytes(found[PLACE].records)


def test_what_a_quota_holds_back_is_asked_for_again_after_its_time() -> None:
    broker = Throttling(2)
    with ScriptedBroker(broker.script) as served, Connection("127.0.0.1", served.port) as connection:
        assert ask(connection) == BATCH
    assert len(broker.asked) == 3
    assert all(later - earlier >= 0.03 for earlier, later in zip(broker.asked, broker.asked[1:], strict=False))


def test_less_is_asked_for_after_an_answer_that_was_held_back_and_more_again_later() -> None:
    broker = Throttling(2)
    with ScriptedBroker(broker.script) as served, Connection("127.0.0.1", served.port) as connection:
        for _ in range(3):
            ask(connection)
    assert broker.sizes[0] > broker.sizes[1] > broker.sizes[2] < broker.sizes[3] < broker.sizes[4]


def test_a_quota_that_never_lets_an_answer_pass_is_named() -> None:
    broker = Throttling(1000)
    with (
        ScriptedBroker(broker.script) as served,
        Connection("127.0.0.1", served.port) as connection,
        pytest.raises(BrokerError, match="client quota") as caught,
    ):
        ask(connection, patience=0.1)
    assert caught.value.retryable and "consumer_byte_rate" in caught.value.hint
    assert len(broker.asked) > 1


def test_a_partition_left_out_without_a_throttle_is_an_error_that_may_pass() -> None:
    broker = Throttling(0, silent=True)
    with (
        ScriptedBroker(broker.script) as served,
        Connection("127.0.0.1", served.port) as connection,
        pytest.raises(ConnectionLost, match=r"does not contain t\[0\]") as caught,
    ):
        ask(connection)
    assert caught.value.retryable


def client_of(broker: Throttling, use: Callable[[WireClient], None]) -> None:
    with ScriptedBroker(broker.script, broker.script) as first, ScriptedBroker(broker.script) as second:
        broker.port = second.port
        with WireClient(ClusterSettings("east", (f"127.0.0.1:{first.port}",))) as client:
            use(client)


def test_verification_goes_on_under_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(client: WireClient) -> None:
        answer = LogWalk(client, PLACE, 0, 3, isolation=0).read()
        assert answer is not None and bytes(answer.records) == BATCH

    client_of(Throttling(3), walk)


def test_a_look_at_times_leaves_out_what_a_quota_holds_back() -> None:
    def look(client: WireClient) -> None:
        assert first_times(client, {PLACE: 0}, isolation=0) == {}

    client_of(Throttling(1000, milliseconds=7000), look)


def test_the_share_never_falls_to_nothing() -> None:
    broker = Throttling(40, milliseconds=1)
    with ScriptedBroker(broker.script) as served, Connection("127.0.0.1", served.port) as connection:
        ask(connection)
    assert min(broker.sizes) == fetch_module.LEAST_SHARE_BYTES


def test_a_connection_that_takes_the_place_of_a_throttled_one_waits_as_that_would_have() -> None:
    broker = Throttling(1, milliseconds=60_000)

    def use(client: WireClient) -> None:
        connection = client.connection(client.leader(PLACE))
        with pytest.raises(BrokerError, match="client quota"):
            ask(connection, patience=0.1)
        connection.close()
        another = client.connection(client.leader(PLACE))
        assert another is not connection
        assert (another.throttle, another.fetch_share) == (60.0, connection.fetch_share)
        assert another.muted > 50

    with ScriptedBroker(broker.script) as first, ScriptedBroker(broker.script, broker.script) as second:
        broker.port = second.port
        with WireClient(ClusterSettings("east", (f"127.0.0.1:{first.port}",))) as client:
            use(client)

"""Whose broker answers, and whether a connection that was idle is alive: against servers that speak bytes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import ClusterUnreachable, ConnectionLost, Stranger, UsageError, WrongCluster
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.security import identity as identity_module
from mirror_pipeline.kafka.security.identity import Identity, refuse_one_cluster
from mirror_pipeline.kafka.wire import connection as connection_module
from mirror_pipeline.kafka.wire.connection import Connection
from mirror_pipeline.kafka.wire.messages import Api
from tests.support.scripted_broker import Request, ScriptedBroker, negotiate, read_request, reply
from tests.support.scripted_metadata import serve_metadata

pytestmark = pytest.mark.timeout(60)
OURS = ClusterSettings("east", ("h:1",), cluster_id="ours")


@pytest.fixture(autouse=True)
def _nothing_timed_out() -> Iterator[None]:
    identity_module._timeouts.clear()
    yield
    identity_module._timeouts.clear()


def broker_of(cluster_id: str, seen: list[int] | None = None, *, pause: float = 0.0) -> Callable[[socket.socket], None]:
    """A broker that says whose it is, and answers everything else with a few bytes; ``pause``: seconds before each answer."""

    def script(client: socket.socket) -> None:
        time.sleep(pause)
        negotiate(client)
        while True:
            request: Request = read_request(client)
            if seen is not None:
                seen.append(request.api)
            time.sleep(pause)
            if request.api == Api.METADATA:
                serve_metadata(client, request, [], cluster_id=cluster_id)
            else:
                client.sendall(reply(request, b"body"))

    return script


def connect(broker: ScriptedBroker, cluster: ClusterSettings = OURS) -> Connection:
    return Connection("127.0.0.1", broker.port, timeout=20.0, identity=Identity(cluster))


def test_an_answer_of_another_cluster_is_never_handed_out() -> None:
    with ScriptedBroker(broker_of("theirs")) as broker, connect(broker) as connection:
        connection.send(Api.FETCH, 11, (b"",))
        with pytest.raises(Stranger, match="a broker of another cluster answers: theirs, not east \\(ours\\)") as caught:
            connection.receive()
        assert connection.closed
    assert (caught.value.cluster_id, caught.value.timed_out, caught.value.retryable) == ("theirs", False, True)


def test_the_question_costs_a_reader_no_round_trip() -> None:
    seen: list[int] = []
    with ScriptedBroker(broker_of("ours", seen)) as broker, connect(broker) as connection:
        number = connection.send(Api.FETCH, 11, (b"",))
        assert connection.in_flight == 1
        assert connection.receive().correlation_id == number
        connection.send(Api.FETCH, 11, (b"",))
        connection.receive()
    assert seen == [Api.METADATA, Api.FETCH, Api.FETCH], "once for each connection"


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.OFFSET_COMMIT, Api.DELETE_TOPICS, Api.INIT_PRODUCER_ID])
def test_what_changes_a_cluster_is_not_even_sent_to_another(api: Api) -> None:
    seen: list[int] = []
    with ScriptedBroker(broker_of("theirs", seen)) as broker, connect(broker) as connection, pytest.raises(Stranger):
        connection.send(api, 0, (b"",))
    assert seen == [Api.METADATA]


def test_the_first_answer_counts_where_no_id_is_known_and_brokers_without_one_are_not_told_apart() -> None:
    unknown = Identity(replace(OURS, cluster_id=""))
    unknown.check("a:1", "")
    unknown.check("a:1", "first")
    unknown.check("a:2", "")
    with pytest.raises(Stranger):
        unknown.check("a:3", "second")


def servers(*brokers: ScriptedBroker) -> ClusterSettings:
    return replace(OURS, bootstrap_servers=tuple(f"127.0.0.1:{broker.port}" for broker in brokers))


def test_a_stranger_among_the_bootstrap_servers_is_passed_over() -> None:
    with ScriptedBroker(broker_of("theirs")) as other, ScriptedBroker(broker_of("ours")) as own, WireClient(servers(other, own)) as client:
        assert client.metadata([]).cluster_id == "ours"


def test_another_cluster_everywhere_is_named_and_a_single_stranger_is_not_taken_for_that() -> None:
    with ScriptedBroker(broker_of("theirs")) as other, WireClient(servers(other)) as client, pytest.raises(WrongCluster) as caught:
        client.metadata([])
    assert (caught.value.cluster, caught.value.cluster_id, caught.value.exit_code) == ("east", "theirs", 3)
    with ScriptedBroker(broker_of("theirs")) as other, socket.create_server(("127.0.0.1", 0)) as gone:
        gone.close()
        settings = replace(OURS, bootstrap_servers=(f"127.0.0.1:{other.port}", "127.0.0.1:1"))
        with WireClient(settings) as client, pytest.raises(ClusterUnreachable, match="another cluster") as unreachable:
            client.metadata([])
    assert not isinstance(unreachable.value, WrongCluster)


def test_one_cluster_under_two_names_is_refused() -> None:
    with pytest.raises(UsageError, match="clusters east and west are one cluster \\(id ours\\)"):
        refuse_one_cluster(OURS, replace(OURS, alias="west"))
    refuse_one_cluster(OURS, replace(OURS, alias="west", cluster_id="theirs"))
    refuse_one_cluster(replace(OURS, cluster_id=""), replace(OURS, alias="west", cluster_id=""))


def silent_after(answers: int) -> Callable[[socket.socket], None]:
    """A connection that something in between drops without a word."""

    def script(client: socket.socket) -> None:
        negotiate(client)
        for _ in range(answers):
            serve_metadata(client, read_request(client), [], cluster_id="ours")
        while client.recv(1 << 16):
            pass

    return script


def test_a_dead_idle_connection_is_found_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(connection_module, "IDLE_PATIENCE", 0.3)
    monkeypatch.setattr(connection_module, "PATIENT_ANSWERS", 0)
    with ScriptedBroker(silent_after(1)) as broker, connect(broker) as connection:
        connection.identify()
        time.sleep(0.1)
        began = time.monotonic()
        assert connection.stale(5.0) and connection.closed
        assert time.monotonic() - began < 4.0


def test_one_dead_connection_puts_those_that_are_older_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IDLE_PATIENCE", 0.2)
    monkeypatch.setattr(connection_module, "PATIENT_ANSWERS", 0)
    seen: list[int] = []
    first, second = ScriptedBroker(silent_after(1)), ScriptedBroker(broker_of("ours", seen))
    with first, second, connect(first) as dead, connect(second) as alive:
        dead.identify()
        alive.identify()
        assert not alive.stale() and seen == [Api.METADATA]
        dead.send(Api.FETCH, 11, (b"",))
        dead.limit(0.2)
        with pytest.raises(ConnectionLost, match="timed out"):
            dead.receive()
        assert not alive.stale()
        assert seen == [Api.METADATA, Api.METADATA], "it was asked, and lives on"
        assert not alive.stale()
    assert seen == [Api.METADATA, Api.METADATA], "once"


def test_a_slow_broker_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(connection_module, "IDLE_PATIENCE", 0.1)
    with ScriptedBroker(broker_of("ours", pause=0.4)) as broker, connect(broker) as connection:
        connection.identify()
        time.sleep(0.1)
        assert not connection.stale(10.0), "its first answer took as long"
        assert broker.connections == 1


def test_after_minutes_a_new_connection_is_opened_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(connection_module, "MOST_IDLE_SECONDS", 0.05)
    seen: list[int] = []
    with ScriptedBroker(broker_of("ours", seen)) as broker, connect(broker) as connection:
        connection.identify()
        time.sleep(0.1)
        assert connection.stale()
    assert seen == [Api.METADATA]

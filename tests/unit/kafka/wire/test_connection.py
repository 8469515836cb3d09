"""A connection against a server that speaks bytes: framing, order, breaks, limits."""

from __future__ import annotations

import socket
import struct
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeResponse

from mirror_pipeline.config import SecretRef, Security
from mirror_pipeline.errors import BrokerError, ConfigError, ConnectionLost, WireError
from mirror_pipeline.kafka.security.tls import TlsFailed
from mirror_pipeline.kafka.wire.connection import Connection
from mirror_pipeline.kafka.wire.messages import Api
from tests.support.scripted_broker import ScriptedBroker, api_versions, closed_port, negotiate, read_exactly, read_request, reply
from tests.support.waiting import has_input

pytestmark = pytest.mark.timeout(30)
LONG = 30.0  # a limit that no test reaches
PASSWORD = "canary-9f3a-secret"


def connect(broker: ScriptedBroker, *, timeout: float = LONG, security: Security | None = None) -> Connection:
    return Connection("127.0.0.1", broker.port, security, timeout=timeout)


def ask(connection: Connection, body: bytes = b"") -> int:
    """A request with a classic header."""
    return connection.send(Api.FETCH, 11, (body,))


def test_headers_name_the_client_and_number_the_requests() -> None:
    seen = []

    def script(client: socket.socket) -> None:
        negotiate(client)
        for _ in range(2):
            request = read_request(client)
            seen.append(request)
            client.sendall(reply(request, b"body"))

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        first, second = ask(connection, b"one"), ask(connection, b"two")
        assert [bytes(connection.receive().body) for _ in range(2)] == [b"body", b"body"]
    assert [(r.api, r.version, r.correlation_id, r.client_id, r.rest) for r in seen] == [
        (1, 11, first, "mirror-pipeline", b"one"),
        (1, 11, second, "mirror-pipeline", b"two"),
    ]
    assert first != second


def test_flexible_requests_and_replies_carry_a_tag_section() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        request = read_request(client)
        assert request.rest == b"\0body"
        client.sendall(reply(request, b"answer", tags=b"\0"))

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        connection.send(Api.PRODUCE, 9, (b"body",))
        assert bytes(connection.receive().body) == b"answer"


def test_pipelined_replies_come_in_the_order_of_sending() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        requests = [read_request(client) for _ in range(5)]
        client.sendall(b"".join(reply(r, r.rest * 1000) for r in requests))

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        sent = [ask(connection, b"%d" % i) for i in range(5)]
        assert connection.in_flight == 5
        got = [connection.receive() for _ in range(5)]
        assert [r.correlation_id for r in got] == sent
        assert [bytes(r.body) for r in got] == [b"%d" % i * 1000 for i in range(5)]
        assert connection.in_flight == 0


def test_a_small_request_between_pipelined_ones_loses_no_reply() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        for _ in range(2):
            request = read_request(client)
            client.sendall(reply(request, request.rest))
        request = read_request(client)
        body = MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=[]).encode(version=request.version)
        client.sendall(reply(request, body, tags=b"\0"))

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        ask(connection, b"first")
        ask(connection, b"second")
        assert connection.request(MetadataRequest(topics=[])).cluster_id == "c"
        assert [bytes(connection.receive().body) for _ in range(2)] == [b"first", b"second"]


def test_views_that_are_held_are_never_overwritten() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        for _ in range(20):
            request = read_request(client)
            client.sendall(reply(request, request.rest * 5000))

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        held = []
        for i in range(20):
            ask(connection, b"%02d" % i)
            body = connection.receive().body
            held.append((i, body[10:20] if i % 3 else body))
        for i, view in held:
            assert bytes(view) == (b"%02d" % i * 5000)[: len(view)]


def test_a_reply_that_does_not_match_closes_the_connection() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        request = read_request(client)
        client.sendall(reply(request._replace(correlation_id=request.correlation_id + 1), b""))
        client.recv(1)

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        ask(connection)
        with pytest.raises(ConnectionLost, match="was due"):
            connection.receive()
        assert connection.closed


@pytest.mark.parametrize("answer", [b"", b"\0\0", struct.pack(">ii", 100, 2), struct.pack(">ii", 100, 2) + b"x" * 50])
def test_an_end_in_the_middle_is_a_lost_connection(answer: bytes) -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        read_request(client)
        client.sendall(answer)

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        ask(connection)
        with pytest.raises(ConnectionLost, match="closed the connection") as caught:
            connection.receive()
        assert caught.value.retryable
        assert connection.closed and connection.in_flight == 0
        with pytest.raises(ConnectionLost):
            connection.receive()
        with pytest.raises(ConnectionLost):
            ask(connection)


@pytest.mark.parametrize("action", ["send", "receive_into"])
def test_an_interrupt_in_the_middle_of_a_frame_closes_the_connection(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    def script(client: socket.socket) -> None:
        negotiate(client)
        read_request(client)

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        if action == "receive_into":
            ask(connection)
        monkeypatch.setattr(connection._transport, action, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(connection) if action == "send" else connection.receive()
        assert connection.closed and connection.in_flight == 0


def test_silence_is_a_lost_connection() -> None:
    released = threading.Event()

    def script(client: socket.socket) -> None:
        negotiate(client)
        read_request(client)
        released.wait(20)

    with ScriptedBroker(script) as broker, connect(broker, timeout=0.3) as connection:
        ask(connection)
        with pytest.raises(ConnectionLost, match="timed out"):
            connection.receive()
        assert connection.closed
        released.set()


def test_a_slow_line_that_still_moves_is_not_cut() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        request = read_request(client)
        frame = reply(request, b"z" * 20)
        for position in range(0, len(frame), 4):
            client.sendall(frame[position : position + 4])
            time.sleep(0.15)

    with ScriptedBroker(script) as broker, connect(broker, timeout=0.8) as connection:
        ask(connection)
        assert bytes(connection.receive().body) == b"z" * 20


def test_a_large_answer_over_a_slow_line_is_not_cut() -> None:
    """It is waited for in large pieces; less than one of them arrives within the limit."""
    body = bytes(range(256)) * 400

    def script(client: socket.socket) -> None:
        negotiate(client)
        frame = reply(read_request(client), body)
        for position in range(0, len(frame), 10_000):
            client.sendall(frame[position : position + 10_000])
            time.sleep(0.15)

    with ScriptedBroker(script) as broker, connect(broker, timeout=0.4) as connection:
        ask(connection)
        assert bytes(connection.receive().body) == body


def test_a_large_answer_that_stops_in_the_middle_is_a_lost_connection() -> None:
    released = threading.Event()

    def script(client: socket.socket) -> None:
        negotiate(client)
        client.sendall(reply(read_request(client), bytes(200_000))[:30_000])
        released.wait(20)

    with ScriptedBroker(script) as broker, connect(broker, timeout=0.4) as connection:
        ask(connection)
        with pytest.raises(ConnectionLost, match="timed out"):
            connection.receive()
        released.set()


def test_after_a_large_answer_whoever_waits_for_the_next_wakes_with_its_first_bytes() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        client.sendall(reply(read_request(client), bytes(300_000)))
        client.sendall(reply(read_request(client), b"small"))
        client.recv(1)

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        ask(connection)
        assert len(connection.receive().body) == 300_000
        ask(connection)
        assert has_input(connection.fileno(), 10)
        assert bytes(connection.receive().body) == b"small"


def readable(connection: Connection) -> None:
    assert has_input(connection.fileno(), 10)


def test_what_has_arrived_is_put_together_without_waiting() -> None:
    may_go = threading.Semaphore(0)

    def script(client: socket.socket) -> None:
        negotiate(client)
        first, second = read_request(client), read_request(client)
        frames = reply(first, bytes(range(256)) * 400) + reply(second, b"small")
        for piece in (frames[:2], frames[2:9], frames[9:70_000], frames[70_000:]):
            assert may_go.acquire(timeout=20)
            client.sendall(piece)
        client.recv(1)

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        ask(connection)
        ask(connection)
        assert connection.arrived() is None
        for _ in range(3):
            may_go.release()
            readable(connection)
            time.sleep(0.1)
            assert connection.arrived() is None
        may_go.release()
        readable(connection)
        found = None
        while found is None:
            found = connection.arrived()
        assert bytes(found.body) == bytes(range(256)) * 400
        assert bytes(connection.receive().body) == b"small", "waiting goes on where arriving has ended"


def test_a_reply_that_has_begun_to_arrive_can_be_waited_for() -> None:
    may_go = threading.Event()

    def script(client: socket.socket) -> None:
        negotiate(client)
        frame = reply(read_request(client), bytes(50_000))
        client.sendall(frame[:1000])
        assert may_go.wait(20)
        client.sendall(frame[1000:])
        client.recv(1)

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        ask(connection)
        readable(connection)
        assert connection.arrived() is None
        may_go.set()
        assert len(connection.receive().body) == 50_000


def test_an_end_while_a_reply_arrives_is_a_lost_connection() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        client.sendall(reply(read_request(client), bytes(50_000))[:1000])

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        ask(connection)
        with pytest.raises(ConnectionLost, match="closed the connection"):
            for _ in range(20):
                readable(connection)
                assert connection.arrived() is None
        assert connection.closed
        with pytest.raises(ConnectionLost, match="is closed"):
            connection.arrived()


def test_the_brokers_own_waiting_time_comes_on_top() -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        request = read_request(client)
        time.sleep(1.0)
        client.sendall(reply(request, b"late"))

    with ScriptedBroker(script) as broker, connect(broker, timeout=0.3) as connection:
        connection.send(Api.FETCH, 11, (b"",), wait=20.0)
        assert bytes(connection.receive().body) == b"late"


def test_many_buffers_go_out_in_order_through_a_narrow_socket() -> None:
    parts = [bytes([i % 251]) * (1 + i % 700) for i in range(3000)]  # more than one sendmsg takes, 1 MB
    parts[5] = b""
    got = bytearray()

    def script(client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        negotiate(client)
        size = struct.unpack(">i", read_exactly(client, 4))[0]
        got.extend(read_exactly(client, size))
        client.sendall(struct.pack(">i", 4) + got[4:8])

    with ScriptedBroker(script) as broker:
        connection = Connection("127.0.0.1", broker.port, timeout=LONG, send_buffer=8192)
        connection.send(Api.FETCH, 11, [memoryview(part) for part in parts])
        connection.receive()
        connection.close()
    assert got.endswith(b"".join(parts))
    assert len(got) == 10 + len("mirror-pipeline") + sum(map(len, parts))


def test_a_receiver_that_stops_reading_is_a_lost_connection() -> None:
    released = threading.Event()

    def script(client: socket.socket) -> None:
        negotiate(client)
        released.wait(20)

    with ScriptedBroker(script) as broker, connect(broker, timeout=0.3) as connection:
        with pytest.raises(ConnectionLost, match="timed out while sending"):
            ask(connection, bytes(64 << 20))
        assert connection.closed
        released.set()


def test_an_old_broker_that_refuses_the_version_question_is_asked_simply() -> None:
    versions = []

    def script(client: socket.socket) -> None:
        request = read_request(client)
        versions.append(request.version)
        client.sendall(reply(request, api_versions(0, error=35, spoken=[(18, 0, 0)])))
        request = read_request(client)
        versions.append(request.version)
        client.sendall(reply(request, api_versions(0, spoken=[(1, 0, 6), (18, 0, 0)])))

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        assert versions == [3, 0]
        assert connection.version(Api.FETCH) == 6


@pytest.mark.parametrize("spoken", [[(18, 0, 3)], [(18, 0, 3), (0, 14, 15)], [(18, 0, 3), (0, 0, 2)]])
def test_no_common_version_is_said(spoken: list[tuple[int, int, int]]) -> None:
    with (
        ScriptedBroker(lambda client: negotiate(client, spoken=spoken)) as broker,
        connect(broker) as connection,
        pytest.raises(BrokerError, match="PRODUCE: this client supports versions 3 to 13") as caught,
    ):
        connection.version(Api.PRODUCE)
    assert caught.value.code == 35


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0", b"\xff\xff\xff\xff", b"220 mail ready\r\n"])
def test_something_that_is_not_kafka_is_named(greeting: bytes) -> None:
    def script(client: socket.socket) -> None:
        read_request(client)
        client.sendall(greeting)

    with ScriptedBroker(script) as broker, pytest.raises(WireError, match="not a Kafka broker"):
        connect(broker)


def test_throttling_holds_back_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    def script(client: socket.socket) -> None:
        negotiate(client)
        request = read_request(client)
        response = MetadataResponse(throttle_time_ms=5000, brokers=[], cluster_id="c", controller_id=1, topics=[])
        client.sendall(reply(request, response.encode(version=request.version), tags=b"\0"))
        read_request(client)

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        connection.request(MetadataRequest(topics=[]))
        assert slept == []
        ask(connection)
        assert len(slept) == 1 and 0 < slept[0] <= 5.0


def test_nobody_listens() -> None:
    with closed_port() as port, pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}: connection refused"):
        Connection("127.0.0.1", port)


def test_an_unknown_name() -> None:
    with pytest.raises(ConnectionLost, match="nowhere.invalid:9092"):
        Connection("nowhere.invalid", 9092)


def test_a_silent_server_does_not_hold_up_the_opening() -> None:
    released = threading.Event()
    with ScriptedBroker(lambda client: (released.wait(20), None)[1]) as broker:
        with pytest.raises(ConnectionLost, match="timed out"):
            Connection("127.0.0.1", broker.port, timeout=LONG, open_timeout=0.3)
        released.set()


def test_an_idle_connection_is_not_stale_and_an_ended_one_is() -> None:
    end = threading.Event()

    def script(client: socket.socket) -> None:
        negotiate(client)
        end.wait(20)

    with ScriptedBroker(script) as broker, connect(broker) as connection:
        assert not connection.stale()
        end.set()
        deadline = time.monotonic() + 20
        while not connection.stale() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert connection.stale()
        assert not connection.closed


def sasl_script(lifetime: int = 0, error: int = 0, then: bytes = b"") -> object:
    def script(client: socket.socket) -> None:
        negotiate(client)
        request = read_request(client)
        client.sendall(reply(request, SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"]).encode(version=1)))
        request = read_request(client)
        token = SaslAuthenticateRequest.decode(request.rest[1:], version=request.version).auth_bytes
        assert bytes(token) == b"\0mirror\0" + PASSWORD.encode()
        answer = SaslAuthenticateResponse(error_code=error, error_message="no", auth_bytes=b"", session_lifetime_ms=lifetime)
        client.sendall(reply(request, answer.encode(version=request.version), tags=b"\0"))
        while True:
            request = read_request(client)
            client.sendall(reply(request, then))

    return script


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Security:
    monkeypatch.setenv("WIRE_TEST_PASSWORD", PASSWORD)
    return Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="mirror", password=SecretRef("${env:WIRE_TEST_PASSWORD}"))


def test_a_session_is_renewed_before_it_ends_and_no_reply_is_lost(plain: Security) -> None:
    with ScriptedBroker(sasl_script(lifetime=3_600_000, then=b"old"), sasl_script(then=b"new")) as broker:  # type: ignore[arg-type]
        connection = connect(broker, security=plain)
        assert broker.connections == 1
        ask(connection)
        ask(connection)
        assert connection.version(Api.FETCH) == 11
        assert broker.connections == 1
        connection._renew_at = time.monotonic()
        connection.version(Api.FETCH)
        assert broker.connections == 2
        ask(connection)
        assert [bytes(connection.receive().body) for _ in range(3)] == [b"old", b"old", b"new"]
        connection.close()


def test_a_renewal_that_is_refused_is_a_lost_connection(plain: Security) -> None:
    with ScriptedBroker(sasl_script(lifetime=60_000), sasl_script(error=58)) as broker:  # type: ignore[arg-type]
        connection = connect(broker, security=plain)
        connection._renew_at = time.monotonic()
        with pytest.raises(ConnectionLost, match="SASL_AUTHENTICATION_FAILED"):
            connection.version(Api.FETCH)
        assert connection.closed


def test_a_session_without_end_is_not_renewed(plain: Security) -> None:
    with ScriptedBroker(sasl_script(lifetime=0)) as broker, connect(broker, security=plain) as connection:  # type: ignore[arg-type]
        assert connection._renew_at is None


def test_a_refused_password_is_named_and_never_shown(plain: Security) -> None:
    with ScriptedBroker(sasl_script(error=58)) as broker, pytest.raises(BrokerError, match="SASL_AUTHENTICATION_FAILED") as caught:  # type: ignore[arg-type]
        connect(broker, security=plain)
    assert caught.value.code == 58 and not caught.value.retryable
    assert "PLAIN" in str(caught.value) and "user name" in caught.value.hint
    assert PASSWORD not in "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))


def test_a_mechanism_the_broker_does_not_have(plain: Security) -> None:
    def script(client: socket.socket) -> None:
        negotiate(client)
        request = read_request(client)
        response = SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI", "SCRAM-SHA-512"])
        client.sendall(reply(request, response.encode(version=1)))

    with ScriptedBroker(script) as broker, pytest.raises(BrokerError, match="it offers GSSAPI, SCRAM-SHA-512") as caught:
        connect(broker, security=plain)
    assert caught.value.code == 33


def test_tls_towards_a_plain_listener_is_explained() -> None:
    def script(client: socket.socket) -> None:
        client.recv(100)
        client.sendall(b"\0\0\0\x04abcd")

    with ScriptedBroker(script) as broker, pytest.raises(TlsFailed) as caught:
        connect(broker, security=Security(protocol="SSL"))
    assert "PLAINTEXT" in caught.value.hint


@pytest.mark.parametrize("key", ["ca_file", "cert_file", "key_file"])
def test_a_missing_pem_file_is_a_configuration_error(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key}: no such file"):
        Connection("127.0.0.1", 1, Security(protocol="SSL", **dict[str, Any]({key: str(tmp_path / "none.pem")})))


def test_a_file_that_is_not_pem_is_a_configuration_error(tmp_path: Path) -> None:
    keystore = tmp_path / "store.jks"
    keystore.write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(ConfigError, match="not a PEM file"):
        Connection("127.0.0.1", 1, Security(protocol="SSL", ca_file=str(keystore)))
    with pytest.raises(ConfigError, match="not a matching pair"):
        Connection("127.0.0.1", 1, Security(protocol="SSL", cert_file=str(keystore), key_file=str(keystore)))


def test_an_answer_is_waited_for_while_the_request_is_still_on_its_way() -> None:
    """A slow line, or a narrow one: what the kernel has taken from us is not there yet."""

    def script(client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        negotiate(client)
        size = struct.unpack(">i", read_exactly(client, 4))[0]
        frame = b""
        while len(frame) < size:
            frame += client.recv(min(size - len(frame), 20_000))
            time.sleep(0.05)
        client.sendall(struct.pack(">ii", 4, struct.unpack_from(">hhi", frame)[2]))

    with ScriptedBroker(script) as broker, connect(broker, timeout=0.4) as connection:
        connection.send(Api.FETCH, 11, (bytes(400_000),))
        assert connection.receive().body.nbytes == 0


def test_a_broker_that_has_taken_nothing_more_for_a_while_is_silent() -> None:
    over = threading.Event()

    def script(client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        negotiate(client)
        over.wait(30)

    with ScriptedBroker(script) as broker, connect(broker, timeout=0.2) as connection:
        connection.send(Api.FETCH, 11, (bytes(400_000),))
        with pytest.raises(ConnectionLost, match="timed out"):
            connection.receive()
        over.set()

"""Waiting for several connections: what was received already is not waited for."""

from __future__ import annotations

import socket

import pytest

from mirror_pipeline.kafka.client import readable
from mirror_pipeline.kafka.wire.connection import Connection
from mirror_pipeline.kafka.wire.messages import Api
from tests.support.scripted_broker import ScriptedBroker, negotiate, read_request, reply

pytestmark = pytest.mark.timeout(30)
LONG = 20.0


def test_a_reply_that_another_request_has_overtaken_is_there_at_once() -> None:
    """The reply to a fetch came while the reply to a question after it was waited for, over the same connection."""

    def script(client: socket.socket) -> None:
        negotiate(client)
        fetch, question = read_request(client), read_request(client)
        client.sendall(reply(fetch, b"records") + reply(question, b"offsets"))
        client.recv(1)

    with ScriptedBroker(script) as broker, Connection("127.0.0.1", broker.port, None, timeout=LONG) as connection:
        connection.send(Api.FETCH, 11, (b"",))
        assert not connection.received
        question = connection.send(Api.FETCH, 11, (b"",))
        assert bytes(connection._take(question).body) == b"offsets"
        assert readable([connection], LONG) == [connection]
        assert bytes(connection.receive().body) == b"records"
        assert not connection.received
        assert readable([connection], 0.0) == []

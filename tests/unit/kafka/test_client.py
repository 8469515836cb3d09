"""What a client does before and without a broker, and with one that misbehaves."""

from __future__ import annotations

import socket
import uuid

import pytest
from kafka.protocol.metadata import MetadataRequest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConfigError
from mirror_pipeline.kafka import client as client_module
from mirror_pipeline.kafka.answers import topic_id_text
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.wire import messages
from mirror_pipeline.kafka.wire.dial import parse_address
from mirror_pipeline.kafka.wire.messages import _RESPONSES, SPOKEN, Api
from mirror_pipeline.model import TopicPartition
from tests.support.scripted_broker import ScriptedBroker, closed_port, negotiate, read_request
from tests.support.scripted_metadata import serve_metadata, topic

pytestmark = pytest.mark.timeout(60)


def east(*servers: str) -> ClusterSettings:
    return ClusterSettings("east", servers)


def test_every_server_is_tried_and_its_cause_named() -> None:
    def not_kafka(connected: socket.socket) -> None:
        read_request(connected)
        connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        closed_port() as port,
        ScriptedBroker(not_kafka) as web,
        WireClient(east(f"127.0.0.1:{port}", f"127.0.0.1:{web.port}")) as client,
        pytest.raises(ClusterUnreachable) as caught,
    ):
        client.metadata()
    assert caught.value.cluster == "east" and caught.value.exit_code == 3
    assert f"127.0.0.1:{port}: connection refused" in caught.value.message
    assert f"127.0.0.1:{web.port}: this is not a Kafka broker's answer" in caught.value.message
    assert "\n" not in caught.value.message and caught.value.hint


def test_a_silent_server_does_not_use_up_the_time_of_the_others() -> None:
    def metadata(connected: socket.socket) -> None:
        negotiate(connected)
        serve_metadata(connected, read_request(connected), [])

    with socket.create_server(("127.0.0.1", 0)) as silent, ScriptedBroker(metadata) as broker:
        settings = east(f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{broker.port}")
        with WireClient(settings, timeout=4.0) as client:
            assert client.metadata([]).cluster_id == "id"






def test_metadata_is_read_and_topics_are_not_created_by_asking() -> None:
    asked = []

    def script(connected: socket.socket) -> None:
        negotiate(connected)
        request = read_request(connected)
        asked.append(MetadataRequest.decode(request.rest[1:], version=request.version))
        serve_metadata(connected, request, [topic("orders", 0, 4, topic_id=uuid.UUID(int=5)), topic("gone", 3)])

    with ScriptedBroker(script) as broker, WireClient(east(f"127.0.0.1:{broker.port}")) as client:
        answer = client.metadata(["orders", "gone"])
    assert [t.name for t in asked[0].topics] == ["orders", "gone"] and asked[0].allow_auto_topic_creation is False
    assert (answer.cluster_id, answer.controller, answer.brokers) == ("id", 4, {4: ("127.0.0.1", 9092)})
    orders = answer.topics["orders"]
    assert (orders.topic_id, orders.error) == ("AAAAAAAAAAAAAAAAAAAABQ", 0)
    part = orders.partitions[0]
    assert (part.leader, part.leader_epoch, part.replicas, part.isr, part.error) == (4, 7, (4, 5), (4,), 0)
    assert (answer.topics["gone"].error, answer.topics["gone"].topic_id) == (3, "")


def test_a_leader_is_waited_for_and_then_remembered() -> None:
    answers = [topic("t", 0, -1, part_error=5), topic("t", 0, -1, part_error=5), topic("t", 0, 4)]

    def script(connected: socket.socket) -> None:
        negotiate(connected)
        for answer in answers:
            serve_metadata(connected, read_request(connected), [answer])

    with ScriptedBroker(script) as broker, WireClient(east(f"127.0.0.1:{broker.port}")) as client:
        assert client.leader(TopicPartition("t", 0)) == 4
        assert client.leader(TopicPartition("t", 0)) == 4


@pytest.mark.parametrize(("answer", "code"), [(topic("t", 3), 3), (topic("t", 0, -1, part_error=5), 5), (topic("t", 29), 29)])
def test_no_leader_is_a_clear_error(answer: object, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SETTLE_TIME", 0.2)
    monkeypatch.setattr(client_module, "UNKNOWN_TOPIC_TIME", 0.1)

    def script(connected: socket.socket) -> None:
        negotiate(connected)
        while True:
            serve_metadata(connected, read_request(connected), [answer])

    with (
        ScriptedBroker(script) as broker,
        WireClient(east(f"127.0.0.1:{broker.port}")) as client,
        pytest.raises(BrokerError, match=r"east: leader of t\[0\]") as caught,
    ):
        client.leader(TopicPartition("t", 0))
    assert caught.value.code == code


def test_offsets_of_a_broker_that_is_down_are_an_error_of_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SETTLE_TIME", 0.2)

    with closed_port() as port:

        def script(connected: socket.socket) -> None:
            negotiate(connected)
            while True:
                serve_metadata(connected, read_request(connected), [topic("t", 0, 4)], port=port)

        with ScriptedBroker(script) as broker, WireClient(east(f"127.0.0.1:{broker.port}")) as client:
            tp = TopicPartition("t", 0)
            assert client.list_offsets({tp: -1})[tp].error == 13
            described = client.describe_producers([tp])[tp]
            assert isinstance(described, BrokerError) and described.code == 13


@pytest.mark.parametrize(
    ("server", "address"),
    [("a:1", ("a", 1)), (" broker.example.com:9092", ("broker.example.com", 9092)), ("[::1]:9092", ("::1", 9092))],
)
def test_addresses(server: str, address: tuple[str, int]) -> None:
    assert parse_address(server) == address


@pytest.mark.parametrize("server", ["", "a", "a:", ":9092", "a:b", "a:9092/x"])
def test_bad_addresses(server: str) -> None:
    with pytest.raises(ConfigError, match="not host:port"):
        parse_address(server)


def test_topic_ids_look_as_kafka_prints_them() -> None:
    assert topic_id_text(uuid.UUID(bytes=bytes(range(240, 256)))) == "8PHy8_T19vf4-fr7_P3-_w"
    assert topic_id_text(uuid.UUID(int=0)) == "" and topic_id_text(None) == ""


@pytest.mark.parametrize("api", [api for api in Api if api in _RESPONSES])
def test_versions_and_headers_agree_with_the_schemas(api: Api) -> None:
    response = _RESPONSES[api]
    versions = SPOKEN[api]
    assert versions.highest <= response.max_version
    for version in range(versions.lowest, versions.highest + 1):
        assert response.flexible_version_q(version) == (version >= versions.flexible)
        expected = 5 if response.flexible_version_q(version) and api is not Api.API_VERSIONS else 4
        assert messages.reply_header_size(api, version) == expected

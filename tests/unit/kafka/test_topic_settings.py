"""Settings of topics as bytes: what kafka-python's schemas write is read, and only when it has changed."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.cluster_info import ConfigValue
from mirror_pipeline.kafka.topic_settings import TOPICS_A_REQUEST, TopicSettings
from mirror_pipeline.kafka.wire.messages import SPOKEN, Api

VERSION = SPOKEN[Api.DESCRIBE_CONFIGS].highest
NAMES = st.text(min_size=1, max_size=60)
SOURCES = {1: "DYNAMIC_TOPIC_CONFIG", 4: "STATIC_BROKER_CONFIG", 5: "DEFAULT_CONFIG", 99: "UNKNOWN_CONFIG"}


class Row(NamedTuple):
    """One setting as a broker sends it."""

    value: str | None
    source: int
    sensitive: bool
    read_only: bool
    synonyms: int


ROWS = st.builds(Row, st.none() | st.text(max_size=60), st.sampled_from(sorted(SOURCES)), st.booleans(), st.booleans(), st.integers(0, 2))
TOPICS = st.dictionaries(NAMES, st.dictionaries(NAMES, ROWS, max_size=6) | st.sampled_from((3, 29)), max_size=6)
Topics = dict[str, dict[str, Row] | int]


def answer(topics: Topics, throttle: int = 0) -> bytes:
    kind = DescribeConfigsResponse.DescribeConfigsResult
    entry = kind.DescribeConfigsResourceResult
    synonym = entry.DescribeConfigsSynonym
    results = []
    for name, held in topics.items():
        rows = held if isinstance(held, dict) else {}
        configs = [
            entry(
                name=key, value=row.value, read_only=row.read_only, config_source=row.source, is_sensitive=row.sensitive,
                synonyms=[synonym(name="other", value=None, source=4)] * row.synonyms,
            )
            for key, row in rows.items()
        ]  # fmt: skip
        code = held if isinstance(held, int) else 0
        results.append(kind(error_code=code, error_message=None, resource_type=2, resource_name=name, configs=configs))
    return bytes(DescribeConfigsResponse(throttle_time_ms=throttle, results=results).encode(version=VERSION))


class Broker:
    """A connection that gives one answer, or none."""

    def __init__(self, body: bytes | None) -> None:
        self.body = body
        self.asked: list[bytes] = []
        self.waits: list[int] = []

    def version(self, api: Api) -> int:
        return SPOKEN[api].highest

    def send(self, api: Api, version: int, parts: list[bytes]) -> int:
        if self.body is None:
            raise ConnectionLost("gone")
        self.asked += parts
        return 1

    def receive(self) -> Any:
        return type("Reply", (), {"body": memoryview(bytearray(self.body or b""))})

    def throttled(self, milliseconds: int) -> None:
        self.waits.append(milliseconds)


def client_of(*brokers: Broker) -> WireClient:
    class Client(WireClient):
        def metadata(self, topics: Any = ()) -> Any:
            return type("Metadata", (), {"brokers": dict.fromkeys(range(len(brokers)))})

        def connection(self, node_id: int, lane: int = 0, **limits: Any) -> Any:
            return brokers[node_id]

    return Client(ClusterSettings("east", ("127.0.0.1:1",)))


@given(TOPICS, st.integers(0, 5_000))
def test_settings_and_errors_are_read(topics: Topics, throttle: int) -> None:
    broker = Broker(answer(topics, throttle))
    found = TopicSettings().read(client_of(broker), ["any"])
    assert broker.waits == [throttle]
    for name, held in topics.items():
        read = found[name]
        if isinstance(held, int):
            assert isinstance(read, BrokerError) and read.code == held
            assert name in read.message
        else:
            assert read == {key: ConfigValue(row.value, SOURCES[row.source], row.sensitive, row.read_only) for key, row in held.items()}
    assert found.keys() == topics.keys()


@given(st.lists(NAMES, min_size=1, max_size=8, unique=True))
def test_all_settings_of_topics_are_asked_for(names: list[str]) -> None:
    broker = Broker(answer({}))
    TopicSettings().read(client_of(broker), names)
    read = DescribeConfigsRequest.decode(broker.asked[0], version=VERSION)
    assert [(row.resource_type, row.resource_name, row.configuration_keys) for row in read.resources] == [
        (2, n, None) for n in sorted(names)
    ]
    assert not read.include_synonyms


def test_many_topics_travel_in_several_requests() -> None:
    broker = Broker(answer({}))
    TopicSettings().read(client_of(broker), [f"t{number}" for number in range(TOPICS_A_REQUEST + 1)])
    sizes = [len(DescribeConfigsRequest.decode(body, version=VERSION).resources) for body in broker.asked]
    assert sizes == [TOPICS_A_REQUEST, 1]


def test_an_unchanged_answer_is_not_read_again_and_a_changed_one_is() -> None:
    row = Row("1", 1, False, False, 0)
    broker, settings = Broker(answer({"t": {"retention.ms": row}})), TopicSettings()
    client = client_of(broker)
    first = settings.read(client, ["t"])["t"]
    broker.body = answer({"t": {"retention.ms": row}}, throttle=7)
    assert settings.read(client, ["t"])["t"] is first, "the throttle time is not a part of it"
    broker.body = answer({"t": {"retention.ms": row._replace(value="2")}})
    assert settings.read(client, ["t"])["t"] == {"retention.ms": ConfigValue("2", "DYNAMIC_TOPIC_CONFIG")}


def test_equal_values_of_many_topics_are_one_object() -> None:
    row = Row("604800000", 5, False, False, 0)
    found = TopicSettings().read(client_of(Broker(answer({"a": {"retention.ms": row}, "b": {"retention.ms": row}}))), ["a", "b"])
    a, b = (held for held in found.values() if not isinstance(held, BrokerError))
    assert a["retention.ms"] is b["retention.ms"]


def test_another_broker_is_asked_where_one_is_gone() -> None:
    found = TopicSettings().read(client_of(Broker(None), Broker(answer({"t": {}}))), ["t"])
    assert found == {"t": {}}
    with pytest.raises(ConnectionLost, match="gone"):
        TopicSettings().read(client_of(Broker(None)), ["t"])


@pytest.mark.parametrize("cut", [1, 9])
def test_a_cut_answer_is_an_error_of_the_connection(cut: int) -> None:
    body = answer({"t": {"retention.ms": Row("1", 1, False, False, 0)}})[:-cut]
    with pytest.raises(ConnectionLost, match="malformed"):
        TopicSettings().read(client_of(Broker(body)), ["t"])

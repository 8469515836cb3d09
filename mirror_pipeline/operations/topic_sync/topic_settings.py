"""Settings of many topics, asked again and again: read over the wire, and only where an answer differs from the one before.

librdkafka asks for synonyms of every setting as well and makes an object of each, which took more than half of the CPU time of a round
over 1,000 idle topics. The layouts are those of DescribeConfigs v1 and v2.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.cluster_info import ConfigValue
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.connection import Reply
from mirror_pipeline.kafka.cursor import Cursor
from mirror_pipeline.kafka.messages import Api

TOPICS_A_REQUEST = 1_000
_TOPIC = 2  # resource type
_ALL_SETTINGS, _NO_SYNONYMS = -1, 0
_RESULT = struct.Struct(">h")
_FLAGS = struct.Struct(">?b?i")  # read-only, source, sensitive, number of synonyms
# Kafka sources, DescribeConfigsResponse.ConfigSource; a topic's setting has no other.
_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}


@dataclass(slots=True)
class TopicSettings:
    """Settings of one cluster's topics, as last read."""

    _known: dict[bytes, tuple[memoryview, dict[str, dict[str, ConfigValue] | BrokerError]]] = field(default_factory=dict)

    def read(self, client: WireClient, names: Collection[str]) -> dict[str, dict[str, ConfigValue] | BrokerError]:
        """Every setting in force of each topic; one topic without access does not hide the others.

        What it returns may be returned again by the next call: it is not to be changed.

        Raises:
            ClusterUnreachable: no broker answers.
            ConnectionLost: no broker of the cluster can be reached, or an answer is malformed.
            BrokerError: a broker refuses the request as a whole.
        """
        found: dict[str, dict[str, ConfigValue] | BrokerError] = {}
        known, self._known = self._known, {}
        for question in _questions(names):
            reply = _asked(client, question)
            body = reply.body[4:]  # after the throttle time
            before = known.get(question)
            answers = before[1] if before is not None and before[0] == body else _read(client.cluster.alias, body)
            self._known[question] = memoryview(bytes(body)), answers
            found |= answers
        return found


def _questions(names: Collection[str]) -> Iterator[bytes]:
    """Bodies of DescribeConfigs requests."""
    ordered = sorted(names)
    for start in range(0, len(ordered), TOPICS_A_REQUEST):
        part = [name.encode() for name in ordered[start : start + TOPICS_A_REQUEST]]
        resources = (struct.pack(f">bh{len(name)}si", _TOPIC, len(name), name, _ALL_SETTINGS) for name in part)
        yield struct.pack(">i", len(part)) + b"".join(resources) + struct.pack(">b", _NO_SYNONYMS)


def _asked(client: WireClient, question: bytes) -> Reply:
    """The answer of any broker."""
    lost: ConnectionLost | None = None
    for node in sorted(client.metadata(()).brokers):
        try:
            connection = client.connection(node)
            connection.send(Api.DESCRIBE_CONFIGS, connection.version(Api.DESCRIBE_CONFIGS), [question])
            reply = connection.receive()
            connection.throttled(Cursor(reply.body).int32())
        except ConnectionLost as error:
            lost = error
            continue
        return reply
    raise lost or ConnectionLost(f"{client.cluster.alias}: no broker is up")


def _read(alias: str, body: memoryview) -> dict[str, dict[str, ConfigValue] | BrokerError]:
    try:
        return _answers(alias, body)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ConnectionLost(f"{alias}: malformed answer to the question for topic settings") from error


def _answers(alias: str, body: memoryview) -> dict[str, dict[str, ConfigValue] | BrokerError]:
    """Settings, or the error, of each topic; equal values are one object."""
    cursor, answers = Cursor(body), dict[str, dict[str, ConfigValue] | BrokerError]()
    values: dict[tuple[str | None, int, bool, bool], ConfigValue] = {}
    names: dict[str, str] = {}
    for _ in range(cursor.count()):
        (code,) = cursor.numbers(_RESULT)
        message = cursor.string()
        cursor.position += 1  # the resource's type
        topic, configs = cursor.string() or "", dict[str, ConfigValue]()
        for _ in range(cursor.count()):
            name, value = cursor.string() or "", cursor.string()
            read_only, source, sensitive, synonyms = cursor.numbers(_FLAGS)
            for _ in range(synonyms):
                cursor.string(), cursor.string()
                cursor.position += 1
            facts = value, source, sensitive, read_only
            if facts not in values:
                values[facts] = ConfigValue(value, _SOURCES.get(source, "UNKNOWN_CONFIG"), sensitive, read_only)
            configs[names.setdefault(name, name)] = values[facts]
        answers[topic] = broker_error(code, f"cluster {alias}: read the settings of {topic}", message) if code else configs
    return answers

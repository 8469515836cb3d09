"""Settings of many topics, asked again and again: read over the wire, and only where an answer differs from the one before.

librdkafka asks for synonyms of every setting as well and makes an object of each, which took more than half of the CPU time of a round
over 1,000 idle topics. The layouts are those of DescribeConfigs v1 and v2.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.cluster_info import ConfigValue
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.records.cursor import INT32, Cursor
from mirror_pipeline.kafka.wire.messages import Api

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

    _known: dict[bytes, dict[str, dict[str, ConfigValue] | BrokerError]] = field(default_factory=dict)  # by the bytes of the answer

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
        nodes = sorted(client.metadata(()).brokers)
        for question in _questions(names):
            body = _asked(client, nodes, question)
            self._known[body] = known[body] if body in known else _read(client.cluster.alias, memoryview(body))
            found |= self._known[body]
        return found


def _questions(names: Collection[str]) -> Iterator[bytes]:
    """Bodies of DescribeConfigs requests."""
    ordered = sorted(names)
    for start in range(0, len(ordered), TOPICS_A_REQUEST):
        part = [name.encode() for name in ordered[start : start + TOPICS_A_REQUEST]]
        resources = (struct.pack(f">bh{len(name)}si", _TOPIC, len(name), name, _ALL_SETTINGS) for name in part)
        yield struct.pack(">i", len(part)) + b"".join(resources) + struct.pack(">b", _NO_SYNONYMS)


def _asked(client: WireClient, nodes: Sequence[int], question: bytes) -> bytes:
    """The answer of the first broker that gives one, without its throttle time."""
    lost: ConnectionLost | None = None
    for node in nodes:
        try:
            connection = client.connection(node)
            connection.send(Api.DESCRIBE_CONFIGS, connection.version(Api.DESCRIBE_CONFIGS), [question])
            reply = connection.receive()
            connection.throttled(Cursor(reply.body).int32())
        except ConnectionLost as error:
            lost = error
            continue
        return bytes(reply.body[INT32.size :])
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
            configs[sys.intern(name)] = values[facts]
        answers[topic] = broker_error(code, f"cluster {alias}: read the settings of {topic}", message) if code else configs
    return answers

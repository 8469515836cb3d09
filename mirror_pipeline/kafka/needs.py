"""Requests that a cluster's brokers must support for a trustworthy copy; checked by the versions that they speak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.answers import NO_TOPIC_ID, TopicMetadata
from mirror_pipeline.kafka.codes import UNSUPPORTED_VERSION
from mirror_pipeline.kafka.wire.messages import Api

UPGRADE_HINT = "upgrade its brokers to Kafka 3.0 or newer, and raise inter.broker.protocol.version with them"


@dataclass(frozen=True, slots=True)
class Need:
    """A request that brokers must know in a version; ``without`` says what cannot be done otherwise."""

    api: Api
    version: int
    without: str


_TOPIC_IDS = Need(Api.METADATA, 10, "without topic ids a recreated topic cannot be distinguished from the old one")
SOURCE_NEEDS = (_TOPIC_IDS,)
EXACT_NEEDS = (Need(Api.WRITE_TXN_MARKERS, 1, "without it offsets cannot be exact"),)
TARGET_NEEDS = (_TOPIC_IDS, Need(Api.DESCRIBE_PRODUCERS, 0, "without it the end of a log cannot be verified after a failure"))


def require(alias: str, needs: Iterable[Need], versions: Mapping[int, tuple[int, int]]) -> None:
    """Refuse a cluster that is too old.

    Args:
        alias: the cluster's name.
        needs: what it has to know.
        versions: lowest and highest version of each request that one of its brokers speaks.

    Raises:
        BrokerError: 35, it is too old; the message names what is missing.
    """
    for need in needs:
        highest = versions.get(need.api, (0, -1))[1]
        if highest < need.version:
            spoken = f"only up to version {highest}" if highest >= 0 else "not"
            raise _too_old(f"cluster {alias} is too old: it speaks {need.api.name} {spoken}, {need.version} is needed; {need.without}")


def require_topic_ids(alias: str, topics: Iterable[TopicMetadata]) -> None:
    """Refuse a cluster that gives its topics no ids although its brokers know them. Raises BrokerError."""
    for topic in topics:
        if not topic.error and topic.topic_id == NO_TOPIC_ID:
            raise without_id(alias, topic.name)


def without_id(alias: str, topic: str) -> BrokerError:
    """Why a cluster is refused whose brokers run with the protocol of an older version."""
    return _too_old(f"cluster {alias} runs an inter-broker protocol that is too old: topic {topic} has no topic id; {_TOPIC_IDS.without}")


def _too_old(said: str) -> BrokerError:
    return BrokerError(UNSUPPORTED_VERSION, "UNSUPPORTED_VERSION", said, hint=UPGRADE_HINT)

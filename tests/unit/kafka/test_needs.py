"""Clusters that are too old are refused in one line, by the versions that their brokers speak."""

from __future__ import annotations

import socket

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.answers import TopicMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.needs import SOURCE_NEEDS, TARGET_NEEDS, Need, require_topic_ids
from tests.support.scripted_broker import SPOKEN_BY_BROKER, ScriptedBroker, negotiate, read_request
from tests.support.scripted_metadata import serve_metadata

METADATA, DESCRIBE_PRODUCERS = 3, 61
TODAY = SPOKEN_BY_BROKER
KAFKA_2_7 = [(key, low, min(high, 9) if key == METADATA else high) for key, low, high in TODAY if key != DESCRIBE_PRODUCERS]
WITHOUT_PRODUCERS = [row for row in TODAY if row[0] != DESCRIBE_PRODUCERS]


def refusal(spoken: list[tuple[int, int, int]], needs: tuple[Need, ...]) -> BrokerError | None:
    """Why a cluster of one broker that speaks these versions is refused."""

    def serve(connected: socket.socket) -> None:
        negotiate(connected, spoken=spoken)
        serve_metadata(connected, read_request(connected), [])

    with ScriptedBroker(serve) as broker, WireClient(ClusterSettings("old", (f"127.0.0.1:{broker.port}",))) as client:
        try:
            client.require(needs)
        except BrokerError as problem:
            return problem
    return None


@pytest.mark.parametrize("needs", [SOURCE_NEEDS, TARGET_NEEDS])
def test_todays_brokers_are_new_enough(needs: tuple[Need, ...]) -> None:
    assert refusal(TODAY, needs) is None


@pytest.mark.parametrize("needs", [SOURCE_NEEDS, TARGET_NEEDS])
def test_brokers_without_topic_ids_are_refused(needs: tuple[Need, ...]) -> None:
    problem = refusal(KAFKA_2_7, needs)
    assert problem is not None
    assert problem.code == 35 and not problem.retryable
    assert problem.message.startswith("cluster old is too old: it speaks METADATA only up to version 9, 10 is needed; without topic ids")
    assert "Kafka 3.0 or newer" in problem.hint
    assert "\n" not in problem.message


def test_a_target_that_does_not_describe_producers_is_refused_and_such_a_source_is_not() -> None:
    problem = refusal(WITHOUT_PRODUCERS, TARGET_NEEDS)
    assert problem is not None
    assert "cluster old is too old: it speaks DESCRIBE_PRODUCERS not" in problem.message
    assert refusal(WITHOUT_PRODUCERS, SOURCE_NEEDS) is None


def test_a_cluster_that_gives_its_topics_no_ids_is_refused() -> None:
    known = TopicMetadata("t", "id", 0, False, {})
    require_topic_ids("old", [known, TopicMetadata("gone", "", 3, False, {})])
    with pytest.raises(BrokerError, match="topic u has no topic id") as refused:
        require_topic_ids("old", [known, TopicMetadata("u", "", 0, False, {})])
    assert "inter.broker.protocol.version" in refused.value.hint

"""Help for tests of topics that are deleted on the source."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from mirror_pipeline import Mirror
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION
from tests.integration.processes import wait_until
from tests.support.mirrors import create_topic


def expected(first: int, end: int) -> list[str]:
    """Values of these numbers, as ``tests.support.mirrors.produce`` writes them."""
    return [f"value-{number}".ljust(20, ".") for number in range(first, end)]


def delete_topic(mirror: Mirror, topic: str) -> None:
    """Delete a topic on the mirror's source."""
    delete_everywhere(",".join(mirror.flow.source.bootstrap_servers), topic)


def delete_everywhere(servers: str, topic: str) -> None:
    """Delete a topic, and wait until each broker knows: the controller says so some milliseconds before."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic])[topic].result(15)
    brokers = [ClusterSettings("one", (f"{each.host}:{each.port}",)) for each in admin.list_topics(timeout=10).brokers.values()]
    wait_until(lambda: not any(_shows(broker, topic) for broker in brokers), 30, "the topic to go")


def recreate(servers: str, topic: str, partitions: int = 1) -> None:
    """Delete a topic and create it anew."""
    delete_everywhere(servers, topic)
    create_topic(servers, topic, partitions)


def _shows(broker: ClusterSettings, topic: str) -> bool:
    with WireClient(broker) as client:
        return client.metadata([topic]).topics[topic].error != UNKNOWN_TOPIC_OR_PARTITION

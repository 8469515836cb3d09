"""What a cluster says about itself, without its client library's types."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic. ``topic_id`` is in Kafka's URL-safe base64, empty where the broker has none (before 2.8).

    ``replication_factor`` is that of the partition with fewest replicas.
    """

    name: str
    partitions: int
    topic_id: str = ""
    internal: bool = False
    replication_factor: int = 0
    leaderless: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One setting of a topic or broker; ``source`` is where the value in force comes from.

    ``is_explicit`` is true for a topic's own settings, false for what it takes over from the broker.
    """

    value: str | None
    source: str = "DEFAULT_CONFIG"
    sensitive: bool = False
    read_only: bool = False

    @property
    def is_explicit(self) -> bool:
        """Whether it is set on this topic explicitly."""
        return self.source == "DYNAMIC_TOPIC_CONFIG"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Identity and size of a cluster."""

    cluster_id: str
    brokers: dict[int, str]
    controller: int


@dataclass(frozen=True, slots=True)
class KnownBrokers:
    """Node ids of the brokers that are up and of those that are down; ``listed``: the cluster names all of them itself."""

    up: frozenset[int]
    down: frozenset[int]
    listed: bool

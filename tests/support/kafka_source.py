"""Where the tests get their Kafka from: the user's own brokers, containers, or embedded clusters."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mirror_pipeline.local.embedded.start import LocalCluster

DOCKER_SECONDS = 5.0  # an engine that is there answers `docker info` in well under a second

# testcontainers speaks to Confluent's images; the nearest release to each Kafka version.
IMAGES = {"4.3.0": "confluentinc/cp-kafka:8.0.0", "3.9.1": "confluentinc/cp-kafka:7.9.1"}


@dataclass(frozen=True, slots=True)
class GivenCluster:
    """A cluster that is not an embedded one: an address, and a name for messages."""

    name: str
    bootstrap_servers: str
    version: str
    container: Any = field(default=None, repr=False, compare=False)


Cluster = LocalCluster | GivenCluster
ClusterPair = tuple[Cluster, Cluster]


def choose(given_a: str | None, given_b: str | None, wish: str, docker: Callable[[], bool]) -> str:
    """``given``, ``containers`` or ``embedded``.

    Brokers named on the command line win; then what ``--kafka-from`` says; ``auto`` takes containers where a Docker
    engine answers.
    """
    if bool(given_a) != bool(given_b):
        raise pytest.UsageError("--brokers-a and --brokers-b go together: a mirror has two ends")
    if given_a:
        return "given"
    if wish == "auto":
        return "containers" if docker() else "embedded"
    return wish


def docker_answers() -> bool:
    """True when ``docker info`` succeeds quickly: a client without an engine does not count."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        return subprocess.run([docker, "info"], capture_output=True, timeout=DOCKER_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def start_container(name: str, version: str) -> GivenCluster:
    """A single-broker KRaft cluster in a container, with the settings the embedded ones have."""
    from testcontainers.kafka import KafkaContainer

    container = KafkaContainer(IMAGES[version]).with_kraft()
    for key, value in {
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "3",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "3",
    }.items():
        container.with_env(key, value)
    container.start()
    return GivenCluster(name, container.get_bootstrap_server(), version, container)

"""Where the tests get their Kafka from: the user's own brokers, containers, or embedded clusters."""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mirror_pipeline.local.embedded.ports import free_port
from mirror_pipeline.local.embedded.start import LocalCluster

VERSIONS = ["4.4.0", "4.3.0", "3.9.1"]
DOCKER_SECONDS = 5.0  # an engine that is there answers `docker info` in well under a second

IMAGE = "apache/kafka"  # one image for each release, so that a test runs on the version that its label says
PORT = 9092


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
    """A single-broker KRaft cluster in a container of Kafka's own image of this version, with the settings the embedded ones have."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    port = free_port()
    container = DockerContainer(f"{IMAGE}:{version}").with_bind_ports(PORT, port)
    for key, value in container_settings(port).items():
        container.with_env(key, value)
    container.waiting_for(LogMessageWaitStrategy("Kafka Server started"))
    container.start()
    return GivenCluster(name, f"{container.get_container_host_ip()}:{port}", version, container)


def container_settings(port: int) -> dict[str, str]:
    """Environment of a container whose broker is reached by this port of the machine."""
    replicas = {"OFFSETS_TOPIC_REPLICATION_FACTOR": 1, "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": 1, "TRANSACTION_STATE_LOG_MIN_ISR": 1}
    partitions = {"OFFSETS_TOPIC_NUM_PARTITIONS": 3, "TRANSACTION_STATE_LOG_NUM_PARTITIONS": 3}
    listeners = {
        "LISTENERS": f"PLAINTEXT://:{PORT},CONTROLLER://:9093", "ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:{port}",
        "LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT", "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093", "PROCESS_ROLES": "broker,controller", "NODE_ID": 1,
    }  # fmt: skip
    settings = {**listeners, **replicas, **partitions, "AUTO_CREATE_TOPICS_ENABLE": "false"}
    # The image's own cluster id is the same in every container: source and target would be one cluster.
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return {"CLUSTER_ID": cluster_id, **{f"KAFKA_{key}": str(value) for key, value in settings.items()}}

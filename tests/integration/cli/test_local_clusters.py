"""Embedded clusters: started, found again, stopped, killed, paused; what a failed start says.

Mostly of one broker: what is looked at is its process, its ports, its log.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline.errors import UsageError
from mirror_pipeline.local.embedded import cluster as embedded
from mirror_pipeline.local.embedded.broker import StartFailed, command_line
from mirror_pipeline.local.embedded.ports import free_port
from mirror_pipeline.local.embedded.settings import DEFAULT_VERSION
from mirror_pipeline.local.embedded.start import LocalCluster, cluster_status, start_clusters, stop_clusters

Factory = Callable[..., list[LocalCluster]]


def make_topic(bootstrap: str, name: str, partitions: int = 1, replicas: int = 1, **security: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **security})
    admin.create_topics([NewTopic(name, partitions, replicas)], operation_timeout=30)[name].result(30)


def put(bootstrap: str, topic: str, *values: bytes, **security: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60000, **security})
    failed: list[Any] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failed == []


def values_of(bootstrap: str, topic: str, count: int, **security: str) -> list[bytes]:
    """Errors are passed over: the broker that is asked may not know a new topic yet."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-reader", "auto.offset.reset": "earliest", **security})
    consumer.subscribe([topic])
    values, deadline = list[bytes](), time.monotonic() + 60
    try:
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and not message.error():
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


def test_pair_serves_both_versions(versioned_clusters: tuple[Any, Any], topic_name: str, kafka_version: str) -> None:
    for cluster in versioned_clusters:
        make_topic(cluster.bootstrap_servers, topic_name)
        put(cluster.bootstrap_servers, topic_name, cluster.name.encode())
        assert values_of(cluster.bootstrap_servers, topic_name, 1) == [cluster.name.encode()]
        if isinstance(cluster, LocalCluster):
            assert cluster.version == kafka_version
            assert f"kafka_2.13-{kafka_version}.jar" in loaded_jars(cluster)


def loaded_jars(cluster: LocalCluster) -> set[str]:
    """Jars the broker's process has open (Linux; elsewhere those of its class path)."""
    fds = Path(f"/proc/{cluster.pid}/fd")
    if fds.is_dir():
        return {Path(os.readlink(fd)).name for fd in fds.iterdir() if fd.is_symlink()}
    folder = command_line(cluster.pid or 0).split(" -cp ")[1].split("/* ")[0]
    return {path.name for path in Path(folder).iterdir()}


def test_data_and_ports_survive_a_stop_from_another_process(cluster_factory: Factory, topic_name: str) -> None:
    (cluster,) = cluster_factory(brokers=1)
    address, pid = cluster.bootstrap_servers, cluster.pid
    make_topic(address, topic_name)
    put(address, topic_name, b"kept")
    directory = cluster.folder.parent

    seen = elsewhere(f"print(json.dumps([c.to_json() for c in cluster_status({str(directory)!r})]))")
    assert [(c["name"], c["state"], c["pids"], c["bootstrap_servers"]) for c in seen] == [("c1", "running", [pid], address)]
    stopped = elsewhere(f"print(json.dumps([c.to_json() for c in stop_clusters({str(directory)!r})]))")
    assert [(c["name"], c["state"], c["pids"]) for c in stopped] == [("c1", "stopped", [None])]
    assert (cluster.brokers[0].data / ".kafka_cleanshutdown").exists()
    assert "shut down completed" in cluster.brokers[0].log.read_text()
    assert cluster.state == "stopped"

    (again,) = cluster_factory(brokers=1)
    assert again.bootstrap_servers == address
    assert again.pid not in (None, pid)
    assert values_of(address, topic_name, 1) == [b"kept"]


def elsewhere(code: str) -> Any:
    """The JSON that ``code`` prints in a process of its own."""
    head = "import json; from mirror_pipeline.local.embedded.start import cluster_status, stop_clusters; "
    done = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def test_start_of_a_running_cluster_changes_nothing(cluster_factory: Factory) -> None:
    (cluster,) = cluster_factory(brokers=1)
    pid = cluster.pid
    (same,) = cluster_factory(version=DEFAULT_VERSION, brokers=1)
    assert (same.pid, same.bootstrap_servers) == (pid, cluster.bootstrap_servers)
    with pytest.raises(UsageError, match=rf"holds a cluster with version {DEFAULT_VERSION}, not 3\.9\.1"):
        cluster_factory(version="3.9.1", brokers=1)
    assert same.pid == pid


@pytest.mark.long
def test_kill_pause_and_resume(cluster_factory: Factory, topic_name: str) -> None:
    (cluster,) = cluster_factory(brokers=1)
    make_topic(cluster.bootstrap_servers, topic_name)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    cluster.pause()
    assert cluster.alive
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    cluster.resume()
    assert topic_name in admin.list_topics(timeout=30).topics
    cluster.pause()
    cluster.kill()
    assert (cluster.alive, cluster.pid, cluster.state) == (False, None, "stopped")
    cluster.start()
    assert topic_name in admin.list_topics(timeout=30).topics
    cluster.pause()
    cluster.stop()
    assert cluster.state == "stopped"


def test_lost_port_is_replaced(cluster_factory: Factory, topic_name: str) -> None:
    (cluster,) = cluster_factory(brokers=1)
    make_topic(cluster.bootstrap_servers, topic_name)
    port = int(cluster.bootstrap_servers.rpartition(":")[2])
    cluster.stop()
    with socket.create_server(("127.0.0.1", port)):
        (again,) = cluster_factory(brokers=1)
    assert again.bootstrap_servers != f"127.0.0.1:{port}"
    assert topic_name in AdminClient({"bootstrap.servers": again.bootstrap_servers}).list_topics(timeout=30).topics


def test_failed_start_names_the_cause_and_the_log_and_leaves_nothing_running(cluster_factory: Factory) -> None:
    with pytest.raises(StartFailed) as caught:
        cluster_factory(count=2, brokers=1, config={"num.io.threads": "many"})
    message = str(caught.value)
    assert "Invalid value many for configuration num.io.threads" in message
    assert "\n" not in message
    directory = Path(message.split("log: ")[1].rstrip(")")).parents[2]
    assert [cluster.state for cluster in cluster_status(directory)] == ["stopped", "stopped"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_three_brokers_replicate_and_go_on_without_one(cluster_factory: Factory, topic_name: str) -> None:
    (cluster,) = cluster_factory()
    assert len(cluster.bootstrap_servers.split(",")) == 3
    make_topic(cluster.bootstrap_servers, topic_name, partitions=3, replicas=3)
    cluster.kill(node=2)
    assert [broker.alive for broker in cluster.brokers] == [True, False, True]
    assert cluster.state == "partly running"
    put(cluster.bootstrap_servers, topic_name, b"a", b"b", b"c")
    cluster.start()
    assert cluster.alive
    assert sorted(values_of(cluster.bootstrap_servers, topic_name, 3)) == [b"a", b"b", b"c"]


def test_additional_listener_with_scram(cluster_factory: Factory, topic_name: str) -> None:
    (cluster,) = cluster_factory(
        brokers=1,
        listeners={"SECURE": "SASL_PLAINTEXT"},
        config={
            "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.secure.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        },
        storage_args=["--add-scram", "SCRAM-SHA-256=[name=alice,password=wonderland]"],
    )
    login: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "log_level": "0",
    }  # fmt: skip
    address = cluster.listener("SECURE")
    make_topic(address, topic_name, **login | {"sasl.password": "wonderland"})
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": address, **login, "sasl.password": "looking-glass"}).list_topics(timeout=5)


@pytest.mark.parametrize("names", [["a", "a"], ["a/b"], ["a,b"], [""], [".hidden"], []])
def test_names_that_cannot_be_used(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(UsageError, match="cannot name clusters"):
        start_clusters(tmp_path, names=names)


def test_unknown_version_and_unknown_cluster(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no embedded Kafka 2\.8\.0 \(one of 4\.4\.0, 4\.3\.0, 3\.9\.1\)"):
        start_clusters(tmp_path, version="2.8.0")
    with pytest.raises(UsageError, match="no cluster c9"):
        stop_clusters(tmp_path, "c9")
    with pytest.raises(UsageError, match="is no folder"):
        stop_clusters(tmp_path / "nowhere")
    assert cluster_status(tmp_path) == []


@pytest.mark.long
def test_a_start_that_loses_a_port_to_another_cluster_takes_others(
    cluster_factory: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its brokers find a stranger behind that port, and may say so before its own broker fails."""
    (neighbour,) = cluster_factory(1, brokers=3)
    taken = neighbour.ports[0]["CONTROLLER"]
    chances = iter([free_port(), taken])  # of broker 1: its own listener, its controller's
    monkeypatch.setattr(embedded, "free_port", lambda used: next(chances, None) or free_port(used))
    (later,) = start_clusters(tmp_path, names=["later"], brokers=3)
    try:
        assert next(chances, None) is None
        assert later.state == "running"
        assert taken not in {port for ports in later.ports for port in ports.values()}
    finally:
        later.stop()

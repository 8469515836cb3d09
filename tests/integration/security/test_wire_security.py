"""TLS and SASL against real brokers: one cluster per Kafka version with every kind of listener."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mirror_pipeline.config import ClusterSettings, SecretRef, Security
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, MirrorError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.fetch import FetchedPartition, arrived_fetch, fetch, receive_fetch, send_fetch
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.security.tls import TlsFailed
from mirror_pipeline.kafka.wire.connection import Connection
from mirror_pipeline.local.embedded.settings import DEFAULT_VERSION
from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters, stop_clusters
from mirror_pipeline.model import TopicPartition
from tests.support.certificates import authority, certificate, keystore
from tests.support.waiting import has_input
from tests.support.wire_tools import batch, new_topic, put, stamped

USER, PASSWORD, KEY_PASSWORD = "mirror=user", "canary-pass-5d2e", "canary-key-77aa"
PLAIN_USER = "plainuser"
RIGHT, WRONG = "${env:WIRE_PASSWORD}", "${env:WIRE_WRONG}"
SESSION_MS = 10_000  # renewed a tenth before its end: longer than a busy test machine stands still
LIMITS: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 64 << 20}


class Certificates(NamedTuple):
    """PEM files: an authority, a broker certificate for 127.0.0.1, a client certificate, an authority nobody knows."""

    folder: Path

    def __getattr__(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")








@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory(prefix="wire-tls-") as name:
        folder = Path(name)
        keystore(folder)
        authority(folder, "stranger")
        certificate(folder, "client", "ca", "extendedKeyUsage=clientAuth", ["-passout", f"pass:{KEY_PASSWORD}"])
        yield Certificates(folder)


@pytest.fixture(scope="module")
def cluster(kafka_version: str, certificates: Certificates) -> Iterator[LocalCluster]:
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{PLAIN_USER}="{PASSWORD}";'
    config = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.keystore,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.ca,
        "listener.name.mutual.ssl.client.auth": "required",
    }
    for listener in ("secure", "open", "brief"):
        config[f"listener.name.{listener}.sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
        config[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
        for bits in ("256", "512"):
            config[f"listener.name.{listener}.scram-sha-{bits}.sasl.jaas.config"] = scram
    config["listener.name.brief.connections.max.reauth.ms"] = str(SESSION_MS)
    config["listener.name.open.sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-512"
    users = [f for bits in ("256", "512") for f in ("--add-scram", f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]")]
    version = DEFAULT_VERSION if kafka_version == "given" else kafka_version
    with tempfile.TemporaryDirectory(prefix="wire-secure-") as folder:
        listeners = {"TLS": "SSL", "MUTUAL": "SSL", "SECURE": "SASL_SSL", "OPEN": "SASL_PLAINTEXT", "BRIEF": "SASL_PLAINTEXT"}
        try:
            # One broker: a listener is a matter of each, and its certificates and users are the same.
            (made,) = start_clusters(folder, 1, version=version, config=config, listeners=listeners, storage_args=users)
            yield made
        finally:
            stop_clusters(folder)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRE_PASSWORD", PASSWORD)
    monkeypatch.setenv("WIRE_WRONG", PASSWORD + "-no")
    monkeypatch.setenv("WIRE_KEY", KEY_PASSWORD)


def sasl(protocol: str, mechanism: str, *, ca: str | None = None, password: str = RIGHT, user: str | None = None) -> Security:
    name = user or (PLAIN_USER if mechanism == "PLAIN" else USER)
    return Security(protocol=protocol, mechanism=mechanism, username=name, password=SecretRef(password), ca_file=ca)


def client(cluster: LocalCluster, listener: str, security: Security, *, host: str = "127.0.0.1") -> WireClient:
    address = cluster.listener(listener).replace("127.0.0.1", host)
    return WireClient(ClusterSettings("east", (address,), security), timeout=20.0)


def arrive(connection: Connection) -> dict[TopicPartition, FetchedPartition]:
    """The next answer, put together as a selector says that something came."""
    while (answer := arrived_fetch(connection)) is None:
        assert has_input(connection.fileno(), 20), "what TLS has taken from the socket is not handed out"
    return answer


def copy_something(using: WireClient, servers: str) -> None:
    """Small and large batches in and out again: partial TLS records, pipelining, several lanes."""
    topic = new_topic(servers, partitions=2, config={"max.message.bytes": str(32 << 20)})
    small, large = TopicPartition(topic, 0), TopicPartition(topic, 1)
    stamp = using.init_producer_id()
    body = batch([bytes([i]) * (1 << 20) for i in range(9)])
    assert {using.leader(small), using.leader(large)} == {1}
    connection = using.connection(1)
    for i in range(4):
        batches = {small: stamped(batch([b"%d" % i]), stamp, i), large: stamped(body, stamp, i * 9)}
        send_produce(connection, batches, timeout_ms=20_000)
    assert [{a.error for a in receive_produce(connection).values()} for _ in range(4)] == [{0}] * 4
    assert put(using, large, body, stamp, 27, lane=1)[:2] == (0, 27)
    for offset in (0, 9, 18):
        send_fetch(connection, {large: (offset, 1 << 20)}, **LIMITS)
    held = [receive_fetch(connection)[large].records for _ in range(3)]
    assert all(bytes(view[61 : len(body)]) == body[61:] for view in held)
    for offset in (0, 9, 18):
        send_fetch(connection, {large: (offset, 1 << 20)}, **LIMITS)
    held = [arrive(connection)[large].records for _ in range(3)]
    assert all(bytes(view[61 : len(body)]) == body[61:] for view in held)
    assert fetch(connection, {small: (0, 1 << 20)}, **LIMITS)[small].high_watermark == 4
    states = using.describe_producers([large])[large]
    assert isinstance(states, list) and states[0].last_sequence == 35


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_sasl_over_tls(cluster: LocalCluster, certificates: Certificates, mechanism: str) -> None:
    with client(cluster, "SECURE", sasl("SASL_SSL", mechanism, ca=certificates.ca)) as using:
        copy_something(using, cluster.bootstrap_servers)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_sasl_without_tls_when_asked_for(cluster: LocalCluster, mechanism: str) -> None:
    with client(cluster, "OPEN", sasl("SASL_PLAINTEXT", mechanism)) as using:
        copy_something(using, cluster.bootstrap_servers)


def test_tls_alone(cluster: LocalCluster, certificates: Certificates) -> None:
    with client(cluster, "TLS", Security(protocol="SSL", ca_file=certificates.ca)) as using:
        copy_something(using, cluster.bootstrap_servers)


def test_tls_with_a_client_certificate(cluster: LocalCluster, certificates: Certificates) -> None:
    key = str(certificates.folder / "client-key.pem")
    files: dict[str, Any] = {"ca_file": certificates.ca, "cert_file": certificates.client, "key_file": key}
    with client(cluster, "MUTUAL", Security(protocol="SSL", key_password=SecretRef("${env:WIRE_KEY}"), **files)) as using:
        copy_something(using, cluster.bootstrap_servers)
    wrong = Security(protocol="SSL", key_password=SecretRef(WRONG), **files)
    refused(client(cluster, "MUTUAL", wrong), MirrorError, "not a matching pair")


def refused(using: WireClient, kind: type[MirrorError], message: str) -> MirrorError:
    """The one clear error of a connection that cannot come about, without any secret in it."""
    with using, pytest.raises(kind, match=message) as caught:
        using.metadata([])
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))
    for secret in (PASSWORD, KEY_PASSWORD):
        assert secret not in shown
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_a_wrong_password(cluster: LocalCluster, certificates: Certificates, mechanism: str) -> None:
    security = sasl("SASL_SSL", mechanism, ca=certificates.ca, password=WRONG)
    error = refused(client(cluster, "SECURE", security), BrokerError, "authentication failed for this user by " + mechanism)
    assert isinstance(error, BrokerError) and error.code == 58 and not error.retryable


def test_an_unknown_user(cluster: LocalCluster, certificates: Certificates) -> None:
    security = sasl("SASL_SSL", "SCRAM-SHA-256", ca=certificates.ca, user="nobody")
    refused(client(cluster, "SECURE", security), BrokerError, "authentication failed")


def test_a_mechanism_the_listener_has_not(cluster: LocalCluster) -> None:
    error = refused(client(cluster, "OPEN", sasl("SASL_PLAINTEXT", "SCRAM-SHA-256")), BrokerError, "it offers .*SCRAM-SHA-512")
    assert isinstance(error, BrokerError) and error.code == 33


def test_a_name_the_certificate_does_not_carry(cluster: LocalCluster, certificates: Certificates) -> None:
    security = Security(protocol="SSL", ca_file=certificates.ca)
    refused(client(cluster, "TLS", security, host="localhost"), TlsFailed, "host name mismatch.*localhost")
    unchecked = Security(protocol="SSL", ca_file=certificates.ca, verify_hostname=False)
    with client(cluster, "TLS", unchecked, host="localhost") as using:
        assert using.metadata([]).cluster_id == cluster.cluster_id


@pytest.mark.parametrize("ca", ["stranger", ""])
def test_an_authority_nobody_trusts(cluster: LocalCluster, certificates: Certificates, ca: str) -> None:
    security = Security(protocol="SSL", ca_file=getattr(certificates, ca) if ca else None, verify_hostname=False)
    refused(client(cluster, "TLS", security), TlsFailed, "certificate not trusted")


def test_no_client_certificate_where_one_is_wanted(cluster: LocalCluster, certificates: Certificates) -> None:
    security = Security(protocol="SSL", ca_file=certificates.ca)
    error = refused(client(cluster, "MUTUAL", security), MirrorError, "TLS")
    assert "client certificate" in error.hint


def test_the_wrong_protocol_for_the_listener(cluster: LocalCluster, certificates: Certificates) -> None:
    error = refused(client(cluster, "PLAINTEXT", Security(protocol="SSL", ca_file=certificates.ca)), MirrorError, "127.0.0.1")
    assert "protocol" in error.hint or "TLS" in error.hint
    for listener in ("TLS", "OPEN"):
        error = refused(client(cluster, listener, Security()), ClusterUnreachable, "no broker answered")
        assert "security.protocol" in error.hint


def test_a_session_is_renewed_in_the_middle_of_pipelined_work(cluster: LocalCluster) -> None:
    tp = TopicPartition(new_topic(cluster.bootstrap_servers), 0)
    with client(cluster, "BRIEF", sasl("SASL_PLAINTEXT", "SCRAM-SHA-512")) as using:
        stamp = using.init_producer_id()
        connection = using.connection(using.leader(tp))
        first = connection._renew_at
        assert first is not None and first < time.monotonic() + SESSION_MS / 1000
        until, sent, answers = time.monotonic() + 1.5 * SESSION_MS / 1000, 0, []
        while time.monotonic() < until:
            send_produce(connection, {tp: stamped(batch([b"x"]), stamp, sent)}, timeout_ms=20_000)
            sent += 1
            if connection.in_flight >= 3:
                answers.append(receive_produce(connection)[tp])
            time.sleep(0.05)
        while connection.in_flight:
            answers.append(receive_produce(connection)[tp])
        assert [a[:2] for a in answers] == [(0, i) for i in range(sent)]
        assert connection._renew_at is not None and connection._renew_at > first + SESSION_MS / 2000

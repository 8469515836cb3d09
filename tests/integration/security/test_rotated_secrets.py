"""Passwords and certificates are changed under a running lane, on the cluster first or in the file first: it waits, says so, goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver import lane
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters, stop_clusters
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.reports import Progress
from tests.integration.processes import wait_until
from tests.support.certificates import authority, certificate, keystore
from tests.support.groups import IN_PROCESS, running
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce
from tests.support.scram import SCRAM, login, set_password

pytestmark = pytest.mark.long

# A session ends after this time, and its connection logs in anew (KIP-368).
SESSION_SECONDS = 3.0


@dataclass
class Place:
    """Two clusters behind SCRAM, and behind TLS with client certificates; the operator comes in by an open listener."""

    folder: Path
    clusters: dict[str, LocalCluster]

    def at(self, alias: str) -> str:
        return self.clusters[alias].bootstrap_servers

    def set_password(self, password: str) -> None:
        """Of the mirror's user, on both clusters."""
        for alias in self.clusters:
            set_password(self.at(alias), password)

    def mirror(self, folder: Path, prefix: str, listener: str, security: dict[str, Any], **settings: Any) -> Mirror:
        clusters = {
            alias: {"bootstrap_servers": cluster.listener(listener), "security": security} for alias, cluster in self.clusters.items()
        }
        engine = {**IN_PROCESS, "source_wait": "4s", "target_wait": "4s"}
        return make_mirror(folder, "", "", [f"{prefix}.*"], **{"clusters": clusters, "engine": engine, **settings})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("rotated")
    for name in ("old-clients", "new-clients"):
        authority(folder, name)
    (folder / "trusted.pem").write_text((folder / "old-clients.pem").read_text())
    settings = {
        **keystore(folder),
        **SCRAM,
        "listener.name.tls.ssl.truststore.type": "PEM",
        "listener.name.tls.ssl.truststore.location": str(folder / "trusted.pem"),
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.secure.connections.max.reauth.ms": str(int(SESSION_SECONDS * 1000)),
    }
    try:
        found = start_clusters(
            folder / "clusters", names=["east", "west"], heap="256m", config=settings, listeners={"SECURE": "SASL_PLAINTEXT", "TLS": "SSL"}
        )
        yield Place(folder, {cluster.name: cluster for cluster in found})
    finally:
        stop_clusters(folder / "clusters")


@pytest.fixture(autouse=True)
def searches_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "DISCOVER_SECONDS", 1.0)
    monkeypatch.setattr(lane, "RAREST_DISCOVER_SECONDS", 1.0)


def copied(mirror: Mirror, *topics: str) -> None:
    """Wait until each topic has a copy that is complete."""

    def complete() -> bool:
        found = {row.topic: row for row in mirror.lag().topics}
        return all(topic in found and found[topic].state == "ok" and not found[topic].lag_records for topic in topics)

    wait_until(complete, 60, f"{topics} to be copied")


def held(place: Place, topic: str) -> int:
    """Records on the target, which the mirror's own login may not ask for now."""
    with WireClient(ClusterSettings("west", (place.at("west"),))) as client:
        return log_range(client, [TopicPartition(topic, 0)], isolation=0)[TopicPartition(topic, 0)][1]


def said(mirror: Mirror) -> str:
    return mirror.status().lanes[0].message


@pytest.mark.parametrize("first", ["cluster", "file"])
def test_a_password_is_changed_under_a_running_lane(
    place: Place, tmp_path: Path, topic_name: str, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sessions end meanwhile: what is open stays no longer than it may. The run's patience of 4 s is for `--once` only."""
    secret = tmp_path / "password"
    secret.write_text("before")
    place.set_password("before")
    steps: dict[str, Callable[[], object]] = {"cluster": partial(place.set_password, "after"), "file": partial(secret.write_text, "after")}
    create_topic(place.at("east"), f"{topic_name}.a")
    mirror = place.mirror(tmp_path, topic_name, "SECURE", login(secret))
    with running(mirror):
        produce(place.at("east"), f"{topic_name}.a", 20)
        wait_until(lambda: mirror.lag().lag_records == 0 and bool(said(mirror)) is False, 60, "the first records")
        steps.pop(first)()
        time.sleep(2 * SESSION_SECONDS)
        produce(place.at("east"), f"{topic_name}.a", 20, start=20)
        wait_until(lambda: "authentication failed" in said(mirror).lower(), 60, "the run to say why it waits")
        time.sleep(2 * SESSION_SECONDS)
        for last in steps.values():
            last()
        create_topic(place.at("east"), f"{topic_name}.b")
        produce(place.at("east"), f"{topic_name}.b", 20)
        copied(mirror, f"{topic_name}.a", f"{topic_name}.b")
        wait_until(lambda: not said(mirror), 60, "the lane to have nothing to complain about")
    assert sum("search_failed" in record.message for record in caplog.records) <= 2, "said once, not at every search"
    assert_identical(mirror, [f"{topic_name}.a", f"{topic_name}.b"])


def test_a_password_file_is_empty_for_some_seconds(place: Place, tmp_path: Path, topic_name: str) -> None:
    secret = tmp_path / "password"
    secret.write_text("steady")
    place.set_password("steady")
    create_topic(place.at("east"), f"{topic_name}.a")
    mirror = place.mirror(tmp_path, topic_name, "SECURE", login(secret))
    with running(mirror):
        produce(place.at("east"), f"{topic_name}.a", 20)
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the first records")
        secret.write_text("")
        time.sleep(5 + SESSION_SECONDS)
        produce(place.at("east"), f"{topic_name}.a", 20, start=20)
        secret.write_text("steady")
        create_topic(place.at("east"), f"{topic_name}.b")
        produce(place.at("east"), f"{topic_name}.b", 20)
        copied(mirror, f"{topic_name}.a", f"{topic_name}.b")
    assert_identical(mirror, [f"{topic_name}.a", f"{topic_name}.b"])


def test_a_once_run_gives_up_after_its_patience_and_a_first_contact_at_once(place: Place, tmp_path: Path, topic_name: str) -> None:
    secret = tmp_path / "password"
    secret.write_text("known")
    place.set_password("known")
    create_topic(place.at("east"), topic_name)
    produce(place.at("east"), topic_name, 4_000, size=1_000)
    engine = {**IN_PROCESS, "source_wait": "4s", "target_wait": "4s", "bandwidth": "200KB"}
    mirror = place.mirror(tmp_path, topic_name, "SECURE", login(secret), topics={"include": [topic_name]}, engine=engine)
    changes = iter(["another"])

    def change(progress: Progress) -> None:
        for password in changes if progress.records else ():
            place.set_password(password)

    with pytest.raises(ClusterUnreachable, match="(?i)authentication failed"):
        mirror.run(once=True, observer=change)
    assert 0 < held(place, f"east.{topic_name}") < 4_000
    began = time.monotonic()
    with pytest.raises(ClusterUnreachable, match="(?i)authentication failed"):
        mirror.run(once=True)
    assert time.monotonic() - began < 4


def test_client_certificates_are_replaced_and_the_old_ones_refused(place: Place, tmp_path: Path, topic_name: str) -> None:
    """The target's broker is restarted with other trusted authorities, then the mirror's files change: the certificate, then its key."""
    for name in ("old", "new"):
        certificate(place.folder, f"client-{name}", f"{name}-clients", "extendedKeyUsage=clientAuth", ["-nodes"])
    own, key = tmp_path / "client.pem", tmp_path / "client-key.pem"
    trusted, west = place.folder / "trusted.pem", place.clusters["west"]

    def install(path: Path, name: str) -> None:
        path.write_text((place.folder / name).read_text())

    install(own, "client-old.pem")
    install(key, "client-old-key.pem")
    security = {"protocol": "SSL", "ca_file": str(place.folder / "ca.pem"), "cert_file": str(own), "key_file": str(key)}
    create_topic(place.at("east"), f"{topic_name}.a")
    mirror = place.mirror(tmp_path, topic_name, "TLS", security)
    with running(mirror):
        produce(place.at("east"), f"{topic_name}.a", 20)
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the first records")
        west.stop()
        install(trusted, "new-clients.pem")
        west.start()
        produce(place.at("east"), f"{topic_name}.a", 20, start=20)
        wait_until(lambda: "tls" in said(mirror).lower(), 60, "the run to say why it waits")
        trusted.write_text((place.folder / "old-clients.pem").read_text() + (place.folder / "new-clients.pem").read_text())
        install(own, "client-new.pem")  # it does not belong to the key now
        time.sleep(2)
        install(key, "client-new-key.pem")
        create_topic(place.at("east"), f"{topic_name}.b")
        produce(place.at("east"), f"{topic_name}.b", 20)
        place.clusters["east"].stop()
        place.clusters["east"].start()
        copied(mirror, f"{topic_name}.a", f"{topic_name}.b")
    assert_identical(mirror, [f"{topic_name}.a", f"{topic_name}.b"])

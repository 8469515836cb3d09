"""A session of librdkafka keeps the secrets that it was opened with: it is opened anew when they have changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.config import ClusterSettings, SecretRef, Security
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.admin_client import Session
from mirror_pipeline.model import TopicPartition
from tests.support.certificates import authority


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("before")
    return path


def cluster_of(secret: Path, ca: Path | None = None) -> ClusterSettings:
    protocol = "SASL_PLAINTEXT" if ca is None else "SASL_SSL"
    password = SecretRef(f"${{file:{secret}}}")
    security = Security(protocol, mechanism="SCRAM-SHA-512", username="m", password=password, ca_file=str(ca) if ca else None)
    return ClusterSettings("east", ("127.0.0.1:1",), security)


def test_a_session_is_outdated_once_a_secret_is_another_one_and_can_be_read(secret: Path) -> None:
    session = Session(cluster_of(secret))
    assert not session.outdated
    secret.write_text("")
    assert not session.outdated
    secret.write_text("after")
    assert session.outdated


def test_a_session_is_outdated_once_a_file_of_its_settings_is_another_one(secret: Path, tmp_path: Path) -> None:
    authority(tmp_path, "ca")
    ca = tmp_path / "ca.pem"
    session = Session(cluster_of(secret, ca))
    assert not session.outdated
    ca.write_text(ca.read_text() + "# another one")
    assert session.outdated


@pytest.mark.parametrize("changed", [True, False])
def test_after_a_failure_a_changed_secret_is_tried_once_more(secret: Path, changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Session] = []

    def refused(self: Admin, what: Any, start: Any, limit: float | None) -> dict[str, Any]:
        tried.append(self._session)
        raise ClusterUnreachable("east", "authentication failed")

    monkeypatch.setattr(Admin, "_try", refused)
    admin = Admin(cluster_of(secret))
    if changed:
        secret.write_text("after")
    with pytest.raises(ClusterUnreachable):
        admin.describe()
    assert len(tried) == len(set(map(id, tried))) == 1 + changed
    assert not tried[-1].outdated


def test_a_secret_that_cannot_be_read_any_more_is_a_cluster_that_cannot_be_reached(secret: Path) -> None:
    admin = Admin(cluster_of(secret))
    admin.close()
    secret.write_text("")
    with pytest.raises(ClusterUnreachable, match="is empty"):
        admin.describe()


def test_a_change_is_never_sent_twice_and_only_to_the_cluster_that_was_looked_at(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is opened anew may lead elsewhere, and what became of the first request is unknown."""
    tried: list[str] = []

    def fails(self: Admin, what: Any, start: Any, limit: float | None) -> dict[str, Any]:
        tried.append("change")
        raise ClusterUnreachable("east", "authentication failed")

    monkeypatch.setattr(Admin, "_describe", lambda self, operations: tried.append("look"))
    monkeypatch.setattr(Admin, "_try", fails)
    admin = Admin(cluster_of(secret))
    secret.write_text("after")
    changes: list[Callable[[], None]] = [
        partial(admin.delete_topic, "t"),
        partial(admin.delete_records, {TopicPartition("t", 0): 5}),
    ]
    for change in changes:
        with pytest.raises(ClusterUnreachable):
            change()
    assert tried == ["look", "change"] * len(changes)

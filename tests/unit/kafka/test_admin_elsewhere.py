"""Questions to a cluster one of whose brokers hangs: librdkafka waits for the broker it has chosen, others would answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.kafka import admin as module
from mirror_pipeline.kafka.admin import Admin

SERVERS = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """What is asked: of which session, the first, the second and so on, and for how long. The first one's broker hangs."""
    sessions: list[Any] = []
    found: list[tuple[int, float]] = []

    def many(self: Admin, what: Callable[[str], str], start: Any, limit: float | None = None) -> dict[str, Any]:
        if self._session not in sessions:
            sessions.append(self._session)
        found.append((sessions.index(self._session), limit or 0.0))
        if self._session is sessions[0]:
            raise ClusterUnreachable("east", "no answer")
        return {"answer": "from another broker"}

    monkeypatch.setattr(Admin, "_many", many)
    return found


def ask(admin: Admin) -> dict[str, Any]:
    return admin._asked(str, lambda client, timeout: {})


def test_a_question_that_hangs_is_asked_again_at_the_brokers_that_answer(
    asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "answering", lambda cluster, seconds: list(SERVERS[1:]))
    assert ask(Admin(ClusterSettings("east", SERVERS))) == {"answer": "from another broker"}
    assert asked == [(0, 2.0), (1, 3.0)]


def test_brokers_that_are_only_slow_keep_their_connections_and_get_all_of_the_time(
    asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "answering", lambda cluster, seconds: list(SERVERS))
    with pytest.raises(ClusterUnreachable):
        ask(Admin(ClusterSettings("east", SERVERS)))
    assert asked == [(0, 2.0), (0, 3.0), (0, 5.0)]


@pytest.mark.parametrize("servers", [SERVERS[:1], SERVERS])
def test_where_nobody_else_answers_that_is_said(
    asked: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch, servers: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "answering", lambda cluster, seconds: [])
    with pytest.raises(ClusterUnreachable, match="no answer"):
        ask(Admin(ClusterSettings("east", servers)))
    assert len(asked) == 1


def test_only_addresses_with_a_broker_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirror_pipeline.kafka.admin_client import answering

    assert answering(ClusterSettings("east", SERVERS[:2]), 0.5) == []

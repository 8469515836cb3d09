"""Where tests get their Kafka from, and which slow test has its day."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka_source import choose, container_settings, docker_answers
from tests.support.slow_tests import chosen


def never() -> bool:
    raise AssertionError("Docker was asked although the answer does not matter")


def test_named_brokers_win() -> None:
    assert choose("a:1", "b:1", "containers", never) == "given"


@pytest.mark.parametrize(("a", "b"), [("a:1", None), (None, "b:1"), ("", "b:1")])
def test_one_end_alone_is_refused(a: str | None, b: str | None) -> None:
    with pytest.raises(pytest.UsageError, match="go together"):
        choose(a, b, "auto", never)


@pytest.mark.parametrize(("there", "source"), [(True, "containers"), (False, "embedded")])
def test_containers_where_docker_answers(there: bool, source: str) -> None:
    assert choose(None, None, "auto", lambda: there) == source


@pytest.mark.parametrize("wish", ["containers", "embedded"])
def test_an_explicit_wish_asks_nobody(wish: str) -> None:
    assert choose(None, None, wish, never) == wish


@pytest.mark.parametrize(("script", "answers"), [("exit 0", True), ("exit 1", False), ("sleep 5", False)])
def test_docker_client_without_an_engine_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, answers: bool
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr("tests.support.kafka_source.DOCKER_SECONDS", 1.0)
    assert docker_answers() is answers


def test_no_docker_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert docker_answers() is False


def test_slow_tests_take_turns() -> None:
    names = ["a", "b", "c"]
    assert [chosen(names, "rotate", day) for day in (9, 10, 11, 12)] == [["a"], ["b"], ["c"], ["a"]]
    assert [chosen(names, "rotate", day, parts=2) for day in (9, 10, 11)] == [["b"], ["a", "c"], ["b"]]
    assert chosen(names, "all", 1) == names
    assert chosen(names, "none", 1) == []
    assert chosen([], "rotate", 1) == chosen([], "rotate", 1, parts=2) == []


def test_two_containers_are_two_clusters_reached_by_their_own_ports() -> None:
    """The image's default cluster id is one for all; a mirror between two such clusters is refused as one onto itself."""
    one, two = container_settings(1111), container_settings(2222)
    assert one["CLUSTER_ID"] != two["CLUSTER_ID"] and len(one["CLUSTER_ID"]) == 22
    assert one["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://localhost:1111"

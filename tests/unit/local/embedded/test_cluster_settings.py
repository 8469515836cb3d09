"""What brokers of an embedded cluster are told, by their number; what `mirror clusters` says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mirror_pipeline.cli.main import app
from mirror_pipeline.errors import UsageError
from mirror_pipeline.local.embedded import start as clusters
from mirror_pipeline.local.embedded.cluster import LocalCluster
from mirror_pipeline.local.embedded.settings import ADVERTISED, BROKER, CONTROLLER, ClusterSpec, server_properties

INTERNAL = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


def told(spec: ClusterSpec, node: int = 1, **more: int) -> dict[str, str]:
    """A broker's settings."""
    nodes = range(1, spec.brokers + 1)
    ports = [{BROKER: 20_000 + n, CONTROLLER: 21_000 + n} | {name: 22_000 + n for name in spec.listeners} for n in nodes]
    ports[node - 1] |= more
    return dict(line.split("=", 1) for line in server_properties(spec, node, ports, Path("/data")).splitlines())


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")])
def test_topics_get_the_replicas_that_the_brokers_can_hold(brokers: int, replicas: str, in_sync: str) -> None:
    settings = told(ClusterSpec(brokers=brokers))
    assert (settings["default.replication.factor"], settings["min.insync.replicas"]) == (replicas, in_sync)
    assert {settings[f"{name}.replication.factor"] for name in INTERNAL} == {replicas}
    assert {settings[f"{name}.min.isr"] for name in INTERNAL[1:]} == {in_sync}


def test_kafka_3_has_no_share_coordinator() -> None:
    assert not [key for key in told(ClusterSpec(version="3.9.1", brokers=3)) if key.startswith("share.")]


def test_every_broker_is_a_controller_and_knows_all_of_them() -> None:
    settings = told(ClusterSpec(brokers=3), node=2)
    assert (settings["node.id"], settings["process.roles"]) == ("2", "broker,controller")
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:21001,2@127.0.0.1:21002,3@127.0.0.1:21003"


def test_clients_can_be_told_the_port_of_a_proxy() -> None:
    settings = told(ClusterSpec(brokers=3, listeners={"FRONT": "PLAINTEXT"}), node=3, **{f"FRONT{ADVERTISED}": 9})
    assert settings["listeners"].endswith("FRONT://127.0.0.1:22003")
    assert settings["advertised.listeners"] == f"{BROKER}://127.0.0.1:20003,FRONT://127.0.0.1:9"


def prepared(folder: Path, **asked: Any) -> LocalCluster:
    return clusters._prepared(folder, asked)


def test_brokers_of_a_larger_cluster_are_smaller(tmp_path: Path) -> None:
    assert prepared(tmp_path / "one").spec.heap == "512m"
    assert prepared(tmp_path / "three", brokers=3).spec.heap == clusters.HEAP_OF_MANY
    assert prepared(tmp_path / "own", brokers=3, heap="1g").spec.heap == "1g"
    assert prepared(tmp_path / "own").spec.heap == "1g", "a later start without the option changes nothing"


def test_a_cluster_keeps_its_number_of_brokers(tmp_path: Path) -> None:
    assert len(prepared(tmp_path / "c", brokers=3).brokers) == 3
    assert len(prepared(tmp_path / "c").brokers) == 3
    with pytest.raises(UsageError, match="holds a cluster with brokers 3, not 1"):
        prepared(tmp_path / "c", brokers=1)


def test_the_command_hands_on_the_number_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared(tmp_path / "c1", brokers=3)
    made.ports = [{BROKER: 20_000 + n, CONTROLLER: 21_000 + n} for n in (1, 2, 3)]
    asked: dict[str, Any] = {}
    monkeypatch.setattr(clusters, "start_clusters", lambda directory, count, **more: asked.update(count=count, **more) or [made])
    answer = CliRunner().invoke(app, ["clusters", "start", "--dir", str(tmp_path), "--count", "1", "--brokers", "3", "--json"])
    (shown,) = json.loads(answer.stdout)["clusters"]
    assert (asked["count"], asked["brokers"]) == (1, 3)
    assert (shown["brokers"], shown["pids"], shown["bootstrap_servers"].count(",")) == (3, [None] * 3, 2)
    assert CliRunner().invoke(app, ["clusters", "start", "--dir", str(tmp_path), "--brokers", "0"]).exit_code == 2

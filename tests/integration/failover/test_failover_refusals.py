"""What `mirror failover` and `mirror failback` refuse: one clear line each, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.children import default_signals
from mirror_pipeline.cli.main import main
from mirror_pipeline.crash_points import CRASH
from mirror_pipeline.features.failover.report import FailoverOptions
from tests.support.groups import commit, consumer
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, produce, write_config
from tests.support.reverse_pair import IN_PROCESS, pair, states

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """What a command says when it is refused with this exit code."""

    def ask(code: int, *words: str) -> str:
        capsys.readouterr()
        assert main([*words, "-c", str(tmp_path / "mirror.yaml")]) == code
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return " ".join(said.split())

    return ask


def mirror_of(folder: Path, clusters: ClusterPair, *topics: str, **more: Any) -> Mirror:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    return Mirror(load_config(write_config(folder, east, west, topics, engine=IN_PROCESS, **more)), "m")


def nothing_noted(mirror: Mirror) -> bool:
    """No table and no file of a failover."""
    return not Path(mirror.flow.config.buffer.uri, "m", "failover").exists()


def test_a_mirror_that_never_ran(clusters: ClusterPair, tmp_path: Path, topic_name: str, refused: Refused) -> None:
    create_topic(clusters[0].bootstrap_servers, topic_name)
    mirror = mirror_of(tmp_path, clusters, topic_name)
    assert "mirror m has not copied anything: there is nothing to fail over to" in refused(2, "failover", "m")
    assert "mirror m has no reverse mirror" in refused(2, "failback", "m")
    assert nothing_noted(mirror)


def test_a_failback_before_any_failover(clusters: ClusterPair, tmp_path: Path, topic_name: str, refused: Refused) -> None:
    create_topic(clusters[0].bootstrap_servers, topic_name)
    mirror, back = pair(tmp_path, clusters, topic_name)
    assert "mirror m was not failed over: there is nothing to fail back" in refused(2, "failback", "m")
    assert "mirror back has not copied anything" in refused(2, "failover", "back")
    assert nothing_noted(mirror)


def test_unknown_names_and_values(clusters: ClusterPair, tmp_path: Path, topic_name: str, refused: Refused) -> None:
    create_topic(clusters[0].bootstrap_servers, topic_name)
    produce(clusters[0].bootstrap_servers, topic_name, 5)
    mirror = mirror_of(tmp_path, clusters, topic_name)
    mirror.run(once=True)
    said = refused(2, "failover", "m", "--topic", "nosuch")
    assert "mirror m has not copied topic nosuch" in said and topic_name in said
    assert "'soon' is not a duration" in refused(2, "failover", "m", "--wait", "soon")
    assert "nosuch" in refused(2, "failover", "nosuch")
    assert nothing_noted(mirror)


def test_a_second_failover(clusters: ClusterPair, tmp_path: Path, topic_name: str, refused: Refused) -> None:
    create_topic(clusters[0].bootstrap_servers, topic_name)
    produce(clusters[0].bootstrap_servers, topic_name, 5)
    mirror = mirror_of(tmp_path, clusters, topic_name)
    mirror.run(once=True)
    mirror.failover()
    for words in (("--topic", topic_name), ("--unplanned",), ("--dry-run",)):
        said = refused(2, "failover", "m", *words)
        assert f"mirror m has failed over already: {topic_name} was promoted at" in said


def test_groups_that_are_active_on_the_target(clusters: ClusterPair, tmp_path: Path, topic_name: str, refused: Refused) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    names = [f"{topic_name}.{n}" for n in ("busy", "free")]
    groups = {"include": [f"{topic_name}.*"], "interval": "1s"}
    for name in names:
        create_topic(east, name)
        produce(east, name, 10)
    mirror = mirror_of(tmp_path, clusters, f"{topic_name}.*", groups=groups)
    mirror.run(once=True)
    for name in names:
        commit(east, f"{name}-g", {Place(name, 0): 4})
    member = consumer(west, f"{names[0]}-g")
    member.subscribe([f"east.{names[0]}"])
    while not member.assignment():
        member.poll(0.2)
    try:
        said = refused(1, "failover", "m")
        assert f"group {names[0]}-g has members on cluster west: its offsets cannot be written there" in said
        assert nothing_noted(mirror)
        report = mirror.failover(FailoverOptions(topics=names[1:]))
        assert [(row.group, row.offset) for row in report.groups] == [(f"{names[1]}-g", 4)], "a group of another topic does not hold it up"
    finally:
        member.close()
    assert states(mirror) == {names[0]: "ok", names[1]: "promoted"}


def test_a_copy_that_is_gone(clusters: ClusterPair, tmp_path: Path, topic_name: str, refused: Refused) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    names = [f"{topic_name}.{n}" for n in ("gone", "stays")]
    for name in names:
        create_topic(east, name)
        produce(east, name, 5)
    mirror = mirror_of(tmp_path, clusters, f"{topic_name}.*")
    mirror.run(once=True)
    admin = AdminClient({"bootstrap.servers": west})  # kept: its calls end with it
    admin.delete_topics([f"east.{names[0]}"])[f"east.{names[0]}"].result(15)
    for words in ((), ("--unplanned",)):
        assert f"east.{names[0]}" in refused(1, "failover", "m", *words)
    assert nothing_noted(mirror)
    assert mirror.failover(FailoverOptions(topics=names[1:])).state == "promoted"


def test_what_was_refused_binds_nobody(clusters: ClusterPair, tmp_path: Path, topic_name: str, refused: Refused) -> None:
    """A refusal says to leave a topic out: the next command may."""
    east = clusters[0].bootstrap_servers
    names = [f"{topic_name}.{n}" for n in ("large", "small")]
    for name in names:
        create_topic(east, name)
        produce(east, name, 5)
    mirror = mirror_of(tmp_path, clusters, f"{topic_name}.*")
    mirror.run(once=True)
    admin = AdminClient({"bootstrap.servers": east})  # kept: its calls end with it
    admin.delete_topics([names[0]])[names[0]].result(15)
    said = refused(1, "failover", "m")
    assert f"{names[0]} is halted" in said and "--topic" in said
    report = mirror.failover(FailoverOptions(topics=names[1:]))
    assert (report.number, [t.topic for t in report.topics]) == (2, names[1:])
    report = mirror.failover(FailoverOptions(unplanned=True))
    assert (report.number, [t.topic for t in report.topics]) == (3, names[:1])


def test_after_the_promotion_only_the_file_is_left_to_write(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, refused: Refused
) -> None:
    east = clusters[0].bootstrap_servers
    names = [f"{topic_name}.{n}" for n in ("a", "b")]
    for name in names:
        create_topic(east, name)
        produce(east, name, 5)
    mirror = mirror_of(tmp_path, clusters, f"{topic_name}.*")
    mirror.run(once=True)
    line = [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(tmp_path / "mirror.yaml"), "failover", "m", "--topic", names[0]]
    environment = {**os.environ, CRASH: "failover.promoted"}
    killed = subprocess.run(line, env=environment, timeout=120, preexec_fn=default_signals, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    folder = Path(mirror.flow.config.buffer.uri, "m", "failover")
    for words in (("--dry-run",), ("--topic", names[1])):
        assert "failover 1 was cut off after it had promoted" in refused(2, "failover", "m", *words)
    assert not (folder / "handover-1.json").exists()
    report = mirror.failover()
    assert (report.resumed, report.number, [t.topic for t in report.topics]) == (True, 1, names[:1])
    assert (folder / "handover-1.json").exists()

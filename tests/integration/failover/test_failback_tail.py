"""Failback where producers on the old source do not end: nothing is deleted that is not elsewhere, and a choice is never ignored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline import Mirror
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.features.failover import failback
from mirror_pipeline.features.failover.report import FailbackOptions, FailoverOptions
from mirror_pipeline.kafka.admin import Admin
from tests.support.commands import command
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, produce, values
from tests.support.reverse_pair import pair, states

REBUILD = FailbackOptions(tail="rebuild")


def everywhere(mirror: Mirror, *topics: str, partitions: int = 1) -> list[str]:
    """The values of topics of the mirror's target."""
    return sorted(value.rstrip(".") for topic in topics for part in range(partitions) for value in values(mirror, topic, part))


def wanted(*ranges: tuple[int, int]) -> list[str]:
    return sorted(f"value-{number}" for start, count in ranges for number in range(start, start + count))


@pytest.fixture
def failed_over(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> tuple[Mirror, Mirror]:
    """100 records on both sides, 20 that never came over, 30 of applications on the new primary."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    produce(east, topic_name, 100)
    forth.run(once=True)
    produce(east, topic_name, 20, start=500)
    forth.failover(FailoverOptions(unplanned=True))
    produce(west, topic_name, 30, start=100)
    return forth, back


@contextmanager
def writer(servers: str, topic: str) -> Iterator[list[str]]:
    """A producer that nobody stops; the values that were acknowledged."""
    acked: list[str] = []
    end = threading.Event()

    def told(error: object, message: Any) -> None:
        if not error:
            acked.append(message.value().decode())

    def write() -> None:
        client, number = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1}), 0
        while not end.wait(0.005):
            value = f"late-{number}"
            client.produce(topic, value, on_delivery=told)
            client.poll(0)
            number += 1
        client.flush(30)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield acked
    finally:
        end.set()
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize("point", ["failback.tail", "failback.copied", "failback.rebuilding", "failback.deleted", "failback.adopted"])
def test_what_arrives_after_a_kill_is_copied_aside_too(
    clusters: ClusterPair, failed_over: tuple[Mirror, Mirror], tmp_path: Path, topic_name: str, point: str
) -> None:
    forth, back = failed_over
    east = clusters[0].bootstrap_servers
    assert command(tmp_path, "failback", "m", "--tail", "rebuild", crash=point) == -signal.SIGKILL
    produce(east, topic_name, 25, start=900)
    done = forth.failback(REBUILD)
    assert (done.resumed, [(t.start, t.end) for t in done.tail]) == (True, [(100, 145)])
    assert everywhere(forth, f"{topic_name}.unreplicated") == wanted((500, 20), (900, 25))
    assert states(back) == {topic_name: "ok"}
    assert everywhere(back, topic_name) == wanted((0, 130))
    assert_identical(back, [topic_name], prefix="")


@pytest.mark.long
def test_a_producer_that_does_not_end_is_named_and_loses_nothing(
    clusters: ClusterPair, failed_over: tuple[Mirror, Mirror], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forth, back = failed_over
    monkeypatch.setattr(failback, "REST_SECONDS", 3.0)
    with writer(clusters[0].bootstrap_servers, topic_name) as acked:
        for _ in range(2):
            with pytest.raises(ProblemFound, match=rf"is still written to: {topic_name}\[0\]: producer ids: .*nothing was opened"):
                forth.failback(REBUILD)
    assert states(back) == {topic_name: "standby"}
    forth.failback(REBUILD)
    assert states(back) == {topic_name: "ok"}
    aside = everywhere(forth, f"{topic_name}.unreplicated")
    assert aside == sorted([*acked, *wanted((500, 20))]), "each of them once"
    assert everywhere(back, topic_name) == wanted((0, 130))


@pytest.mark.long
def test_a_repeated_command_may_choose_anew(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, failed_over: tuple[Mirror, Mirror]
) -> None:
    forth, back = failed_over
    assert command(tmp_path, "failback", "m", "--tail", "rebuild", crash="failback.begun") == -signal.SIGKILL
    for tail in ("leave", "copy-aside"):
        with pytest.raises(ProblemFound, match="nothing was opened"):
            forth.failback(FailbackOptions(tail=tail))
    with pytest.raises(UsageError, match="left to the command line"):
        forth.failback(FailbackOptions(may_rebuild=False))
    assert forth.failback().choice == "rebuild", "without a choice the first one stands"
    assert states(back) == {topic_name: "ok"}
    back.failover()
    with pytest.raises(UsageError, match="mirror back was failed over since"):
        forth.failback(REBUILD)
    assert everywhere(back, topic_name) == wanted((0, 130)), "what applications use now is not touched"
    assert back.failback().state == "open"


def test_another_choice_of_topics_is_followed(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east = clusters[0].bootstrap_servers
    names = [f"{topic_name}.{n}" for n in ("a", "b")]
    for name in names:
        create_topic(east, name)
        produce(east, name, 10)
    forth, back = pair(tmp_path, clusters, f"{topic_name}.*")
    forth.run(once=True)
    for name in names:
        produce(east, name, 5, start=10)
    forth.failover(FailoverOptions(unplanned=True))
    words = ("failback", "m", "--topic", names[0], "--tail", "copy-aside")
    assert command(tmp_path, *words, crash="failback.copied") == -signal.SIGKILL
    with pytest.raises(ProblemFound, match="never came over"):
        forth.failback(FailbackOptions(topics=[names[1]]))
    done = forth.failback(FailbackOptions(topics=[names[1]], tail="leave"))
    assert ([t.topic for t in done.topics], done.choice, done.resumed) == ([names[1]], "leave", False)
    done = forth.failback(FailbackOptions(tail="copy-aside"))
    assert [t.topic for t in done.topics] == names[:1]
    assert everywhere(forth, f"{names[0]}.unreplicated") == wanted((10, 5)), "not a second time"


@pytest.mark.long
def test_a_compacted_topic_is_emptied_too_and_gets_its_settings_back(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    admin = AdminClient({"bootstrap.servers": east})
    settings = {"cleanup.policy": "compact", "retention.ms": "777777"}
    admin.create_topics([NewTopic(topic_name, 1, 1, config=settings)])[topic_name].result(30)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    keyed(east, topic_name, 20)
    forth.run(once=True)
    keyed(east, topic_name, 5, start=20)
    forth.failover(FailoverOptions(unplanned=True))
    keyed(west, topic_name, 10, start=100)
    assert command(tmp_path, "failback", "m", "--tail", "rebuild", crash="failback.deleted") == -signal.SIGKILL
    forth.failback(REBUILD)
    with Admin(back.flow.target) as east_admin:
        found = east_admin.topic_configs([topic_name])[topic_name]
    assert isinstance(found, dict)
    assert {key: value.value for key, value in found.items() if value.is_explicit} == settings
    assert states(back) == {topic_name: "ok"}
    assert len(values(back, topic_name)) == 30
    assert len(values(forth, f"{topic_name}.unreplicated")) == 5


def keyed(servers: str, topic: str, count: int, start: int = 0) -> None:
    client = Producer({"bootstrap.servers": servers})
    for number in range(start, start + count):
        client.produce(topic, f"value-{number}", key=f"key-{number}")
    assert client.flush(30) == 0

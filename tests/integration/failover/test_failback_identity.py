"""Failback under names that come back to the same topic: the old topic is adopted, or rebuilt."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place

from mirror_pipeline import Mirror
from mirror_pipeline.crash_points import ADOPT_POINTS, REPLACE_POINTS, TAKE_BACK_POINTS
from mirror_pipeline.errors import BrokerError, ProblemFound, UsageError
from mirror_pipeline.features.failover.report import FailbackOptions, FailoverOptions
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import broker_error
from tests.support.commands import command
from tests.support.exact import assert_same_offsets, transactions
from tests.support.groups import commit, committed
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, end_offsets, produce, trim, values
from tests.support.reverse_pair import pair, states


def numbers(mirror: Mirror, topic: str, partitions: int = 1) -> list[int]:
    """The numbers in the values of the mirror's target, in order per partition."""
    found = [value for part in range(partitions) for value in values(mirror, topic, part)]
    return [int(value.removeprefix("value-").rstrip(".")) for value in found]


@pytest.mark.long
def test_there_and_back_and_there_again(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """Planned changes: nothing stays behind, so the same two topics are continued in both directions, twice around."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    produce(east, topic_name, 100)
    assert states(forth) == {topic_name: "ok"}
    written = 100
    for closed in ("standby", "promoted"):
        forth.failover()
        produce(west, topic_name, 30, start=written)
        assert [t.comes_back for t in forth.failback(FailbackOptions(dry_run=True)).topics] == [True]
        assert states(back) == {topic_name: closed}
        assert forth.failback().state == "open"
        assert (states(forth), states(back)) == ({topic_name: "promoted"}, {topic_name: "ok"})
        written += 30
        assert numbers(back, topic_name) == list(range(written)), "on east"
        back.failover()
        produce(east, topic_name, 20, start=written)
        assert back.failback().state == "open"
        assert (states(forth), states(back)) == ({topic_name: "ok"}, {topic_name: "promoted"})
        written += 20
        assert numbers(forth, topic_name) == list(range(written)), "on west"
        assert forth.verify().ok
    assert_identical(forth, [topic_name], prefix="")
    with pytest.raises(UsageError, match="is open already"):
        back.failback()


@pytest.mark.long
@pytest.mark.parametrize("hours", [-1, 2])
def test_no_clock_decides_what_was_opened_or_adopted(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Each command comes from a host whose clock is further off than that of the one before."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    produce(east, topic_name, 50)
    forth.run(once=True)
    true, off = time.time, 0

    def shift() -> None:
        nonlocal off
        off += hours * 3600
        monkeypatch.setattr(time, "time", lambda: true() + off)

    written = 50
    for here, there, servers in ((forth, back, west), (back, forth, east), (forth, back, west)):
        shift()
        here.failover()
        produce(servers, topic_name, 10, start=written)
        written += 10
        shift()
        here.failback()
        with pytest.raises(UsageError, match="is open already"):
            here.failback()
        monkeypatch.setattr(time, "time", true)
        assert states(there) == {topic_name: "ok"}
        assert numbers(there, topic_name) == list(range(written))


def test_a_tail_stands_in_the_way_until_the_topic_is_rebuilt(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    produce(east, topic_name, 100, partitions=2)
    forth.run(once=True)
    produce(east, topic_name, 20, partitions=2, start=500)
    forth.failover(FailoverOptions(unplanned=True))
    produce(west, topic_name, 40, partitions=2, start=100)
    for tail in (None, "leave", "copy-aside"):
        with pytest.raises(ProblemFound, match=r"from offset 50 to 60; .*nothing was opened.*--tail rebuild"):
            forth.failback(FailbackOptions(tail=tail))
    done = forth.failback(FailbackOptions(tail="rebuild"))
    assert [topic.rebuilt for topic in done.topics] == [True]
    assert states(back) == {topic_name: "ok"}
    assert sorted(numbers(back, topic_name, 2)) == list(range(140))
    assert sorted(numbers(forth, f"{topic_name}.unreplicated", 2)) == list(range(500, 520))
    assert_identical(back, [topic_name], prefix="")
    back.failover()
    back.failback()
    assert (states(forth), states(back)) == ({topic_name: "ok"}, {topic_name: "promoted"})


def test_a_topic_that_differs_is_rebuilt_by_name_only(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """Applications have made the topic anew on the new primary: the old one is not the beginning of it."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    produce(east, topic_name, 50)
    forth.run(once=True)
    forth.failover()
    with Admin(forth.flow.target) as admin:
        admin.delete_topic(topic_name)
        while topic_name in admin.topics():
            time.sleep(0.2)
    create_topic(west, topic_name)
    produce(west, topic_name, 5, start=700)
    for dry in (True, False):
        with pytest.raises(ProblemFound, match=rf"is not the beginning of .*--topic {topic_name} --tail rebuild"):
            forth.failback(FailbackOptions(dry_run=dry))
    assert states(back) == {topic_name: "standby"}
    assert len(values(back, topic_name)) == 50
    forth.failback(FailbackOptions(tail="rebuild"))
    assert states(back) == {topic_name: "ok"}
    assert numbers(back, topic_name) == list(range(700, 705))


@pytest.mark.long
@pytest.mark.parametrize("point", [*TAKE_BACK_POINTS, *ADOPT_POINTS])
def test_the_same_command_finishes_what_was_killed(clusters: ClusterPair, tmp_path: Path, topic_name: str, point: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    produce(east, topic_name, 100, partitions=2)
    forth.run(once=True)
    rebuilds = point in TAKE_BACK_POINTS
    if rebuilds:
        produce(east, topic_name, 20, partitions=2, start=500)
    forth.failover(FailoverOptions(unplanned=rebuilds))
    produce(west, topic_name, 30, partitions=2, start=100)
    words = ("failback", "m", *(("--tail", "rebuild") if rebuilds else ()))
    assert command(tmp_path, *words, crash=point) == -signal.SIGKILL
    assert states(back) == {topic_name: "standby"}
    assert command(tmp_path, *words) == 0
    assert states(back) == {topic_name: "ok"}
    assert sorted(numbers(back, topic_name, 2)) == list(range(130))
    assert back.verify().ok
    if rebuilds:
        assert sorted(numbers(forth, f"{topic_name}.unreplicated", 2)) == list(range(500, 520))


@pytest.mark.long
def test_exact_offsets_stay_the_same_there_and_back(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """Clusters are changed without a map: applications and groups use the same offsets on both, also before what was copied back."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 3)
    groups = {"include": [f"{topic_name}.*"]}
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity", offsets="exact", groups=groups)
    transactions(east, topic_name, 20)
    produce(east, topic_name, 10, partitions=2)
    trim(east, topic_name, {1: end_offsets(forth, topic_name, target=False)[1]})  # one log is empty, one was never written to
    assert states(forth) == {topic_name: "ok"}
    commit(east, f"{topic_name}-g", {Place(topic_name, 0): 12})
    turns = [(forth, back, west, east), (back, forth, east, west), (forth, back, west, east)]
    for turn, (here, there, servers, others) in enumerate(turns):
        here.failover()
        transactions(servers, topic_name, 6, start=100 * turn)
        produce(servers, topic_name, 9, partitions=3, start=1000 * turn)
        assert here.failback().state == "open"
        assert states(there) == {topic_name: "ok"}
        assert_same_offsets(there, [topic_name], prefix="", aborted=True)
        assert committed(others, f"{topic_name}-g")[topic_name, 0][0] in (12, 13)
        assert there.translate(topic_name, partition=0, offset=12)[0].target_offset == 12
        assert there.verify().ok


def test_an_exact_topic_that_may_not_be_deleted_takes_records_again(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, max__message__bytes="2000000")
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity", offsets="exact")
    produce(east, topic_name, 10)
    assert states(forth) == {topic_name: "ok"}
    produce(east, topic_name, 5)
    forth.failover(FailoverOptions(unplanned=True))

    def refuse(_: WireClient, topic_id: str, name: str) -> None:
        raise broker_error(29, name, topic_id)

    monkeypatch.setattr(WireClient, "delete_topic", refuse)
    with pytest.raises(BrokerError, match=topic_name):
        forth.failback(FailbackOptions(tail="rebuild"))
    monkeypatch.undo()
    with Admin(forth.flow.source) as admin:
        found = admin.topic_configs([topic_name])[topic_name]
    assert not isinstance(found, BrokerError) and found["max.message.bytes"].value == "2000000"
    produce(east, topic_name, 1)
    assert states(back) == {topic_name: "standby"}
    forth.failback(FailbackOptions(tail="rebuild"))
    assert states(back) == {topic_name: "ok"}
    assert_same_offsets(back, [topic_name], prefix="")


@pytest.mark.long
@pytest.mark.parametrize("point", [None, *REPLACE_POINTS])
def test_an_exact_topic_with_a_tail_is_made_anew(clusters: ClusterPair, tmp_path: Path, topic_name: str, point: str | None) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity", offsets="exact")
    produce(east, topic_name, 100, partitions=2)
    assert states(forth) == {topic_name: "ok"}
    produce(east, topic_name, 20, partitions=2, start=500)
    forth.failover(FailoverOptions(unplanned=True))
    transactions(west, topic_name, 4)
    trim(west, topic_name, {0: 30})
    with pytest.raises(ProblemFound, match=r"from offset 50 to 60; .*nothing was opened.*--tail rebuild"):
        forth.failback()
    words = ("failback", "m", "--tail", "rebuild")
    if point is not None:
        assert command(tmp_path, *words, crash=point) == -signal.SIGKILL
        assert states(back) == {topic_name: "standby"}
    assert command(tmp_path, *words) == 0
    assert states(back) == {topic_name: "ok"}
    assert_same_offsets(back, [topic_name], prefix="")
    assert sorted(numbers(forth, f"{topic_name}.unreplicated", 2)) == list(range(500, 520))
    produce(east, topic_name, 2, partitions=2)  # it takes records again
    assert states(back) == {topic_name: "halted"}

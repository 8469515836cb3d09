"""Failback under names that come back to the same topic: the old topic is adopted, or rebuilt."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.crash_points import ADOPT_POINTS, TAKE_BACK_POINTS
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.features.failover.report import FailbackOptions, FailoverOptions
from mirror_pipeline.kafka.admin import Admin
from tests.support.commands import command
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, produce, values
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

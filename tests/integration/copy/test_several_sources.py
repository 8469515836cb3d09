"""One topic from several clusters that hold it with the same offsets (``sources``)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.engine.driver.read import source_copies
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.features.failover.report import FailoverOptions
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.reports import Progress
from tests.integration.processes import wait_until
from tests.support.exact import assert_same_offsets, contents, transactions
from tests.support.groups import running
from tests.support.mirrors import create_topic, end_offsets
from tests.support.three_clusters import Trio, flow, mirrors_of

EXACT = {"naming": "identity", "offsets": "exact"}
MB = 1_000_000
DIFFERENCES = int(os.environ.get("MIRROR_DIFFERENCES", "12"))
"""Topics of a tampered copy; 50 for the long run."""
RECORDS, STAMP = 2_000, int(time.time() * 1000)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Four clusters of one broker: east is the source, north and west hold copies, home is the target."""
    folder = tmp_path_factory.mktemp("four")
    names = ("east", "north", "west", "home")
    try:
        yield dict(zip(names, start_clusters(folder, names=names), strict=True))
    finally:
        stop_clusters(folder)


def fill(bootstrap: str, topic: str, size: int, *, partitions: int = 3) -> None:
    """About ``size`` bytes that do not compress, spread over partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 65_536})
    for number in range(size // 1000):
        producer.produce(topic, os.urandom(980), b"%d" % number, partition=number % partitions)
        if not number % 1000:
            producer.poll(0)
    assert producer.flush(60) == 0


def copies_of(folder: Path, four: Trio, topic: str) -> None:
    """Let north and west hold exact copies."""
    made = mirrors_of(folder / "copies", four, flow("east", "north", topic, **EXACT), flow("east", "west", topic, **EXACT))
    for mirror in made.values():
        assert mirror.run(once=True).state == "ok"


def test_a_backlog_comes_from_all_that_hold_it(four: Trio, tmp_path: Path) -> None:
    topic = "several"
    create_topic(four["east"].bootstrap_servers, topic, 3)
    fill(four["east"].bootstrap_servers, topic, 60 * MB)
    transactions(four["east"].bootstrap_servers, topic, 12)
    copies_of(tmp_path, four, topic)
    wanted = flow("east", "home", topic, sources=["north", "west"], **EXACT)
    home = mirrors_of(tmp_path / "home", four, {**wanted, "engine": {"bandwidth": "4MB"}})["east-home"]
    assert {(copy.cluster, copy.records) for copy in home.plan().copies} == {(name, home.lag().lag_records) for name in ("north", "west")}
    found = {finding.what: finding for finding in home.check()}
    assert all(found[f"copy {alias}"].ok and "has 1 of 1 topic" in found[f"copy {alias}"].detail for alias in ("north", "west"))
    report = home.run(once=True)
    assert report.state == "ok"
    assert report.left_out == {}
    assert set(report.copied) == {"north", "west"}
    assert min(report.copied.values()) > MB
    assert_same_offsets(home, [topic], prefix="")


def hold_altered(source: str, copy: str, topic: str, shape: str, at: int, *, partitions: int = 1) -> None:
    """Let a cluster hold a topic's records with one difference in each partition: one altered, one missing, or one more."""
    create_topic(copy, topic, partitions)
    producer = Producer({"bootstrap.servers": copy, "linger.ms": 20})
    for (_, partition), (records, _) in contents(source, [topic]).items():
        for offset, key, value in records:
            if offset == at and shape == "missing":
                continue
            altered = bytes([value[0] ^ 1]) + value[1:] if offset == at and shape == "altered" and value else value
            producer.produce(topic, altered, key, partition, timestamp=STAMP)
            if offset == at and shape == "more":
                producer.produce(topic, b"not of the source", key, partition, timestamp=STAMP)
    assert producer.flush(60) == 0


def test_no_difference_of_a_copy_reaches_the_target(four: Trio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference of another shape, at another offset, in each of some topics.

    A topic that the source has given before its copy was compared needs no copy, and on a busy machine some are.
    """
    monkeypatch.setattr(source_copies, "WORTH_COPIES_BYTES", 0)  # there is time to compare until the source has given all
    chance = random.Random(29)
    names = [f"tampered-{number:02}" for number in range(DIFFERENCES)]
    for number, name in enumerate(names):
        create_topic(four["east"].bootstrap_servers, name)
        producer = Producer({"bootstrap.servers": four["east"].bootstrap_servers, "linger.ms": 20})
        for record in range(RECORDS):
            producer.produce(name, chance.randbytes(1000), b"%d" % record, timestamp=STAMP)
        assert producer.flush(60) == 0
        shape = ("altered", "missing", "more")[number % 3]
        hold_altered(four["east"].bootstrap_servers, four["north"].bootstrap_servers, name, shape, chance.randrange(RECORDS))
    honest = mirrors_of(tmp_path / "west", four, flow("east", "west", "tampered-.*", **EXACT))["east-west"]
    assert honest.run(once=True).state == "ok"
    wanted = flow("east", "home", "tampered-.*", sources=["north", "west"], engine={"bandwidth": "1MB", "fetch_max_bytes": "1MiB"}, **EXACT)
    home = mirrors_of(tmp_path / "home", four, wanted)["east-home"]
    report = home.run(once=True)
    assert report.state == "ok"
    assert "north" not in report.copied
    assert {f"north {name}" for name in names} >= set(report.left_out)
    assert len(report.left_out) >= DIFFERENCES // 2
    assert all("differs from east at offset" in why or "the source at" in why for why in report.left_out.values()), report.left_out
    assert_same_offsets(home, names, prefix="")


def test_what_copies_hold_arrives_while_the_source_is_dead(four: Trio, tmp_path: Path) -> None:
    """The source is killed in the middle; one copy is killed, another paused, and each comes back."""
    topic = "orphan"
    create_topic(four["east"].bootstrap_servers, topic, 3)
    fill(four["east"].bootstrap_servers, topic, 90 * MB)
    copies_of(tmp_path, four, topic)
    wanted = flow("east", "home", topic, sources=["north", "west"], engine={"bandwidth": "2MB", "request_timeout": "5s"}, **EXACT)
    home = mirrors_of(tmp_path / "home", four, wanted)["east-home"]
    with running(home):
        wait_until(lambda: len(said(home).copied) == 2, 60, "both copies are read")
        four["east"].kill()
        wait_until(lambda: bool(said(home).source_down), 60, "the source is missed")
        wait_until(lambda: any("is ahead by" in note for note in home.undelivered().notes), 30, "lag says from where it is copied")
        before = arrived(home, topic)
        wait_until(lambda: arrived(home, topic) > before + 5_000, 60, "more arrives")
        four["north"].kill()
        wait_until(lambda: arrived(home, topic) == 90_000, 150, "what west holds arrives")
        for name in ("east", "north"):
            four[name].start()
        wait_until(lambda: not said(home).source_down, 60, "the source is back")
    assert home.run(once=True).state == "ok"
    assert_same_offsets(home, [topic], prefix="")


def half_copied(four: Trio, folder: Path, topic: str) -> Mirror:
    """A mirror whose source is dead, and that has half of what north holds; west holds another record in place of the last one."""
    east = four["east"].bootstrap_servers
    create_topic(east, topic, 2)
    fill(east, topic, 4 * MB, partitions=2)
    wanted = flow("east", "home", topic, sources=["north", "west"], engine={"request_timeout": "5s", "source_wait": "5s"}, **EXACT)
    home = mirrors_of(folder / "home", four, wanted)["east-home"]
    assert home.run(once=True).state == "ok"
    fill(east, topic, 4 * MB, partitions=2)
    north = mirrors_of(folder / "north", four, flow("east", "north", topic, **EXACT))["east-north"]
    assert north.run(once=True).state == "ok"
    hold_altered(east, four["west"].bootstrap_servers, topic, "altered", 1_999, partitions=2)
    four["east"].kill()
    return home


def test_a_run_that_begins_without_the_source_takes_what_copies_hold(four: Trio, tmp_path: Path) -> None:
    topic = "late"
    home = half_copied(four, tmp_path, topic)
    with pytest.raises(ClusterUnreachable) as raised:
        home.run(once=True)
    report = raised.value.report
    assert report is not None and report.records == 4_000
    assert set(report.copied) == {"north"}
    assert [what for what in report.left_out if what.startswith("west")], report.left_out
    assert arrived(home, topic) == 8_000
    four["east"].start()
    again = home.run(once=True)
    assert (again.state, again.records) == ("ok", 0)
    assert_same_offsets(home, [topic], prefix="")


def test_a_failover_without_the_source_takes_what_copies_hold(four: Trio, tmp_path: Path) -> None:
    topic = "handed"
    home = half_copied(four, tmp_path, topic)
    assert home.failover(FailoverOptions(unplanned=True)).state == "promoted"
    assert arrived(home, topic) == 8_000
    four["east"].start()
    assert_same_offsets(home, [topic], prefix="")


def said(mirror: Mirror) -> Progress:
    """What the lane's run says of itself."""
    stores = mirror.flow.lane_stores()
    return read_lane_file(stores[0]).progress if stores else Progress("", "")


def arrived(mirror: Mirror, topic: str) -> int:
    """Offsets that the target has."""
    return sum(end_offsets(mirror, topic, target=True).values())

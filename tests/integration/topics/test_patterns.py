"""The patterns of docs/patterns.md between three running clusters."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from mirror_pipeline import Mirror
from mirror_pipeline.engine.driver import lane
from mirror_pipeline.features.failover.report import FailoverOptions
from mirror_pipeline.local.embedded.start import start_clusters
from tests.integration.processes import wait_until
from tests.support.groups import running
from tests.support.mirrors import create_topic, produce
from tests.support.other_writers import OtherWriter, ours
from tests.support.three_clusters import Trio, copied, expected, flow, mirrors_of, read_by_regex

pytestmark = pytest.mark.long

RING_SECONDS = float(os.environ.get("MIRROR_RING_SECONDS", "20"))
"""How long the ring is written to; 600 for the long run."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three clusters of one broker each: nine brokers would not fit beside the session's own six."""
    names = ["east", "west", "north"]
    clusters = start_clusters(tmp_path_factory.mktemp("trio"), names=names, brokers=1)
    yield dict(zip(names, clusters, strict=True))
    for cluster in clusters:
        cluster.kill()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs look for new topics every second."""
    monkeypatch.setattr(lane, "DISCOVER_SECONDS", 1.0)
    monkeypatch.setattr(lane, "RAREST_DISCOVER_SECONDS", 1.0)


def fill(trio: Trio, topic: str, count: int, *aliases: str, start: int = 0, create: bool = True) -> dict[str, range]:
    """Create a topic on each cluster and put ``count`` records into it, numbered differently on each."""
    numbers = {alias: range(start + 10_000 * place, start + 10_000 * place + count) for place, alias in enumerate(aliases or trio)}
    for alias, those in numbers.items():
        if create:
            create_topic(trio[alias].bootstrap_servers, topic, 2)
        produce(trio[alias].bootstrap_servers, topic, count, partitions=2, start=those.start)
    return numbers


def names(trio: Trio, alias: str, topic: str) -> set[str]:
    """The topics of a cluster that stem from ``topic``."""
    found = AdminClient({"bootstrap.servers": trio[alias].bootstrap_servers}).list_topics(timeout=15).topics
    return {name for name in found if name.endswith(topic)}


def verified(mirrors: dict[str, Mirror]) -> None:
    """Every record of every mirror, on both sides."""
    for name, mirror in mirrors.items():
        report = mirror.verify()
        assert report.ok, (name, report.differences[:3], [row.note for row in report.topics])


def test_active_active_by_prefix_and_one_regex_for_consumers(trio: Trio, tmp_path: Path, topic_name: str) -> None:
    every = rf"(.*\.)?{topic_name}"
    mirrors = mirrors_of(tmp_path, trio, flow("east", "west", every), flow("west", "east", every))
    numbers = fill(trio, topic_name, 50, "east", "west")
    assert copied(mirrors) == {"east-west": {topic_name: 50}, "west-east": {topic_name: 50}}
    assert copied(mirrors) == {"east-west": {topic_name: 0}, "west-east": {topic_name: 0}}, "nothing goes back"
    for alias in ("east", "west"):
        assert read_by_regex(trio[alias], f".*{topic_name}", 100, group=topic_name) == expected(*numbers.values())
    verified(mirrors)


def test_a_third_cluster_joins_and_no_client_changes(trio: Trio, tmp_path: Path, topic_name: str) -> None:
    every, only = rf"(.*\.)?{topic_name}", {"originals_only": True}
    first = [flow(*way, every, topics=only) for way in (("east", "west"), ("west", "east"))]
    numbers = fill(trio, topic_name, 40, "east", "west")
    copied(mirrors_of(tmp_path, {alias: trio[alias] for alias in ("east", "west")}, *first))
    assert read_by_regex(trio["west"], f".*{topic_name}", 80, group=topic_name) == expected(*numbers.values())

    ways = [("east", "north"), ("west", "north"), ("north", "east"), ("north", "west")]
    mirrors = mirrors_of(tmp_path, trio, *first, *(flow(*way, every, topics=only) for way in ways))
    own = fill(trio, topic_name, 30, "north", start=50_000)["north"]
    plan = mirrors["east-north"].plan()
    assert [row.topic for row in plan.topics] == [topic_name]
    (why,) = [each.why for each in plan.excluded if each.topic == f"west.{topic_name}"]
    assert why == "by its name it was copied from cluster west: topics.originals_only leaves out copies"
    assert copied(mirrors) == {
        **{name: {topic_name: 0} for name in ("east-west", "west-east")},
        **{f"{a}-{b}": {topic_name: 30 if a == "north" else 40} for a, b in ways},
    }
    assert {count for topics in copied(mirrors).values() for count in topics.values()} == {0}
    assert read_by_regex(trio["west"], f".*{topic_name}", 30, group=topic_name) == expected(own), "the same group goes on"
    assert read_by_regex(trio["north"], f".*{topic_name}", 110, group=topic_name) == expected(*numbers.values(), own)
    verified(mirrors)


def test_by_the_ledger_a_copy_under_its_own_name_is_no_original(trio: Trio, tmp_path: Path, topic_name: str) -> None:
    mirrors = mirrors_of(
        tmp_path, trio, flow("east", "west", topic_name, naming="identity"),
        flow("west", "north", f"{topic_name}.*", topics={"originals_only": True}),
    )  # fmt: skip
    fill(trio, topic_name, 20, "east")
    fill(trio, f"{topic_name}-own", 10, "west")
    copied(mirrors, "east-west")
    plan = mirrors["west-north"].plan()
    assert [row.topic for row in plan.topics] == [f"{topic_name}-own"]
    assert [each.why for each in plan.excluded if each.topic == topic_name] == [
        "mirror east-west wrote it: topics.originals_only leaves out copies"
    ]
    assert copied(mirrors, "west-north") == {"west-north": {f"{topic_name}-own": 10}}


def test_hub_and_spoke(trio: Trio, tmp_path: Path, topic_name: str) -> None:
    every = rf"(.*\.)?{topic_name}"
    up = [flow("east", "north", topic_name), flow("west", "north", topic_name)]
    mirrors = mirrors_of(tmp_path, trio, *up, flow("north", "east", every), flow("north", "west", every))
    numbers = fill(trio, topic_name, 30)
    assert copied(mirrors) == {
        "east-north": {topic_name: 30},
        "west-north": {topic_name: 30},
        "north-east": {topic_name: 30, f"west.{topic_name}": 30},
        "north-west": {topic_name: 30, f"east.{topic_name}": 30},
    }
    assert {count for topics in copied(mirrors).values() for count in topics.values()} == {0}
    assert names(trio, "east", topic_name) == {topic_name, f"north.{topic_name}", f"north.west.{topic_name}"}
    assert names(trio, "north", topic_name) == {topic_name, f"east.{topic_name}", f"west.{topic_name}"}
    for alias in trio:
        assert read_by_regex(trio[alias], f".*{topic_name}", 90, group=topic_name) == expected(*numbers.values())
    verified(mirrors)


def test_one_cluster_dies_and_the_other_mirrors_go_on(trio: Trio, tmp_path: Path, topic_name: str) -> None:
    ways = [("east", "west"), ("west", "east"), ("east", "north"), ("north", "east")]
    mirrors = mirrors_of(tmp_path, trio, *(flow(*way, topic_name) for way in ways))
    fill(trio, topic_name, 20)
    copied(mirrors)

    def position(name: str, *, staged: bool = False) -> int:
        return sum(p.staged if staged else p.position for t in mirrors[name].lag().topics for p in t.partitions)

    with contextlib.ExitStack() as runs:
        for mirror in mirrors.values():
            runs.enter_context(running(mirror))
        fill(trio, topic_name, 10, start=50_000, create=False)
        wait_until(lambda: all(position(name) == 30 for name in mirrors), 60, "all four to run")
        trio["north"].kill()
        try:
            fill(trio, topic_name, 50, "east", "west", start=100_000, create=False)
            for name in ("east-west", "west-east"):
                wait_until(lambda name=name: position(name) == 80, 30, f"{name} to go on")  # type: ignore[misc]
            wait_until(lambda: position("east-north", staged=True) == 80, 30, "east-north to go on reading")
            assert position("east-north") == 30
        finally:
            trio["north"].start()
        fill(trio, topic_name, 10, "north", start=200_000, create=False)
        wait_until(lambda: position("east-north") == 80, 60, "north to get what was staged")
        wait_until(lambda: position("north-east") == 40, 60, "east to get what north has again")
    verified(mirrors)


def test_active_passive_with_failover_and_failback(trio: Trio, tmp_path: Path, topic_name: str) -> None:
    east, west = trio["east"], trio["west"]
    groups = {"include": [f"{topic_name}.*"], "interval": "1s"}
    mirrors = mirrors_of(
        tmp_path, trio, flow("east", "west", topic_name, groups=groups), flow("west", "east", topic_name, reverse_of="east-west"),
        flow("west", "north", rf"(.*\.)?{topic_name}"),
    )  # fmt: skip
    forth, back = mirrors["east-west"], mirrors["west-east"]
    numbers = fill(trio, topic_name, 40, "east")["east"]
    copied(mirrors, "east-west")
    assert read_by_regex(east, rf"([a-z]+\.)?{topic_name}", 40, group=topic_name) == expected(numbers)
    produce(east.bootstrap_servers, topic_name, 6, partitions=2, start=500)
    assert forth.failover(FailoverOptions()).mode == "planned"
    own = fill(trio, topic_name, 20, "west", start=1000)["west"]
    read = read_by_regex(west, rf"([a-z]+\.)?{topic_name}", 26, group=topic_name)
    assert read == expected(range(500, 506), own), "the group goes on where it stopped, with the new topic beside it"
    assert copied(mirrors, "west-north") == {"west-north": {topic_name: 20, f"east.{topic_name}": 46}}
    assert back.run(once=True).records == 0
    assert forth.failback().state == "open"
    assert copied(mirrors, "west-east") == {"west-east": {topic_name: 20}}
    verified(mirrors)


def test_several_sources_and_an_application_write_one_aggregate_topic(trio: Trio, tmp_path: Path, topic_name: str) -> None:
    west, every = trio["west"].bootstrap_servers, f"all-{topic_name}"
    mirrors = mirrors_of(
        tmp_path, trio, *(flow(source, "west", topic_name, naming="all-{topic}", writers="shared") for source in ("east", "north"))
    )
    numbers = fill(trio, topic_name, 500, "east", "north")
    create_topic(west, every, 2)
    other = OtherWriter(west, every)
    assert [row.blockers for mirror in mirrors.values() for row in mirror.plan().topics] == [(), ()]
    with other.writing(), running(mirrors["east-west"]), running(mirrors["north-west"]):
        for place, alias in enumerate(numbers):
            produce(trio[alias].bootstrap_servers, topic_name, 300, partitions=2, start=10_000 * place + 500)
        wait_until(lambda: all(mirror.lag().lag_records == 0 for mirror in mirrors.values()), 60, "both to be done")
    copied(mirrors)
    wanted = {place: range(10_000 * place, 10_000 * place + 800) for place in range(2)}
    for part in range(2):
        held = [int(value.removeprefix("value-")) for value in ours(mirrors["east-west"], every, part)]
        for place, those in wanted.items():
            mine = [number for number in held if number // 10_000 == place]
            assert mine == [number for number in those if number % 2 == part], "each source's records once, in its order"
    assert other.missing(mirrors["east-west"]) == set()
    verified(mirrors)


@pytest.mark.timeout(RING_SECONDS + 400)
def test_a_ring_by_prefix_has_no_loop_while_all_three_are_written_to(
    trio: Trio, tmp_path: Path, topic_name: str, soon: None
) -> None:
    every = rf"(.*\.)?{topic_name}"
    ring = [("east", "west"), ("west", "north"), ("north", "east")]
    mirrors = mirrors_of(tmp_path, trio, *(flow(*way, every) for way in ring))
    for alias in trio:
        create_topic(trio[alias].bootstrap_servers, topic_name, 2)
    counts = dict.fromkeys(trio, 0)
    with contextlib.ExitStack() as runs:
        for mirror in mirrors.values():
            runs.enter_context(running(mirror))
        write_for(RING_SECONDS, trio, topic_name, counts)
    for _ in ring:  # what was on its way goes on, one step each
        copied(mirrors)
    assert {count for topics in copied(mirrors).values() for count in topics.values()} == {0}
    numbers = {alias: range(10_000_000 * place, 10_000_000 * place + counts[alias]) for place, alias in enumerate(trio)}
    for (before, alias), (first, _) in zip(ring, [ring[-1], *ring[:-1]], strict=True):
        wanted = {topic_name, f"{before}.{topic_name}", f"{before}.{first}.{topic_name}"}
        assert names(trio, alias, topic_name) == wanted
        read = read_by_regex(trio[alias], f".*{topic_name}", sum(counts.values()), group=topic_name)
        assert read == expected(*numbers.values())
    verified(mirrors)


def write_for(seconds: float, trio: Trio, topic: str, counts: dict[str, int]) -> None:
    """Put records into a topic of every cluster until the time is over, and count them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for place, alias in enumerate(trio):
            produce(trio[alias].bootstrap_servers, topic, 20, partitions=2, start=10_000_000 * place + counts[alias])
            counts[alias] += 20
        time.sleep(0.2)

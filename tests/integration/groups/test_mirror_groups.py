"""Consumer groups change clusters: one that stopped on the source reads precisely the next record on the target."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from mirror_pipeline import Mirror
from mirror_pipeline.local.shapes import log
from mirror_pipeline.local.shapes.ground import Ground
from tests.integration.processes import wait_until
from tests.support.groups import carry, commit, committed, consumer, in_step, mirror_of, rows, running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, produce
from tests.support.record_pairs import Content, contents

Stops = dict[str, dict[Place, int]]


@pytest.fixture
def prefix(topic_name: str) -> str:
    """Begins the names of the test's topics and groups: the clusters are shared."""
    return f"{topic_name}-"


def next_records(servers: str, group: str, places: list[Place], seconds: float = 20.0) -> dict[tuple[str, int], Content]:
    """The first record that the group's consumer gets from each partition, from the committed offset on; partitions at the end: none."""
    client = consumer(servers, group, **{"enable.partition.eof": True, "auto.offset.reset": "error"})
    client.assign(places)
    found: dict[tuple[str, int], Content] = {}
    done: set[tuple[str, int]] = set()
    wanted = {(place.topic, place.partition) for place in places}
    while done != wanted:
        message = client.poll(seconds)
        assert message is not None, f"{group}: nothing from {wanted - done}"
        place = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        assert error is None or error.name() == "_PARTITION_EOF", error
        if error is None and place not in done:
            found[place] = (message.key(), message.value())
        done.add(place)
    client.close()
    return found


def stop_at_random(servers: str, group: str, logs: dict[Place, list[tuple[int, Content]]], chance: random.Random) -> dict[Place, int]:
    """A consumer reads some records of every partition from somewhere on, commits its position, and stops."""
    client = consumer(servers, group, **{"enable.partition.eof": True})
    begin = [Place(p.topic, p.partition, chance.randrange(rows[-1][0] + 2)) for p, rows in logs.items()]
    client.assign(begin)
    left = {(p.topic, p.partition): chance.randrange(1, 12) for p in begin}
    at = {(p.topic, p.partition): p.offset for p in begin}
    while any(count > 0 for count in left.values()):
        message = client.poll(20)
        assert message is not None
        place = (str(message.topic()), int(message.partition() or 0))
        if left[place] <= 0:
            continue
        left[place] = 0 if message.error() is not None else left[place] - 1
        at[place] = int(message.offset() or 0) + (0 if message.error() is not None else 1)
    client.commit(offsets=[Place(topic, partition, offset) for (topic, partition), offset in at.items()], asynchronous=False)
    client.close()
    return {Place(topic, partition): offset for (topic, partition), offset in at.items()}


def fill(servers: str, prefix: str) -> dict[Place, list[tuple[int, Content]]]:
    """Plain, transactional and compacted topics."""
    with closing(Ground(servers, prefix, 300)) as ground:
        compacting = log.start_compacted(ground)
        create_topic(servers, f"{prefix}plain", 2)
        produce(servers, f"{prefix}plain", 400, partitions=2)
        made = {f"{prefix}plain": 2, log.transactions(ground).name: 3, compacting.finish().name: 2}
    return {Place(topic, partition): [] for topic, count in made.items() for partition in range(count)}


def assert_next(mirror: Mirror, stops: Stops, logs: dict[Place, list[tuple[int, Content]]]) -> None:
    """Each group, started on the target, reads the record that would have been its next one on the source."""
    wrong = []
    for group, offsets in stops.items():
        copies = [Place(f"east.{place.topic}", place.partition) for place in offsets]
        found = next_records(mirror.flow.target.bootstrap_servers[0], group, copies)
        for place, offset in offsets.items():
            expected = next((content for at, content in logs[place] if at >= offset), None)
            got = found.get((f"east.{place.topic}", place.partition))
            if got != expected:
                wrong.append((group, place, offset, got, expected))
    assert wrong == []


@pytest.mark.long
@pytest.mark.parametrize(("offsets", "count"), [("translated", 200), ("exact", 80)])
def test_groups_that_stop_at_random_positions_read_the_next_record(
    clusters: ClusterPair, tmp_path: Path, prefix: str, offsets: str, count: int
) -> None:
    """Each group stops at a random position of each of seven partitions."""
    east = clusters[0].bootstrap_servers
    logs = fill(east, prefix)
    mirror = mirror_of(clusters, tmp_path, prefix, offsets=offsets)
    for place in logs:
        logs[place] = contents(mirror.flow.source, place.topic, place.partition)
    chance, stops = random.Random(11), Stops()
    with running(mirror):
        for number in range(count):
            stops[f"{prefix}{number}"] = stop_at_random(east, f"{prefix}{number}", logs, chance)
        wait_until(in_step(mirror, set(stops)), 60, "all groups to be in step")
    assert_next(mirror, stops, logs)
    if offsets == "exact":
        assert_next(mirror, same_numbers(mirror, stops), logs)


def same_numbers(mirror: Mirror, stops: Stops) -> Stops:
    """Groups that start on the target with the numbers of the source, without being carried over."""
    target = mirror.flow.target.bootstrap_servers[0]
    for group, offsets in stops.items():
        commit(target, f"{group}-same", {Place(f"east.{place.topic}", place.partition): at for place, at in offsets.items()})
    return {f"{group}-same": offsets for group, offsets in stops.items()}


def test_groups_over_transactions_are_carried_by_a_run_that_ends(clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    with closing(Ground(east, prefix, 300)) as ground:
        topic = log.transactions(ground).name
    mirror = mirror_of(clusters, tmp_path, prefix)
    logs = {Place(topic, partition): contents(mirror.flow.source, topic, partition) for partition in range(3)}
    chance = random.Random(5)
    stops = {f"{prefix}{number}": stop_at_random(east, f"{prefix}{number}", logs, chance) for number in range(8)}
    commit(east, f"{prefix}note", {Place(topic, 0): 7}, metadata="left by the consumer")
    assert mirror.run(once=True).state == "ok"
    report = mirror.groups()
    assert {row.state for row in report.groups} == {"in_step"} and report.notes == ()
    assert_next(mirror, stops, logs)
    assert committed(west, f"{prefix}note")[f"east.{topic}", 0][1] == "left by the consumer"


def test_a_group_follows_forward_and_back_and_waits_for_what_is_not_copied(
    clusters: ClusterPair, tmp_path: Path, prefix: str
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    topic, group = f"{prefix}t", f"{prefix}g"
    create_topic(east, topic)
    produce(east, topic, 100)
    mirror = mirror_of(clusters, tmp_path, prefix)
    mirror.run(once=True)
    produce(east, topic, 50, start=100)

    def go(offset: int, expected: int | None, state: str) -> None:
        commit(east, group, {Place(topic, 0): offset})
        carry(mirror)
        row = rows(mirror, group)[0]
        assert (row.source_offset, row.target_offset, row.state) == (offset, expected, state), row

    go(120, None, "not_copied_yet")  # never beyond the target's end
    go(90, 90, "in_step")
    go(130, 90, "not_copied_yet")
    go(10, 10, "in_step")  # the source's commit went back
    go(150, 10, "not_copied_yet")
    mirror.run(once=True)
    assert rows(mirror, group)[0].target_offset == 150
    assert committed(west, group) == {(f"east.{topic}", 0): (150, "")}


def test_what_a_group_did_on_the_target_is_never_overwritten(clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    topic, moved, both, active = f"{prefix}t", f"{prefix}moved", f"{prefix}both", f"{prefix}active"
    create_topic(east, topic)
    produce(east, topic, 100)
    for group in (moved, both, active):
        commit(east, group, {Place(topic, 0): 20})
    mirror = mirror_of(clusters, tmp_path, prefix)
    mirror.run(once=True)
    copy = f"east.{topic}"
    commit(west, moved, {Place(copy, 0): 33})
    commit(west, both, {Place(copy, 0): 44})
    commit(east, both, {Place(topic, 0): 50})
    member = consumer(west, active)
    member.subscribe([copy])
    wait_until(lambda: member.poll(0.5) is not None, 60, "the group's member on the target to join")
    commit(east, active, {Place(topic, 0): 60})
    carry(mirror)
    found = {group: rows(mirror, group)[0] for group in (moved, both, active)}
    assert {group: (row.state, row.target_offset) for group, row in found.items()} == {
        moved: ("moved", 33), both: ("both_sides", 44), active: ("active_on_target", 20),
    }  # fmt: skip
    assert "has members on the target" in found[active].why
    member.close()
    carry(mirror)
    assert rows(mirror, active)[0].target_offset == 60
    admin = AdminClient({"bootstrap.servers": west})
    admin.delete_consumer_groups([both])[both].result(15)
    carry(mirror)
    assert rows(mirror, both)[0].target_offset == 50


def test_a_pattern_that_matches_no_group_is_said(clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    east = clusters[0].bootstrap_servers
    create_topic(east, f"{prefix}t")
    produce(east, f"{prefix}t", 5)
    mirror = mirror_of(clusters, tmp_path, prefix, groups={"include": [f"{prefix}no-such"], "interval": "1s"})
    mirror.run(once=True)
    (note,) = mirror.groups().notes
    assert note.startswith(f"groups.include: '{prefix}no-such' matches none of the ")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_of_both_protocols_change_clusters(clusters: ClusterPair, tmp_path: Path, prefix: str, protocol: str) -> None:
    """A member reads, commits and leaves on the source; a member joins on the target and continues."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    topic, group = f"{prefix}t", f"{prefix}g"
    create_topic(east, topic)
    produce(east, topic, 100)
    reader = consumer(east, group, **{"group.protocol": protocol})
    reader.subscribe([topic])
    read = 0
    while read < 37:
        message = reader.poll(30)
        assert message is not None and message.error() is None
        read += 1
        reader.commit(message=message, asynchronous=False)
    reader.close()
    mirror = mirror_of(clusters, tmp_path, prefix)
    mirror.run(once=True)
    assert rows(mirror, group)[0].state == "in_step"
    reader = consumer(west, group, **{"group.protocol": protocol})
    reader.subscribe([f"east.{topic}"])
    message = reader.poll(60)
    assert message is not None and (message.error(), message.key()) == (None, b"key-37")
    reader.close()

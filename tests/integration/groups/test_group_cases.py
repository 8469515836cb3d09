"""The cases of MirrorMaker 2's own tests of offsets and groups, held to exact offsets; and rounds that are killed.

Where the mechanism differs the case is adapted: there is no topic of checkpoints to look into, so the target's committed offsets are
compared. The table of all cases is in test_mm2_cases.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place

from mirror_pipeline.buffer.place.place import find_lanes
from mirror_pipeline.features.groups.group_offsets import GroupOffsets
from tests.integration.processes import start_mirror
from tests.integration.worlds import World
from tests.support.groups import IN_PROCESS, carry, commit, committed, consumer, rows
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, write_config


@pytest.fixture
def prefix(topic_name: str) -> str:
    return f"{topic_name}-"


def read(servers: str, group: str, topic: str, count: int) -> int:
    """A member reads ``count`` records, commits and leaves; how many it got before the partitions ended."""
    client = consumer(servers, group, **{"enable.partition.eof": True})
    client.subscribe([topic])
    got, ended = 0, 0
    while got < count and ended < 10:
        message = client.poll(30)
        assert message is not None
        if message.error() is None:
            got += 1
        else:
            ended += 1
    if got:
        client.commit(asynchronous=False)
    client.close()
    return got


def test_a_group_is_carried_exactly_and_reads_nothing_again(world: World, tmp_path: Path, prefix: str) -> None:
    """A3, A4, A8: one way, with a second topic made later, over two lanes, and restarted between: the target's group reads what is new."""
    first, second, group = f"{prefix}1", f"{prefix}2", f"{prefix}g"
    mirror = world.mirror(tmp_path, prefix, lanes=2)
    for topic in (first, second):
        world.create(topic, 10)
        world.produce(topic, 100, partitions=10)
        assert read(world.east, group, topic, 100) == 100
        mirror.run(once=True)  # each time a new run: MirrorMaker's case restarts its connectors
        copies = {(world.copy(topic), number): 10 for number in range(10)}
        assert copies.items() <= world.target_offsets(group).items()
        assert read(world.west, group, world.copy(topic), 1) == 0
    world.produce(first, 100, partitions=10, start=100)
    mirror.run(once=True)
    assert read(world.west, group, world.copy(first), 200) == 100


def test_empty_partitions_and_topics_are_carried_at_their_end(world: World, tmp_path: Path, prefix: str) -> None:
    """A2, A7. MirrorMaker leaves a group of an empty topic out: no record means no translation. Offset 0 of an empty copy is exact."""
    topic, empty, group = f"{prefix}t", f"{prefix}empty", f"{prefix}g"
    world.create(topic, 10)
    world.create(empty)
    world.produce(topic, 90, partitions=9)
    ends = {number: 10 if number < 9 else 0 for number in range(10)}
    world.commit(group, {Place(topic, n): world.at(end) if end else 0 for n, end in ends.items()} | {Place(empty, 0): 0})
    mirror = world.mirror(tmp_path, prefix)
    mirror.run(once=True)
    expected = {(world.copy(topic), n): end for n, end in ends.items()} | {(world.copy(empty), 0): 0}
    assert world.target_offsets(group) == expected
    world.produce(empty, 10)
    world.commit(group, {Place(empty, 0): world.at(10)})
    mirror.run(once=True)
    assert world.target_offsets(group)[world.copy(empty), 0] == 10


def test_a_group_far_behind_the_copy_and_one_that_rewinds(world: World, tmp_path: Path, prefix: str) -> None:
    """A9."""
    topic, group = f"{prefix}t", f"{prefix}g"
    world.create(topic, 10)
    world.produce(topic, 10_000, partitions=10)
    mirror = world.mirror(tmp_path, prefix)
    mirror.run(once=True)
    for offset in (900, 100, 901):
        world.commit(group, {Place(topic, number): world.at(offset) for number in range(10)})
        report = mirror.carry_groups()
        assert {(row.state, row.behind) for row in report.groups} == {("in_step", 0)}
        assert world.target_offsets(group) == {(world.copy(topic), number): offset for number in range(10)}


def test_there_and_back_never_goes_backwards(world: World, tmp_path: Path, prefix: str) -> None:
    """A1b: the group fails over, continues on the target, and its offsets there translate back to where the source's reader continues."""
    topic, group = f"{prefix}t", f"{prefix}g"
    world.create(topic)
    world.produce(topic, 100)
    assert read(world.east, group, topic, 40) == 40
    mirror = world.mirror(tmp_path, prefix)
    mirror.run(once=True)
    assert read(world.west, group, world.copy(topic), 25) == 25
    mirror.run(once=True)
    assert rows(mirror, group)[0].state == "moved"
    (back,) = mirror.translate(topic, offset=world.target_offsets(group)[world.copy(topic), 0], reverse=True)
    assert back.source_offset == world.at(65)


def test_a_reset_on_the_target_to_where_the_group_was_before_stays(world: World, tmp_path: Path, prefix: str) -> None:
    """To the offset that the mirror wrote before its last one, which is the likely one."""
    topic, group = f"{prefix}t", f"{prefix}g"
    world.create(topic)
    world.produce(topic, 100)
    mirror = world.mirror(tmp_path, prefix)
    mirror.run(once=True)
    for offset in (20, 30):
        world.commit(group, {Place(topic, 0): world.at(offset)})
        carry(mirror)
    commit(world.west, group, {Place(world.copy(topic), 0): 20})
    for state, offset in (("moved", 30), ("both_sides", 40), ("both_sides", 50)):
        world.commit(group, {Place(topic, 0): world.at(offset)})
        carry(mirror)
        assert (rows(mirror, group)[0].state, world.target_offsets(group)[world.copy(topic), 0]) == (state, 20)


@pytest.mark.parametrize("point", ["groups.named", "groups.written"])
def test_a_killed_round_is_done_again(
    clusters: ClusterPair, tmp_path: Path, prefix: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    topic, group = f"{prefix}t", f"{prefix}g"
    create_topic(east, topic)
    produce(east, topic, 100)
    make_mirror(tmp_path, east, west, [f"{prefix}.*"], engine=IN_PROCESS).run(once=True)
    settings = {"engine": IN_PROCESS, "groups": {"include": [f"{prefix}.*"], "interval": "1s"}}
    config = write_config(tmp_path, east, west, [f"{prefix}.*"], **settings)
    mirror = make_mirror(tmp_path, east, west, [f"{prefix}.*"], **settings)
    held = None
    for offset in (30, 70, 20):
        commit(east, group, {Place(topic, 0): offset})
        monkeypatch.setenv("MIRROR_CRASH_AT", point)
        process = start_mirror(config, "run", "--once")
        assert process.wait(120) == -signal.SIGKILL
        monkeypatch.delenv("MIRROR_CRASH_AT")
        held = offset if point == "groups.written" else held
        (store,) = (found for found in find_lanes(mirror.flow.config.buffer, "m") if found.lane == "groups")
        (named,) = GroupOffsets(store).read().values()
        assert (named.source_offset, named.target_offset) == (offset, offset)  # known before it is written
        row = rows(mirror, group)[0]
        assert (row.target_offset, row.state) == (held, "in_step" if held == offset else "pending")
        carry(mirror)
        assert {place: found for place, (found, _) in committed(west, group).items()} == {(f"east.{topic}", 0): offset}
        held = offset

"""MirrorMaker 2's own integration tests as acceptance cases of this tool.

Ours run under the set-ups of ``worlds.py`` where theirs are rerun under B1 (identity), B4 (transactional producers), B5 (TLS only) and B6
(SASL and an authorizer); B2 (exactly once) is every one of ours, because there is no other mode.

| case | what it is about | test |
|---|---|---|
| A1, A1c | both directions; topics made later | `test_both_directions_and_topics_made_later` |
| A1b | groups fail over and back | `test_group_cases.py`: `test_there_and_back_never_goes_backwards` |
| A1d | excluded settings | `test_an_excluded_setting_is_not_copied` |
| A2, A7 | empty partitions and topics | `test_group_cases.py`: `test_empty_partitions_and_topics_are_carried_at_their_end` |
| A3, A4, A8 | groups one way, exactly, and after a restart | `test_group_cases.py`: `test_a_group_is_carried_exactly_and_reads_nothing_again` |
| A5, A6 | no topic for the offset map on either side | `test_no_topic_but_the_copy_appears_on_either_side` |
| A9 | a group far behind, and one that rewinds | `test_group_cases.py`: `test_a_group_far_behind_the_copy_and_one_that_rewinds` |
| A10 to A12 | settings that change on one side | `test_topic_settings.py` |
| A13 | start at the end | `test_topic_life.py` |
| B1, B4, B5, B6 | A1 to A9 under other set-ups | the `world` of each test named above |
| B2 | exactly once | `test_both_directions_and_topics_made_later` counts; kills are in `test_mirror_kills.py` |
| B3 | positions set back or lost | `test_what_was_copied_is_copied_again_into_another_topic_only` |
| C1 | every topic is made with the documented rights | `test_the_printed_rights_suffice_for_topics_and_groups` |
| C2 | partitions that are added | `test_topics_admin.py` |
| C3 | compact policy | `test_both_directions_and_topics_made_later` |
| C4 | ACLs | `test_topic_acls.py` |
| D1, D2 | one process with a file only | `test_one_process_copies_a_topic_made_after_its_start` |
| D3 | three processes, a setting changed one after the other | `test_three_processes_restarted_one_after_the_other` |

None of these needs equal offsets on both sides: their counts and translations hold with offsets that differ.
"""  # noqa: E501 - rows of a table cannot be broken

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.errors import ConfigError
from tests.integration.processes import start_mirror, wait_until
from tests.integration.secured import Secured, commands, retried
from tests.integration.worlds import World
from tests.integration.worlds import world as make_world
from tests.support.groups import IN_PROCESS, in_step, running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce, write_config

pytestmark = pytest.mark.long


@pytest.fixture
def prefix(topic_name: str) -> str:
    return f"{topic_name}-"


def counted(servers: str, topic: str, isolation: str = "read_committed") -> int:
    """How many records a consumer of the whole topic gets."""
    client = Consumer(
        {"bootstrap.servers": servers, "group.id": "counts", "enable.partition.eof": True, "enable.auto.commit": False,
         "isolation.level": isolation, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    parts = list(client.list_topics(topic, timeout=15).topics[topic].partitions)
    client.assign([Place(topic, number, 0) for number in parts])
    count, left = 0, set(parts)
    while left:
        message = client.poll(20)
        assert message is not None, f"{topic}: nothing from {left}"
        if message.error() is None:
            count += 1
        else:
            left.discard(message.partition())
    client.close()
    return count


def topics(servers: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=15).topics)


def setting(servers: str, topic: str, *keys: str) -> tuple[str, ...]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": servers})
    found = admin.describe_configs([resource])[resource].result(15)
    return tuple(found[key].value for key in keys)


def copied(mirror: Mirror, topic: str) -> bool:
    """Whether a topic is known to the mirror and all of it is on the target."""
    rows = {row.topic: row for row in mirror.lag().topics}
    return topic in rows and bool(rows[topic].partitions) and rows[topic].lag_records == 0


def test_both_directions_and_topics_made_later(world: World, tmp_path: Path, prefix: str) -> None:
    """A1, A1c, B2, C3. There are no heartbeats and checkpoints to look into: lag and the groups' table say what they would.

    Under identity one way only, as MirrorMaker's own rerun, and nothing flows back.
    """
    topic, later, group = f"{prefix}1", f"{prefix}2", f"{prefix}g"
    world.create(topic, 10, cleanup__policy="compact")
    world.produce(topic, 100, partitions=10)
    world.commit(group, {Place(topic, number): world.at(10) for number in range(10)})
    forward = world.mirror(tmp_path / "forward", prefix)
    before = topics(world.east)
    both = world.name == "prefix"
    if both:
        create_topic(world.west, topic, 10)
        produce(world.west, topic, 100, partitions=10)
        back = make_mirror(tmp_path / "back", world.west, world.east, [f"{prefix}.*"], naming="west.{topic}", engine=IN_PROCESS)
    with running(forward):
        wait_until(lambda: copied(forward, topic), 60, "the copy")
        wait_until(in_step(forward, {group}), 60, "the group")
        if both:
            with running(back):
                wait_until(lambda: copied(back, topic), 60, "the copy back")
        world.create(later, 1)
        world.produce(later, 10)
        wait_until(lambda: copied(forward, later), 90, "the topic made later")
    copy = world.copy(topic)
    assert [counted(world.west, copy, isolation) for isolation in ("read_committed", "read_uncommitted")] == [100, 100]
    assert counted(world.west, world.copy(later)) == 10
    assert setting(world.west, copy, "cleanup.policy") == ("compact",)
    assert {(row.topic, row.partition, row.target_offset) for row in forward.groups().groups} == {(topic, n, 10) for n in range(10)}
    if both:
        assert counted(world.west, topic) + counted(world.west, copy) == 200
        assert counted(world.east, topic) + counted(world.east, f"west.{topic}") == 200
    ours = {name for name in topics(world.east) - before if prefix in name}
    assert ours == {later} | ({f"west.{topic}"} if both else set()), "nothing else flows back"


def test_an_excluded_setting_is_not_copied(world: World, tmp_path: Path, prefix: str) -> None:
    """A1d. MirrorMaker leaves delete.retention.ms out by itself; here it is copied unless `topics.configs.exclude` names it."""
    topic = f"{prefix}t"
    world.create(topic, 1, retention__bytes="1000", delete__retention__ms="2000")
    configs = {"exclude": [r"delete\.retention\.ms"]}
    mirror = world.mirror(tmp_path, prefix, topics={"include": [f"{prefix}.*"], "configs": configs})
    mirror.run(once=True)
    assert setting(world.west, world.copy(topic), "retention.bytes", "delete.retention.ms") == ("1000", "86400000")


@pytest.mark.parametrize("carried", [False, True], ids=["without groups", "with groups"])
def test_no_topic_but_the_copy_appears_on_either_side(world: World, tmp_path: Path, prefix: str, carried: bool) -> None:
    """A5, A6. MirrorMaker keeps its offset map in a topic of the source or of the target; here the buffer has it, always."""
    topic, group = f"{prefix}t", f"{prefix}g"
    world.create(topic, 10)
    world.produce(topic, 100, partitions=10)
    world.commit(group, {Place(topic, 3): world.at(4)})
    before = {servers: topics(servers) for servers in (world.east, world.west)}
    mirror = world.mirror(tmp_path, prefix, **({} if carried else {"groups": {"include": []}}))
    mirror.run(once=True)
    assert counted(world.west, world.copy(topic)) == 100
    # The clusters are shared: other tests' topics come and go. Kafka itself keeps committed offsets in a topic of its own.
    new = {servers: {name for name in topics(servers) - known if prefix in name} for servers, known in before.items()}
    assert new == {world.east: set(), world.west: {world.copy(topic)}}
    assert world.target_offsets(group) == ({(world.copy(topic), 3): 4} if carried else {})
    (found,) = mirror.translate(topic, partition=3, offset=world.at(4))
    assert found.target_offset == 4, "the map is there in either case"


def test_what_was_copied_is_copied_again_into_another_topic_only(clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    """B3. MirrorMaker's stored offsets may be set to 0 or removed, and the topic is then copied a second time into the same target topic.

    Here a position follows from what is on the target, so it cannot be set: records are copied once more by `backfill --into`, and a
    mirror that has lost its buffer refuses the filled target topic.
    """
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    topic, again = f"{prefix}t", f"{prefix}again"
    create_topic(east, topic, 10)
    produce(east, topic, 100, partitions=10)
    mirror = make_mirror(tmp_path, east, west, [topic], engine=IN_PROCESS)
    mirror.run(once=True)
    produce(east, topic, 90, partitions=10, start=100)
    report = mirror.backfill(topic, 0, int(time.time() * 1000), into=again)
    assert (report.run.state, counted(west, again)) == ("ok", 190)
    mirror.run(once=True)
    assert counted(west, f"east.{topic}") == 190
    shutil.rmtree(tmp_path / "buffer")
    produce(east, topic, 10, partitions=10, start=190)
    lost = make_mirror(tmp_path, east, west, [topic], engine=IN_PROCESS).run(once=True)
    assert {(row.state, row.code) for row in lost.topics} == {("halted", "target_filled")}
    assert counted(west, f"east.{topic}") == 190


def test_the_printed_rights_suffice_for_topics_and_groups(secured_clusters: Secured, tmp_path: Path, prefix: str) -> None:
    """C1. There is no plug-in for administration to watch: with the rights that `mirror check` prints, and no others, all is made."""
    place = make_world("tls", None, secured_clusters)  # its clients; the mirror itself comes in by SASL
    topic, group = f"{prefix}t", f"{prefix}g"
    place.create(topic, 2)
    place.produce(topic, 100, partitions=2)
    place.commit(group, {Place(topic, number): 20 for number in range(2)})
    listeners = {alias: secured_clusters.clusters[alias].listener("SECURE") for alias in ("east", "west")}
    reached = {alias: {"bootstrap_servers": found, "security": secured_clusters.security()} for alias, found in listeners.items()}
    groups = {"include": [f"{prefix}g.*"], "interval": "1s"}
    mirror = make_mirror(tmp_path, "", "", [f"{prefix}t.*"], clusters=reached, engine=IN_PROCESS, groups=groups)
    given: set[tuple[str, str, str]] = set()
    for _ in range(6):
        asked = printed(mirror)
        if not asked:
            break
        new = set().union(*(secured_clusters.grant(command) for command in asked))
        assert new - given, f"nothing more to grant, and still asked for: {asked}"
        given |= new
        retried(lambda asked=asked: printed(mirror) != asked)
    assert ("east", "Describe", f"{prefix}g") in given and ("west", "Read", f"{prefix}g") in given
    assert all(finding.ok for finding in mirror.check())
    assert mirror.run(once=True).state == "ok"
    assert counted(place.west, place.copy(topic)) == 100
    assert place.target_offsets(group) == {(place.copy(topic), number): 20 for number in range(2)}


def printed(mirror: Mirror) -> list[str]:
    return commands("\n".join(f"{finding.detail}\n{finding.hint}" for finding in mirror.check()))


def test_one_process_copies_a_topic_made_after_its_start(clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    """D1, D2. One process, a file only. A mirror that selects no topic at all ends with an error, so one is there at the start."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    first, later = f"{prefix}1", f"{prefix}2"
    create_topic(east, first)
    config = write_config(tmp_path, east, west, [f"{prefix}.*"], engine=IN_PROCESS)
    process = start_mirror(config, "run")
    try:
        wait_until(lambda: f"east.{first}" in topics(west), 60, "the mirror to start")
        create_topic(east, later)
        produce(east, later, 10)
        wait_until(lambda: f"east.{later}" in topics(west) and counted(west, f"east.{later}") == 10, 60, "the topic made later")
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def lane_process(folder: Path, number: int) -> subprocess.Popen[str]:
    return start_mirror(folder / "mirror.yaml", "run", "--lane", str(number))


def ends(servers: str, names: Iterable[str]) -> list[int]:
    """Records in the copies of topics of one partition; -1 where there is none yet."""
    client, there = Consumer({"bootstrap.servers": servers, "group.id": "counts"}), topics(servers)
    copies = [f"east.{name}" for name in names]
    found = [client.get_watermark_offsets(Place(copy, 0), timeout=15)[1] if copy in there else -1 for copy in copies]
    client.close()
    return found


def test_three_processes_restarted_one_after_the_other(clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    """D3. MirrorMaker's nodes elect a leader that hands tasks out; here each process runs a lane, and a topic's lane follows from its name.

    A setting is changed in the file and taken up by each process as it is restarted. Characters that are special in URLs are refused
    in an alias: it becomes part of topic names and folders.
    """
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    names = [f"{prefix}{number}" for number in range(6)]
    for name in names:
        create_topic(east, name)
        produce(east, name, 50)
    write_config(tmp_path, east, west, [f"{prefix}.*"], engine=IN_PROCESS, lanes=3)
    processes = [lane_process(tmp_path, number) for number in range(3)]
    try:
        wait_until(lambda: ends(west, names) == [50] * 6, 90, "the first records")
        write_config(tmp_path, east, west, [f"{prefix}.*"], engine={**IN_PROCESS, "poll_interval": "1s"}, lanes=3)
        for number in range(3):
            processes[number].send_signal(signal.SIGTERM)
            assert processes[number].wait(60) == 0
            for name in names:
                produce(east, name, 10, start=50 + 10 * number)
            processes[number] = lane_process(tmp_path, number)
        late = f"{prefix}late"
        create_topic(east, late)
        produce(east, late, 80)
        wait_until(lambda: ends(west, [*names, late]) == [80] * 7, 90, "the rest")
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    mirror = Mirror(load_config(tmp_path / "mirror.yaml"), "m")
    assert_identical(mirror, [*names, late])
    special = tmp_path / "special.yaml"
    special.write_text((tmp_path / "mirror.yaml").read_text().replace('"west"', '"we.st/?&"'))
    with pytest.raises(ConfigError, match="cluster alias"):
        load_config(special)

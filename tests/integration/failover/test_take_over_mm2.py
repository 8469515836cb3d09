"""A real MirrorMaker 2 has copied the first half of topics and its groups; this tool takes over and copies the rest."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.local.shapes import log
from mirror_pipeline.local.shapes.ground import Ground, local_settings
from mirror_pipeline.model import TopicPartition
from tests.integration.processes import wait_until
from tests.support.groups import commit, committed
from tests.support.kafka_source import ClusterPair
from tests.support.mirrormaker import MirrorMaker2
from tests.support.mirrors import create_topic, produce

pytestmark = pytest.mark.long

HALF = 3000
# Stores positions, translates groups and notices new topics each second; the defaults are one and ten minutes.
QUICK = {
    "refresh.topics.interval.seconds": "1", "refresh.groups.interval.seconds": "1", "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true", "sync.group.offsets.interval.seconds": "1", "sync.topic.acls.enabled": "false",
    "{b}.offset.flush.interval.ms": "1000", "{b}.scheduled.rebalance.max.delay.ms": "1000",
    "{a}.consumer.isolation.level": "read_committed", "{b}.producer.max.request.size": "16777216",
}  # fmt: skip
START_SECONDS = 300.0  # a JVM with Connect, on a machine that runs other tests


def records(servers: str, topic: str) -> int:
    """How many offsets a topic's partitions hold, 0 while there is no such topic."""
    with WireClient(local_settings(servers)) as client:
        found = client.metadata([topic]).topics[topic]
        parts = [TopicPartition(topic, number) for number in found.partitions]
        return sum(end - start for start, end in log_range(client, parts, isolation=0).values()) if not found.error else 0


def maker(clusters: ClusterPair, folder: Path, topics: str, **extra: str) -> MirrorMaker2:
    tag = uuid.uuid4().hex[:6]
    servers = clusters[0].bootstrap_servers, clusters[1].bootstrap_servers
    return MirrorMaker2(folder, (f"a{tag}", f"b{tag}"), servers, topics, **{**QUICK, **extra})


def imported(mm2: MirrorMaker2, folder: Path, capsys: pytest.CaptureFixture[str]) -> Mirror:
    """The mirror that ``mirror import-mm2`` makes of its property file."""
    config = folder / "mirror.yaml"
    assert main(["import-mm2", str(mm2.file), "-o", str(config), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mirrors"] == ["-to-".join(mm2.aliases)]
    return Mirror(load_config(config), report["mirrors"][0])


def compare(mm2: MirrorMaker2, mirror: Mirror, topics: list[str]) -> int:
    """Exit code of a comparison that knows nothing of the mirror."""
    a, b = mm2.aliases
    pairs = [word for topic in topics for word in ("--topic", f"{topic}={a}.{topic}")]
    return main(["-c", str(mirror.flow.config.path), "verify", "--external", "--source", a, "--target", b, *pairs])


def test_what_mirrormaker_has_copied_is_adopted_and_continued(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain and transactional topics; refused while it runs; group offsets that it wrote are kept, or moved on with the group."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    plain = f"{topic_name}-plain"
    create_topic(east, plain, 3)
    produce(east, plain, HALF, partitions=3)
    with closing(Ground(east, f"{topic_name}-", 300)) as ground:
        transactional = log.transactions(ground).name
    mover, idle, back = (f"{topic_name}-{name}" for name in ("mover", "idle", "back"))
    for group, offset in ((mover, 700), (idle, 700), (back, 1000)):
        commit(east, group, {Place(plain, part): offset for part in range(3)})
    topics = [plain, transactional]
    with maker(clusters, tmp_path / "mm2", f"{topic_name}-.*", groups=f"{topic_name}-.*") as mm2:
        alias = mm2.aliases[0]
        wait_until(lambda: records(west, f"{alias}.{plain}") == HALF, START_SECONDS, "MirrorMaker to copy")
        for group in (mover, idle, back):
            wait_until(lambda: len(committed(west, group)) == 3, START_SECONDS, "MirrorMaker to translate groups")  # noqa: B023
        mirror = imported(mm2, tmp_path, capsys)
        with pytest.raises(ProblemFound, match=f"MirrorMaker still runs: its Connect group {alias}-mm2"):
            mirror.adopt(plain, mm2_alias=alias)
        mm2.stop()
        written, kept = committed(west, idle), committed(west, back)

    produce(east, plain, HALF, partitions=3, start=HALF)
    commit(east, mover, {Place(plain, part): 1500 for part in range(3)})
    commit(east, back, {Place(plain, part): 100 for part in range(3)})
    assert {place: mirror.mm2_positions(alias)[TopicPartition(plain, place)] for place in range(3)} == dict.fromkeys(range(3), HALF // 3)
    adopted = mirror.adopt(plain, mm2_alias=alias)
    assert adopted.state == "adopted" and adopted.notes == ()
    assert main(["-c", str(mirror.flow.config.path), "adopt", "-t", transactional, "--from-mm2", alias]) == 0
    mirror.run(once=True)
    mirror.carry_groups()

    assert compare(mm2, mirror, topics) == 0
    assert records(west, f"{alias}.{plain}") == 2 * HALF
    report = mirror.verify()
    assert report.ok, report
    # MirrorMaker translates to an earlier offset at best: what it wrote is moved on to the exact one, and never back.
    for group, source_offset in ((mover, 1500), (idle, 700)):
        assert {offset for offset, _ in committed(west, group).values()} == {source_offset}
    assert all(offset <= 700 for offset, _ in written.values())
    assert min(offset for offset, _ in kept.values()) > 100
    assert committed(west, back) == kept
    assert {(row.group, row.state) for row in mirror.groups().groups} == {(mover, "in_step"), (idle, "in_step"), (back, "ahead")}


def test_a_copy_with_mirrormakers_duplicates_is_reported_and_not_adopted(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is killed before it has stored a position: what it sent is adoptable until it starts again and sends it a second time."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 1)
    produce(east, topic_name, HALF)
    never = {"{b}.offset.flush.interval.ms": "3600000", "{b}.session.timeout.ms": "6000", "{b}.heartbeat.interval.ms": "2000"}
    with maker(clusters, tmp_path / "mm2", topic_name, **never) as mm2:
        alias = mm2.aliases[0]
        target = f"{alias}.{topic_name}"
        wait_until(lambda: records(west, target) == HALF, START_SECONDS, "MirrorMaker to copy")
        mm2.kill()
        mirror = imported(mm2, tmp_path, capsys)

        def gone() -> bool:
            try:
                mirror.adopt(topic_name, mm2_alias=alias, dry_run=True)
            except ProblemFound as error:
                assert "MirrorMaker still runs" in error.message, error
                return False
            return True

        wait_until(gone, 90, "the Connect group of the killed process to expire")
        notes = mirror.adopt(topic_name, mm2_alias=alias, dry_run=True).notes
        assert notes[0] == f"{target}[0]: MirrorMaker stored no position and has sent records up to {HALF - 1:,}"

        mm2.start()
        wait_until(lambda: records(west, target) == 2 * HALF, START_SECONDS, "MirrorMaker to copy again")
        mm2.stop()
    with pytest.raises(ProblemFound) as caught:
        mirror.adopt(topic_name, mm2_alias=alias)
    assert f"{target}[0] offset {HALF:,} is a duplicate" in caught.value.message.replace(f"offset {HALF} ", f"offset {HALF:,} ")
    assert compare(mm2, mirror, [topic_name]) == 1
    assert mirror.flow.lane_stores() == [] or mirror.offset_map() == ()

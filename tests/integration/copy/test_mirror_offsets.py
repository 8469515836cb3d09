"""Offsets translate to precisely the right record, both ways; an independent reading of both logs says which that is."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import UsageError
from mirror_pipeline.local.shapes import log
from mirror_pipeline.local.shapes.ground import Ground
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.translate import maps_of
from tests.support.deleted_topics import recreate
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, trim, write_config
from tests.support.record_pairs import Pairs, pairs

IN_PROCESS = {"inline_bytes": str(2**63 - 1)}
POSITIONS = 10_000


def mirror_of(clusters: ClusterPair, folder: Path, *topics: str, **settings: object) -> Mirror:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    return make_mirror(folder, east, west, topics, engine=IN_PROCESS, **settings)


def oracle(mirror: Mirror, topic: str, partition: int = 0) -> Pairs:
    return pairs(mirror.flow.source, mirror.flow.target, topic, f"east.{topic}", partition)


def compare(mirror: Mirror, known: dict[TopicPartition, Pairs], positions: int) -> None:
    """Random positions in and around every log, through the ledger as `mirror offsets translate` reads it."""
    chance = random.Random(7)
    (store,) = mirror.flow.lane_stores()
    maps, places = maps_of(store), list(known)
    wrong = []
    for _ in range(positions):
        place = chance.choice(places)
        own = known[place]
        forward = chance.random() < 0.5
        end = own.source_end if forward else own.target_end
        offset = chance.randrange(end + 4)
        found = maps[place].to_target(offset) if forward else maps[place].to_source(offset)
        expected = None if offset > end else own.to_target(offset) if forward else own.to_source(offset)
        if found.offset != expected:
            wrong.append((place, forward, offset, found, expected))
    assert wrong == []


@pytest.mark.long
def test_ten_thousand_random_positions_are_the_right_records(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """Overlapping transactions with aborts, compaction, a trimmed start; holes at the end of the log too."""
    with closing(Ground(clusters[0].bootstrap_servers, f"{topic_name}-", 300)) as ground:
        compacting = log.start_compacted(ground)
        made = [log.transactions(ground), log.trimmed(ground), compacting.finish()]
    mirror = mirror_of(clusters, tmp_path, f"{topic_name}-.*")
    assert mirror.run(once=True).state == "ok"
    known = {TopicPartition(t.name, n): oracle(mirror, t.name, n) for t in made for n in range(t.partitions)}
    compare(mirror, known, POSITIONS)
    for place, own in known.items():  # the verb itself, which asks the target for its log start
        for offset in (0, own.source_end // 2, own.source_end, own.source_end + 1):
            (answer,) = mirror.translate(place.topic, offset=offset, partition=place.partition)
            assert answer.target_offset == (None if offset > own.source_end else own.to_target(offset))


def test_positions_in_transactions_translate_at_every_offset(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    with closing(Ground(clusters[0].bootstrap_servers, f"{topic_name}-", 300)) as ground:
        topic = log.transactions(ground).name
    mirror = mirror_of(clusters, tmp_path, topic)
    assert mirror.run(once=True).state == "ok"
    (store,) = mirror.flow.lane_stores()
    maps = maps_of(store, [topic])
    for partition in range(3):
        own, found = oracle(mirror, topic, partition), maps[TopicPartition(topic, partition)]
        assert [found.to_target(n).offset for n in range(own.source_end + 1)] == [own.to_target(n) for n in range(own.source_end + 1)]
        assert [found.to_source(n).offset for n in range(own.target_end + 1)] == [own.to_source(n) for n in range(own.target_end + 1)]
        assert found.to_target(own.source_end + 1).offset is None


@pytest.mark.long
def test_every_generation_answers_by_its_own_runs(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    mirror = mirror_of(clusters, tmp_path, topic_name)
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    produce(east, topic_name, 30)
    mirror.run(once=True)
    recreate(east, topic_name)
    produce(east, topic_name, 20, start=1000)
    mirror.run(once=True)
    mirror.resolve(topic_name, "recreated")
    mirror.run(once=True)

    def forward(offset: int, generation: int | None = None) -> tuple[int | None, str, int]:
        (answer,) = mirror.translate(topic_name, offset=offset, generation=generation)
        return answer.target_offset, answer.state, answer.generation

    def back(offset: int) -> tuple[int | None, str, int]:
        (answer,) = mirror.translate(f"east.{topic_name}", offset=offset, reverse=True)
        return answer.source_offset, answer.state, answer.generation

    assert [forward(n) for n in (0, 19, 20, 21)] == [
        (30, "record", 2), (49, "record", 2), (50, "end", 2), (None, "not_there_yet", 2),
    ]  # fmt: skip
    assert [forward(n, 1) for n in (0, 29, 30, 31)] == [(0, "record", 1), (29, "record", 1), (30, "end", 1), (None, "ended", 1)]
    assert [back(n) for n in (0, 29, 30, 49, 50, 51)] == [
        (0, "record", 1), (29, "record", 1), (0, "record", 2), (19, "record", 2), (20, "end", 2), (None, "not_there_yet", 2),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="has no generation 3"):
        mirror.translate(topic_name, offset=0, generation=3)
    recreate(west, f"east.{topic_name}")
    mirror.run(once=True)
    mirror.resolve(topic_name, "target_recreated")
    mirror.run(once=True)
    assert [forward(n) for n in (0, 20)] == [(0, "record", 3), (20, "end", 3)]
    assert back(5) == (5, "record", 3)
    assert forward(5, 1) == (5, "record", 1)  # of a target topic that is gone: its log start is not that of the new one
    assert [(row.generation, row.source_end, row.target_end, row.current) for row in mirror.offset_map(topic_name)] == [
        (1, 30, 30, False), (2, 20, 50, False), (3, 20, 20, True),
    ]  # fmt: skip


def test_times_deleted_records_and_an_unreachable_target(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic_name()
    mirror = mirror_of(clusters, tmp_path, topic)
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic, 2)
    began = int(time.time() * 1000) - 100_000
    produce(east, topic, 100, partitions=2, at=began)
    mirror.run(once=True)
    trim(west, f"east.{topic}", {0: 20})
    config = write_config(tmp_path, east, west, [topic], engine=IN_PROCESS)

    def asked(*words: str) -> list[dict[str, object]]:
        assert main(["offsets", "translate", "-c", str(config), "--topic", topic, *words, "--json"]) == 0
        rows: list[dict[str, object]] = json.loads(capsys.readouterr().out)["offsets"]
        return rows

    (deleted,) = asked("--partition", "0", "--offset", "3")
    assert (deleted["target_offset"], deleted["state"]) == (20, "below_log_start")
    assert deleted["note"] == "3 has been deleted on west; its log starts at 20"
    at = [f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime((began + shift) / 1000))}Z" for shift in (-60_000, 90_000)]
    assert [row["source_offset"] for row in asked("--time", at[0])] == [0, 0]
    assert [(row["source_offset"], row["target_offset"], row["state"]) for row in asked("--time", at[1])] == [(50, 50, "end")] * 2
    assert [row["source_offset"] for row in asked("--time", at[1], "--reverse")] == [50, 50]
    assert main(["offsets", "translate", "-c", str(config), "--topic", topic, "--offset", "3"]) == 2
    assert "an offset of which partition?" in capsys.readouterr().err
    dark = write_config(tmp_path, east, "127.0.0.1:1", [topic], engine=IN_PROCESS)
    assert main(["offsets", "translate", "-c", str(dark), "--topic", topic, "-p", "1", "--offset", "3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["offsets"]
    assert (row["target_offset"], row["note"]) == (3, "cluster west does not answer: its log may start later")

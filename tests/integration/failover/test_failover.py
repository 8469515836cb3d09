"""Failover: topics are handed over to applications on the target, with or without the source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.place import place
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import FIRST_FORMAT
from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import BufferUnusable, LaneBusy
from mirror_pipeline.features.failover.report import FailbackOptions, FailoverOptions
from tests.integration.processes import wait_until
from tests.support.groups import commit, committed, running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, nowhere, produce, values
from tests.support.reverse_pair import IN_PROCESS, pair, states


def test_an_unplanned_failover_promotes_what_was_staged(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    group = f"{topic_name}-g"
    create_topic(east, topic_name)
    produce(east, topic_name, 100)
    groups = {"include": [f"{topic_name}.*"], "interval": "1s"}
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS, groups=groups)
    commit(east, group, {Place(topic_name, 0): 40})
    assert mirror.run(once=True).state == "ok"
    produce(east, topic_name, 20, start=100)
    there, mirror.flow.source = mirror.flow.source, nowhere(mirror.flow.source)
    dry = mirror.failover(FailoverOptions(dry_run=True))
    assert (dry.state, dry.mode, dry.file) == ("ready", "unplanned", "")
    assert not (tmp_path / "buffer/m/failover").exists()

    report = mirror.failover()
    assert (report.state, report.mode, report.number) == ("promoted", "unplanned", 1)
    (topic,) = report.topics
    assert topic.target_topic == f"east.{topic_name}"
    assert [(p.partition, p.source_offset, p.target_offset) for p in topic.partitions] == [(0, 100, 100)]
    assert [(row.group, row.partition, row.offset, row.why) for row in report.groups] == [(group, 0, 40, "")]
    assert committed(west, group)[f"east.{topic_name}", 0][0] == 40
    assert [(m.start, m.end) for m in report.missing] == [(100, None)]
    assert json.loads(Path(report.file).read_text()) == json.loads(json.dumps(report.to_json()))

    mirror.flow.source = there
    assert states(mirror) == {topic_name: "promoted"}
    assert len(values(mirror, f"east.{topic_name}")) == 100
    produce(west, f"east.{topic_name}", 5, start=1000)  # applications write there now
    assert [(row.topic, row.state, row.code, row.lag_records) for row in mirror.lag().topics] == [(topic_name, "promoted", "promoted", 0)]
    assert [(row.topic, row.state) for row in mirror.plan().topics] == [(topic_name, "promoted")]
    assert [row.state for lane in mirror.status().lanes for row in lane.topics] == ["promoted"]
    verdict = mirror.verify()
    assert verdict.ok and verdict.records == 100

    capsys.readouterr()
    assert main(["failover", "m", "-c", str(tmp_path / "mirror.yaml")]) == 2
    assert "has failed over already" in capsys.readouterr().err


def test_a_version_that_does_not_know_promotions_refuses_the_buffer(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would copy into the promoted topic."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    produce(east, topic_name, 10)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    mirror.run(once=True)
    with monkeypatch.context() as older:
        older.setattr(place, "FORMAT", FIRST_FORMAT)
        assert states(mirror) == {topic_name: "ok"}
    mirror.failover()
    with monkeypatch.context() as older:
        older.setattr(place, "FORMAT", FIRST_FORMAT)
        with pytest.raises(BufferUnusable, match="format 2, this version knows 1"):
            mirror.run(once=True)
    assert states(mirror) == {topic_name: "promoted"}


def test_a_dry_run_looks_beside_a_running_mirror(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, _ = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    produce(east, topic_name, 10)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    forth.run(once=True)
    with running(forth):
        wait_until(lambda: "is held by" in busy(forth), 30, "the lane to be held")
        assert forth.failover(FailoverOptions(dry_run=True)).state == "ready"
        assert not (tmp_path / "buffer/m/failover").exists()
    forth.failover()
    forth.failback()
    back.failover()
    with running(back), running(forth):
        wait_until(lambda: "is held by" in busy(forth), 30, "the lane to be held")
        assert back.failback(FailbackOptions(dry_run=True)).state == "ready"
    assert states(back) == {topic_name: "promoted"}


def busy(mirror: Mirror) -> str:
    try:
        for store in mirror.flow.lane_stores():
            with lane_lock(store, patience=0):
                pass
    except LaneBusy as held:
        return held.message
    return ""

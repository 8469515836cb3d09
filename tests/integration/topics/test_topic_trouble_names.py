"""Topics that cannot be copied under their names: each is refused alone, in runs, commands and Dagster; the other topics go on."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.engine.driver import lane
from mirror_pipeline.errors import UsageError
from mirror_pipeline.reports import RunReport
from tests.integration.processes import wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, end_offsets, produce, write_config


@dataclass(frozen=True)
class Names:
    """Two topics without trouble, and one of each kind of trouble; ``why`` is part of the reason of each."""

    stem: str

    @property
    def good(self) -> list[str]:
        return [f"{self.stem}-first", f"{self.stem}-other"]

    @property
    def why(self) -> dict[str, str]:
        first, late, loop = f"{self.stem}-first", f"{self.stem}-late", f"{self.stem}-loop"
        return {
            self.stem.ljust(249, "x"): "has 254 characters, Kafka allows 249",
            late: f"target topic east.{first} on cluster west would get the records of two topics: {first} of this mirror and {late}",
            loop: f"topic {loop} would loop forever: m -> back -> m",
        }

    def mirror(self, folder: Path, clusters: ClusterPair) -> Mirror:
        """``late`` is mapped to the copy of ``first``, and another mirror would bring ``loop`` back."""
        east, west = (cluster.bootstrap_servers for cluster in clusters)
        naming = {"map": {f"{self.stem}-late": f"east.{self.stem}-first", f"{self.stem}-loop": f"{self.stem}-loop"}}
        path = write_config(folder, east, west, [f"{self.stem}.*"], naming=naming, engine={"inline_bytes": "1GB"})
        body = json.loads(path.read_text())
        include = {"include": [f"{self.stem}-loop"]}
        body["mirrors"].append({"name": "back", "source": "west", "target": "east", "naming": "identity", "topics": include})
        path.write_text(json.dumps(body))
        return Mirror(load_config(path), "m")


def begun(clusters: ClusterPair, names: Names, mirror: Mirror) -> None:
    east = clusters[0].bootstrap_servers
    for topic in names.good:
        create_topic(east, topic)
        produce(east, topic, 10)
    assert mirror.run(once=True).records == 20


def trouble(clusters: ClusterPair, names: Names) -> None:
    east = clusters[0].bootstrap_servers
    for topic in names.why:
        create_topic(east, topic)
        produce(east, topic, 5, start=1000)


def refused(rows: object) -> dict[str, str]:
    return {row.topic: row.reason for row in rows if row.state == "halted"}  # type: ignore[attr-defined]


def named_everywhere(names: Names, mirror: Mirror) -> None:
    """Every command names the topics that it leaves out, and works with the others."""
    (status,) = mirror.status().lanes
    for rows in (mirror.lag().topics, mirror.plan().topics, status.topics):
        found = refused(rows)
        assert found.keys() == names.why.keys()
        assert all(why in found[topic] for topic, why in names.why.items())
    assert {each.topic: each.why for each in mirror.plan().excluded}.keys() >= names.why.keys()
    assert {finding.what for finding in mirror.check() if not finding.ok} == {f"topic {topic}" for topic in names.why}
    assert [topic.name for topic in mirror.refresh_catalogue().topics] == names.good
    assert not mirror.flow.target_admin().topics([f"east.{names.stem}-late", f"{names.stem}-loop"])


@pytest.mark.long
def test_names_that_cannot_be_used_stop_no_other_topic(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    names = Names(topic_name[:200])
    mirror = names.mirror(tmp_path, clusters)
    begun(clusters, names, mirror)
    trouble(clusters, names)
    for topic in names.good:
        produce(clusters[0].bootstrap_servers, topic, 7, start=10)
    report = mirror.run(once=True)
    assert report.state == "halted" and refused(report.topics).keys() == names.why.keys()
    assert [end_offsets(mirror, f"east.{topic}", target=True) for topic in names.good] == [{0: 17}, {0: 17}]
    named_everywhere(names, mirror)


def test_names_that_appear_while_a_lane_runs_stop_no_other_topic(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "DISCOVER_SECONDS", 1.0)
    monkeypatch.setattr(lane, "RAREST_DISCOVER_SECONDS", 1.0)
    east = clusters[0].bootstrap_servers
    names = Names(topic_name[:200])
    mirror = names.mirror(tmp_path, clusters)
    begun(clusters, names, mirror)
    stop, reports = threading.Event(), list[RunReport]()
    running = threading.Thread(target=lambda: reports.append(mirror.run(stop=stop)), daemon=True)
    running.start()
    try:
        wait_until(lambda: mirror.status().lanes[0].state == "running", 60, "the run")
        trouble(clusters, names)
        create_topic(east, f"{names.stem}-zz")
        produce(east, f"{names.stem}-zz", 5)
        wait_until(lambda: refused(mirror.status().lanes[0].topics).keys() == names.why.keys(), 60, "the refusals")
        produce(east, names.good[0], 7, start=10)
        wait_until(lambda: end_offsets(mirror, f"east.{names.good[0]}", target=True) == {0: 17}, 60, "a topic that is not in trouble")
        wait_until(lambda: f"east.{names.stem}-zz" in mirror.flow.target_admin().topics(), 60, "a new topic")
    finally:
        stop.set()
        running.join(60)
    (report,) = reports
    assert refused(report.topics).keys() == names.why.keys()


def test_a_start_with_nothing_else_to_do_is_refused(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    names = Names(topic_name[:200])
    mirror = names.mirror(tmp_path, clusters)
    create_topic(clusters[0].bootstrap_servers, f"{names.stem}-loop")
    with pytest.raises(UsageError, match="would loop forever: m -> back -> m"):
        mirror.run(once=True)

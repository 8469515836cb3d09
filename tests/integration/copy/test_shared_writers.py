"""`writers: shared`: others write the target topic too; killed at any point the mirror loses and repeats nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.children import default_signals
from mirror_pipeline.crash_points import CRASH
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, values
from tests.support.other_writers import OtherWriter, assert_mapped, ours

pytestmark = pytest.mark.long

SECONDS = 180
STEPS = {"inline_bytes": "1TB", "micro_batch_bytes": "1MB", "spark_master": "local[2]"}
POINTS = (
    ("begin.before",), ("begin.after",), ("commit.after",), ("produce.before_send:2",), ("produce.after_send",), ("produce.after_send:3",),
    ("produce.before_ack:2",), ("record.before",), ("record.after",), ("produce.after_send:2", "recover.before", "produce.before_ack"),
)  # fmt: skip


def killed_at(config: Path, point: str) -> None:
    """A run in a process of its own that is killed at a crash point."""
    line = [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(config), "run", "--once"]
    environment = {**os.environ, CRASH: point}
    done = subprocess.run(line, env=environment, timeout=SECONDS, preexec_fn=default_signals, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-1000:]


def shared_mirror(
    folder: Path, clusters: ClusterPair, topic: str, inline_bytes: str = "1TB", **settings: Any
) -> tuple[Mirror, OtherWriter]:
    """A mirror into a topic that holds records of another writer."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic, 2)
    create_topic(west, f"all-{topic}", 2)
    other = OtherWriter(west, f"all-{topic}")
    with other.writing():
        produce(east, topic, 3000, partitions=2, size=1000)
    engine = {**STEPS, "inline_bytes": inline_bytes}
    mirror = make_mirror(folder, east, west, [topic], engine=engine, naming="all-{topic}", **{"writers": "shared", **settings})
    return mirror, other


def assert_whole(mirror: Mirror, topic: str, other: OtherWriter, count: int) -> None:
    """Each record once and in order, the others' as well, an exact map, and both verifications agree."""
    sent = {part: [f"value-{number}" for number in range(part, count, 2)] for part in (0, 1)}
    for part, wanted in sent.items():
        assert ours(mirror, f"all-{topic}", part) == wanted
    assert other.missing(mirror) == set()
    assert_mapped(mirror, topic, f"all-{topic}", sent)
    report = mirror.verify()
    assert report.ok and report.records == count, (report.differences[:3], [row.note for row in report.topics])
    assert [each["differences"] for each in mirror.evict()] == [0], "what is staged, against the target"


@pytest.mark.parametrize("points", POINTS, ids="+".join)
def test_killed_at_any_point_beside_another_writer(clusters: ClusterPair, tmp_path: Path, topic_name: str, points: tuple[str, ...]) -> None:
    mirror, other = shared_mirror(tmp_path, clusters, topic_name)
    with other.writing():
        for point in points:
            killed_at(tmp_path / "mirror.yaml", point)
        assert [(row.state, row.reason) for row in mirror.run(once=True).topics] == [("ok", "")]
        produce(clusters[0].bootstrap_servers, topic_name, 100, partitions=2, start=3000, size=1000)
        assert mirror.run(once=True).records == 100
    assert_whole(mirror, topic_name, other, 3100)


@pytest.mark.parametrize("inline_bytes", ["1TB", "0"], ids=["driver", "spark"])
def test_an_application_writes_the_target_topic_too(clusters: ClusterPair, tmp_path: Path, topic_name: str, inline_bytes: str) -> None:
    mirror, other = shared_mirror(tmp_path, clusters, topic_name, inline_bytes=inline_bytes)
    (row,) = mirror.plan().topics
    assert row.blockers == ()
    other.transaction(10, commit=True)
    with other.writing():
        assert mirror.run(once=True).records == 3000
        other.transaction(10, commit=False)
        assert mirror.run(once=True).records == 0
        produce(clusters[0].bootstrap_servers, topic_name, 100, partitions=2, start=3000, size=1000)
        assert mirror.run(once=True).records == 100
    assert_whole(mirror, topic_name, other, 3100)


def test_without_the_key_the_rule_is_as_strict_as_before(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    mirror, _ = shared_mirror(tmp_path / "sole", clusters, topic_name, writers="sole")
    assert ["already holds" in blocker for row in mirror.plan().topics for blocker in row.blockers] == [True]
    assert [row.code for row in mirror.run(once=True).topics] == ["target_filled"]
    before = [len(values(mirror, f"all-{topic_name}", part)) for part in (0, 1)]
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    shared = make_mirror(tmp_path / "shared", east, west, [topic_name], engine=STEPS, naming="all-{topic}", writers="shared")
    assert shared.run(once=True).records == 3000
    produce(west, f"all-{topic_name}", 4, partitions=2)
    produce(east, topic_name, 10, partitions=2, start=5000)
    sole = make_mirror(tmp_path / "shared", east, west, [topic_name], engine=STEPS, naming="all-{topic}")
    assert [row.code for row in sole.run(once=True).topics] == ["foreign_writer"]
    assert sum(len(values(sole, f"all-{topic_name}", part)) for part in (0, 1)) == sum(before) + 3004, "nothing was written"


def test_a_topic_that_was_adopted_may_be_shared_later(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    produce(east, topic_name, 200, partitions=2)
    lost = make_mirror(tmp_path / "lost", east, west, [topic_name], engine=STEPS, naming="all-{topic}")
    assert lost.run(once=True).records == 200
    kept = make_mirror(tmp_path / "kept", east, west, [topic_name], engine=STEPS, naming="all-{topic}")
    assert kept.adopt(topic_name).state == "adopted"
    produce(east, topic_name, 100, partitions=2, start=200)
    mirror = make_mirror(tmp_path / "kept", east, west, [topic_name], engine=STEPS, naming="all-{topic}", writers="shared")
    other = OtherWriter(west, f"all-{topic_name}")
    other.transaction(10, commit=True)
    assert mirror.run(once=True).records == 100
    assert_whole(mirror, topic_name, other, 300)


def test_two_mirrors_share_a_topic_only_if_both_say_so(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    for name in (topic_name, f"{topic_name}-b"):
        create_topic(east, name)
        produce(east, name, 20)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=STEPS, naming=f"all-{topic_name}.{{topic}}", writers="shared")
    path = tmp_path / "mirror.yaml"
    body = json.loads(path.read_text())
    first = {**body["mirrors"][0], "naming": {"map": {topic_name: f"all-{topic_name}"}}}
    second = {
        **first, "name": "n", "naming": {"map": {f"{topic_name}-b": f"all-{topic_name}"}}, "topics": {"include": [f"{topic_name}-b"]}
    }  # fmt: skip
    path.write_text(json.dumps({**body, "mirrors": [first, {**second, "writers": "sole"}]}))
    config = load_config(path)
    refused = Mirror(config, "n")
    assert ["would get the records of two mirrors" in each for row in refused.plan().topics for each in row.blockers] == [True]
    assert [row.code for row in refused.run(once=True).topics] == ["target_claimed"]
    path.write_text(json.dumps({**body, "mirrors": [first, second]}))
    config = load_config(path)
    both = [Mirror(config, name) for name in ("m", "n")]
    assert [[row.blockers for row in each.plan().topics] for each in both] == [[()], [()]]
    assert [each.run(once=True).records for each in both] == [20, 20]
    assert all(each.verify().ok for each in both)
    assert len(values(mirror, f"all-{topic_name}")) == 40

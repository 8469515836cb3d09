"""The command ``mirror adopt``: its answers, bad input, and kill -9 around its commit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from mirror_pipeline.cli.main import main
from mirror_pipeline.crash_points import ADOPT_POINTS
from tests.support.commands import command
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce
from tests.support.reverse_pair import IN_PROCESS


def lost(folder: Path, clusters: ClusterPair, topic: str) -> tuple[Path, int]:
    """A topic that a mirror has copied whose buffer is gone, and records that came after it; the configuration, and their number."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic, 2)
    produce(east, topic, 100, partitions=2)
    assert make_mirror(folder / "before", east, west, [topic], engine=IN_PROCESS).run(once=True).state == "ok"
    produce(east, topic, 10, partitions=2, start=100)
    make_mirror(folder, east, west, [topic], engine=IN_PROCESS)
    return folder / "mirror.yaml", 10


def test_the_answers(clusters: ClusterPair, tmp_path: Path, topic_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, late = lost(tmp_path, clusters, topic_name)
    words = ["adopt", "m", "-c", str(path), "--topic", topic_name]
    bad = {
        ("--proof", "some"): "proof some: no such proof",
        ("--proof", "last:0"): "proof last:0: no such proof",
        ("--allow", "duplicates"): "allow duplicates: no such difference",
    }
    for more, text in bad.items():
        assert main([*words, *more]) == 2
        assert text in capsys.readouterr().err
    assert not (tmp_path / "buffer").exists()
    assert main([*words, "--dry-run", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["topics"]
    assert (document["state"], document["records"], [p["remaining"] for p in document["partitions"]]) == ("ready", 100, [5, 5])
    assert main(words) == 0
    assert "adopted 1 topic, 100 records equal on both sides" in " ".join(capsys.readouterr().out.split())
    assert main(words) == 2
    assert "copies topic" in capsys.readouterr().err
    assert main(["adopt", "m", "-c", str(path), "--topic", "another"]) == 2
    assert "does not select topic another" in capsys.readouterr().err
    assert main(["run", "-c", str(path), "--once"]) == 0
    assert f"{late} records" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("point", ADOPT_POINTS)
def test_killed_around_the_commit(clusters: ClusterPair, tmp_path: Path, topic_name: str, point: str) -> None:
    """Before the commit nothing is adopted, and what was written is never read; after it everything is."""
    lost(tmp_path, clusters, topic_name)
    words = ("adopt", "--topic", topic_name)
    assert command(tmp_path, *words, crash=point) == -signal.SIGKILL
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    if point == "adopt.mapped":
        assert mirror.offset_map() == ()
        assert [row.code for row in mirror.run(once=True).topics] == ["target_filled"]
        assert command(tmp_path, *words) == 0
    assert [(row.state, row.records) for row in mirror.run(once=True).topics] == [("ok", 10)]
    assert_identical(mirror, [topic_name])
    assert mirror.verify().ok
    assert [row.records for row in mirror.offset_map()] == [55, 55]

"""Pauses are told to every lane whose decisions anybody reads, and contact no cluster."""

from __future__ import annotations

from pathlib import Path

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.model import Decision, DecisionKind
from mirror_pipeline.operations.state.snapshot import Snapshot
from tests.support.mirrors import write_config


def mirror_of(folder: Path, lanes: int) -> Mirror:
    return Mirror(load_config(write_config(folder, "127.0.0.1:1", "127.0.0.1:2", ["t.*"], lanes=lanes)), "m")


def paused(mirror: Mirror) -> set[str]:
    return set(Snapshot(mirror.flow).turned_away(["t1", "t2"]))


def test_a_pause_counts_for_one_topic_or_all(tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path, 2)
    assert mirror.pause("t1").paused and paused(mirror) == {"t1"}
    mirror.pause()
    assert paused(mirror) == {"t1", "t2"}
    assert not mirror.resume().paused and paused(mirror) == set()


def test_a_resume_says_whether_anything_was_paused(tmp_path: Path) -> None:
    mirror = mirror_of(tmp_path, 2)
    assert not mirror.resume().stood
    mirror.pause("t1")
    assert not mirror.resume("t2").stood
    assert mirror.resume("t1").stood
    assert not mirror.resume().stood
    mirror.pause()
    assert mirror.resume("t1").stood
    assert mirror.resume().stood


def test_a_lane_that_is_configured_no_longer_is_told_too(tmp_path: Path) -> None:
    before = mirror_of(tmp_path, 2)
    lane = Decisions(open_lane(before.flow.config.buffer, "m", "lane-1"), durable=False)
    for offset in range(5):  # so that its decisions have higher numbers than those of lane-0
        lane.add([Decision("t2", 0, "now", DecisionKind.GAP, offset, offset + 1, "", "me", 0)])
    before.pause()
    fewer = mirror_of(tmp_path, 1)
    fewer.resume()
    assert paused(fewer) == set()
    assert paused(mirror_of(tmp_path, 2)) == set()

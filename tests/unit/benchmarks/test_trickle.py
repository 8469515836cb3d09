"""What a trickle costs is measured of the process that runs the lane, whoever started it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.trickle import arguments, lane_process, memory


def test_the_lanes_own_process_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "buffer" / "bench" / "lane-0"
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"pid": os.getpid(), "state": "running"}))
    process = lane_process(tmp_path / "buffer")
    assert process.pid == os.getpid()
    used = memory(process)
    assert 0 < used["uss_mb"] <= used["pss_mb"] <= used["rss_mb"]


def test_a_round_runs_each_way_that_is_asked_for() -> None:
    assert arguments(["--how", "run", "--how", "up"]).how == ["run", "up"]

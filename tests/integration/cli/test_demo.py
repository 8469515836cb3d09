"""The demo on real brokers: it ends well, and it leaves nothing behind when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirror_pipeline.local.demo.demo import run_demo
from mirror_pipeline.local.demo.screen import Screen
from mirror_pipeline.local.embedded.broker import command_line
from mirror_pipeline.local.embedded.start import cluster_status, stop_clusters

WAIT_SECONDS = 180.0
PROGRAM = "from mirror_pipeline.local.demo.demo import run_demo; run_demo(scale=200_000)"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_broker_and_no_file(tmp_path: Path, number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    deadline = time.monotonic() + WAIT_SECONDS
    for line in process.stderr:
        if line.startswith("filling") or time.monotonic() > deadline:
            break
    brokers = [int(path.read_text()) for path in tmp_path.glob("mirror-demo-*/clusters/*/broker-*/pid")]
    assert [bool(command_line(pid)) for pid in brokers] == [True] * 6
    process.send_signal(number)
    said = process.communicate(timeout=WAIT_SECONDS)[1]
    assert process.returncode != 0, said
    assert {command_line(pid) for pid in brokers} == {""}
    assert list(tmp_path.glob("mirror-demo-*")) == []


@pytest.mark.slow
def test_a_small_demo_ends_with_every_topic_identical(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    try:
        report = run_demo(directory, keep=True, screen=Screen(table=False), scale=500, live_seconds=3.0)
        assert {row.topic: (row.verdict, row.differences) for row in report.rows} == {row.topic: ("identical", ()) for row in report.rows}
        assert len(report.rows) == 19
        assert report.live_records > 500
        assert report.exit_code == 0
        assert [cluster.state for cluster in cluster_status(directory / "clusters")] == ["running", "running"]
    finally:
        stop_clusters(directory / "clusters")

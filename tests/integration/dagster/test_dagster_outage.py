"""The target goes down while ``mirror up`` runs: the page says which topics wait, since when, and what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.orchestration import names
from tests.support.dagster_page import NAME, Up, configure, consume, end, prefix_of, produce, start, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
CHECKS = """
query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { assetChecksOrError { ... on AssetChecks { checks {
  name executionForLatestMaterialization { status evaluation { severity description } } } } } } } }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Two clusters of one broker each, which the test may stop."""
    place = tmp_path / "clusters"
    start_clusters(place, 2, brokers=1, names=["east", "west"])
    yield place
    stop_clusters(place)


@pytest.fixture
def up(folder: Path, tmp_path: Path) -> Iterator[Up]:
    east, west = start_clusters(folder, 2, names=["east", "west"])
    config, *servers = configure(tmp_path, (east, west))
    for name in ("busy", "idle"):
        produce(servers[0], f"{prefix_of(config)}-{name}", [f"first {n}" for n in range(30)])
    running = start(config, *servers)
    yield running
    if running.process.poll() is None:
        end(running)


def shown(up: Up, topic: str) -> tuple[str, str, str]:
    """What the asset graph goes by: status, severity and text of the check's result for the newest materialization."""
    node = up.ask(CHECKS, key={"path": [NAME, "target", topic]})["assetNodeOrError"]
    (check,) = [check for check in node["assetChecksOrError"]["checks"] if check["name"] == names.COPYING_CHECK]
    found: dict[str, Any] = check["executionForLatestMaterialization"] or {}
    evaluation = found.get("evaluation") or {}
    return found.get("status", ""), evaluation.get("severity", ""), evaluation.get("description") or ""


def down_tag(up: Up) -> str:
    (run,) = up.lane_runs("STARTED")
    return next((tag["value"] for tag in run["tags"] if tag["key"] == names.DOWN_TAG), "")


def test_a_target_that_is_down_is_red_says_since_when_and_is_green_again(up: Up, folder: Path) -> None:
    busy, idle = up.topic("busy"), up.topic("idle")
    until("both are on the target", lambda: all(len(consume(up.west, up.target(t))) == 30 for t in (busy, idle)))
    until("both are green", lambda: {shown(up, t)[0] for t in (busy, idle)} == {"SUCCEEDED"})
    began = time.time()
    stop_clusters(folder, "west")
    produce(up.east, busy, [f"second {n}" for n in range(30)])
    status, severity, text = until("what waits is red", lambda: (s := shown(up, busy))[:2] == ("FAILED", "ERROR") and s)
    said = re.match(r"behind since (\S+ \S+) \w+: .+ \(`mirror check` says what the target lacks", text)
    assert said is not None, text
    assert began - 5 <= datetime.fromisoformat(said.group(1)).timestamp() <= time.time()
    until("the run says so", lambda: down_tag(up).startswith("target west since "))
    until("the sensor says so", lambda: any("target down since" in reason for reason in up.reasons("lag_")[:3]))
    start_clusters(folder, 2, names=["east", "west"])
    until("everything is on the target", lambda: len(consume(up.west, up.target(busy))) == 60)
    until("both are green again", lambda: {shown(up, t)[0] for t in (busy, idle)} == {"SUCCEEDED"})
    until("the run says that it is over", lambda: down_tag(up).startswith("no; target west was from "))

"""Options, counts and the summary table of the fault suite. Nothing here is collected unless ``--faults`` asks for it."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import SPARK_VARIABLE
from tests.faults.report import CampaignReport, load_all, row_of, save, table

FULL = {
    "kills": 300, "alone": 60, "dagster": 10, "zombies": 60, "proxy": 100, "brokers": 60, "disks": 20, "stores": 40,
    "expired": 30, "late": 6, "hazards": 10, "soak": 30, "cycles": 20, "rebuilds": 30, "exact_rebuilds": 30,
    "silent": 12, "leaderless": 20, "leaders": 60, "quotas": 20, "answers": 60, "rolling": 24, "acceptance": 30, "troubles": 30,
    "clocks": 30, "secrets": 30, "loss": 50, "exact": 420, "markers": 90, "buffers": 50,
}  # fmt: skip
"""Faults of each campaign; ``hazards`` of each kind; ``soak``, ``acceptance`` and ``troubles`` in minutes."""
SMALL = {
    "kills": 14, "alone": 12, "dagster": 1, "zombies": 6, "proxy": 20, "brokers": 8, "disks": 4, "stores": 6,
    "expired": 5, "late": 2, "hazards": 1, "soak": 1, "cycles": 2, "rebuilds": 1, "exact_rebuilds": 1,
    "silent": 3, "leaderless": 4, "leaders": 10, "quotas": 4, "answers": 10, "rolling": 6, "clocks": 4, "secrets": 4, "loss": 4,
    "exact": 14, "markers": 7, "buffers": 6,
}  # fmt: skip
"""What the rotating part in CI does in at most four minutes; what JUDGE_SECONDS names is not in it."""
JUDGE_SECONDS = ("test_acceptance", "test_troubles")
"""Campaigns with limits in seconds, which a shared machine cannot promise."""
LONGEST_FIRST = ("test_acceptance", "test_soak", "test_troubles", "test_kills", "test_zombies", "test_brokers", "test_dagster_kills")
"""So that two workers of pytest-xdist end at about the same time."""
_FOLDER = "MIRROR_FAULT_REPORTS"
_HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--faults", choices=["none", "all", "rotate"], default="none", help="fault campaigns: none, all, one a day in turn")
    group.addoption("--fault-counts", default="", metavar="NAME=N,...", help=f"other counts than {FULL}")
    group.addoption("--fault-scale", type=float, default=1.0, help="multiply all counts")
    group.addoption("--fault-seed", type=int, help="seed of every campaign; a random one for each otherwise")
    spark = ["seed", "on", "off"]
    group.addoption("--fault-spark", choices=spark, default="seed", help="run the lane with Spark or without; by default as the seed says")
    group.addoption("--fault-report", metavar="FILE", help="write all reports as JSON to this file")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--faults", default="none") == "none" and collection_path.name.startswith("test_"):
        return True
    return None


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(_FOLDER, tempfile.mkdtemp(prefix="mirror-faults-"))
    if config.getoption("--fault-spark") != "seed":
        os.environ[SPARK_VARIABLE] = config.getoption("--fault-spark")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if _HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.faults)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(0))  # every wait has a deadline of its own
    ours.sort(key=lambda item: LONGEST_FIRST.index(item.path.stem) if item.path.stem in LONGEST_FIRST else len(LONGEST_FIRST))
    others = [item for item in items if item not in ours]
    items[:] = ours + others
    if config.getoption("--faults", default="none") == "rotate":
        out = sorted((item for item in ours if "plan" in getattr(item, "fixturenames", ())), key=lambda item: item.nodeid)
        campaigns = [item for item in out if item.path.stem not in JUDGE_SECONDS]
        if campaigns:
            out.remove(campaigns[int(os.environ.get("MIRROR_TEST_DAY", date.today().toordinal())) % len(campaigns)])
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def counts_of(config: pytest.Config) -> dict[str, int]:
    """How many faults each campaign shall inject."""
    small = config.getoption("--faults") == "rotate"
    scaled = {name: max(1, round(count * config.getoption("--fault-scale"))) for name, count in (SMALL if small else FULL).items()}
    for part in filter(None, config.getoption("--fault-counts").split(",")):
        name, _, number = part.partition("=")
        if name not in FULL or not number.isdigit():
            raise pytest.UsageError(f"--fault-counts: {part}: NAME=N with NAME of {', '.join(FULL)}")
        scaled[name] = int(number)
    return scaled


@pytest.fixture
def plan(request: pytest.FixtureRequest) -> Iterator[Callable[[str], CampaignReport]]:
    """Gives the empty report of a campaign: its seed and how many faults it shall inject. Kept for the summary."""
    reports: list[CampaignReport] = []

    def make(name: str, counted_as: str | None = None) -> CampaignReport:
        seed = request.config.getoption("--fault-seed")
        wanted = counts_of(request.config)[counted_as or name]
        reports.append(CampaignReport(name, random.SystemRandom().randrange(10**6) if seed is None else seed, wanted))
        save(Path(os.environ[_FOLDER]), reports[-1])
        return reports[-1]

    yield make
    for report in reports:
        save(Path(os.environ[_FOLDER]), report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    folder = os.environ.get(_FOLDER)
    bodies = load_all(Path(folder)) if folder else []
    if not bodies:
        return
    terminalreporter.section("faults")
    for line in table([row_of(body) for body in bodies]):
        terminalreporter.write_line(line)
    for body in bodies:
        for line in [*body["account"]["details"][:10], *(f"run ended {end}" for end in body["ends"][:5])]:
            terminalreporter.write_line(f"{body['campaign']}: {line}"[:600])
    path = config.getoption("--fault-report")
    if path:
        Path(path).write_text(json.dumps(bodies, indent=1))
        terminalreporter.write_line(f"report: {path}")


@pytest.fixture
def own_clusters() -> Iterator[Callable[[LocalCluster], None]]:
    """Takes clusters that a test has started by itself; they are killed and their data removed after it."""
    clusters: list[LocalCluster] = []
    yield clusters.append
    for cluster in clusters:
        cluster.resume()
        cluster.kill()
        for broker in cluster.brokers:
            shutil.rmtree(broker.data, ignore_errors=True)

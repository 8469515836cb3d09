"""Fifty topics, twelve of them in trouble of as many kinds: the others never stand still, and each trouble is named with a hint."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters
from mirror_pipeline.local.shapes.ground import local_settings
from tests.faults.child import MirrorChild, wait_for
from tests.faults.report import CampaignReport
from tests.faults.troubles import APPEAR_LATER, DARK, DARK_SOURCE, DARK_TARGET, TROUBLES, Feeder, Sides, StandStill
from tests.support.mirrors import write_config
from tests.support.scram import SCRAM, USER

HEALTHY = [f"h-{number:02}" for number in range(38)]
LONGEST_STAND_STILL = 10.0
BEGIN_SECONDS = 180.0
NAMED_SECONDS = 120.0
PASSWORD = "troubles"
ENGINE = {"spark_master": "local[2]", "request_timeout": "5s", "target_wait": "10m", "source_wait": "10m", "poll_interval": "100ms"}


def secured_pair(folder: Path) -> tuple[LocalCluster, LocalCluster]:
    """Three brokers each; the operator comes in without a login, the mirror with one, so that rights can be denied to it."""
    config = {
        **SCRAM,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true",
    }  # fmt: skip
    users = ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
    east, west = start_clusters(
        folder, names=["east", "west"], brokers=3, config=config, listeners={"SECURE": "SASL_PLAINTEXT"}, storage_args=users
    )
    return east, west


def login(cluster: LocalCluster) -> dict[str, Any]:
    """The cluster as the mirror's configuration has it."""
    security = {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512", "username": USER, "password": "${env:TROUBLES_PASSWORD}"}
    return {"bootstrap_servers": cluster.listener("SECURE"), "security": security}


def told(config: Path, command: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    line = [sys.executable, "-m", "mirror_pipeline.cli", command, "--json", "-c", str(config)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    return dict(json.loads(done.stdout))


def unnamed(config: Path) -> list[str]:
    """Troubles that a command says nothing of, or without what to do."""
    lag, status, health = (told(config, command)["mirrors"][0] for command in ("lag", "status", "health"))
    rows = {row["topic"]: row for row in lag["topics"]}
    states = {row["topic"]: row for lane in status["lanes"] for row in lane["topics"]}
    missing = []
    for topic in [*TROUBLES, DARK_SOURCE, DARK_TARGET]:
        row, state = rows.get(topic, {}), states.get(topic, {})
        if not (row.get("reason") and row.get("hint")) and not any(topic in note for note in lag["notes"]):
            missing.append(f"lag says nothing of {topic[:20]}: {row}")
        if not (state.get("reason") and state.get("hint")) and topic not in json.dumps(status):
            missing.append(f"status says nothing of {topic[:20]}: {state}")
        if not any(topic in problem for problem in health["problems"]):
            missing.append(f"health says nothing of {topic[:20]}")
    return missing


def test_troubles(plan: Callable[[str], CampaignReport], own_clusters: Callable[..., None], tmp_path: Path, monkeypatch: Any) -> None:
    report = plan("troubles")
    minutes, report.wanted = report.wanted, len(TROUBLES) + 2
    monkeypatch.setenv("TROUBLES_PASSWORD", PASSWORD)
    source, target = secured_pair(tmp_path / "kafka")
    own_clusters(source)
    own_clusters(target)
    feeder = Feeder(source.bootstrap_servers)
    sides = Sides(source, target, feeder)
    now = [*HEALTHY, *(topic for topic in TROUBLES if topic not in APPEAR_LATER), DARK_TARGET]
    for topic in now:
        sides.create(source, topic)
    sides.create(source, DARK_SOURCE, brokers=[DARK])
    sides.create(target, f"east.{DARK_TARGET}", brokers=[DARK])
    feeder.add(*now, DARK_SOURCE)
    clusters = {"east": login(source), "west": login(target)}
    config = write_config(tmp_path / "mirror", "", "", [".*"], clusters=clusters, engine=ENGINE, buffer={"retention": "1m"})
    child = MirrorChild(config, "run", "--for", f"{minutes + 10}m", "--json")
    mirror = Mirror(load_config(config), "m")
    copies = {topic: f"east.{topic}" for topic in HEALTHY}

    def begun() -> bool:
        return sum(len(lane.topics) for lane in mirror.status().lanes) >= len(now) + 1

    wait_for("every topic to be copied", begun, BEGIN_SECONDS, poll=2)
    time.sleep(10)
    watch = StandStill(local_settings(target.bootstrap_servers), copies)
    until = time.monotonic() + 60 * minutes
    try:
        for topic, make in TROUBLES.items():
            make(sides, topic)
            report.fault(make.__name__, topic[:20])
            time.sleep(2)
        for cluster, topic in ((source, DARK_SOURCE), (target, DARK_TARGET)):
            cluster.kill(signal.SIGTERM, node=DARK)
            report.fault("no leader", topic)
        deadline = time.monotonic() + NAMED_SECONDS
        while (missing := unnamed(config)) and time.monotonic() < deadline:
            time.sleep(5)
        for line in missing:
            report.account.unexplain(line)
        wait_for("the time to be over", lambda: time.monotonic() > until or not child.alive, 60 * minutes + 60, poll=1)
    finally:
        watch.stop()
        feeder.stop()
    if not child.alive:
        report.account.unexplain(f"the run ended: {child.last_words()}")
    for topic, seconds in sorted(watch.longest.items()):
        if seconds > LONGEST_STAND_STILL:
            report.account.unexplain(f"{topic} stood still for {seconds:.1f} s")
    report.note(f"healthy topics stood still for {max(watch.longest.values()):.1f} s at most")
    child.close()
    report.close()
    assert report.account.clean, report.account.details

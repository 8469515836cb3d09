"""Processes that are stopped around sends and continue later, when another run may have taken over; two runs of one lane."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, with_spark
from tests.faults.child import MirrorChild, send_signal
from tests.faults.pauses import pause_processes
from tests.faults.report import CampaignReport
from tests.faults.zombies import late_beside_another_run, late_in_its_own_run

REFUSED_SECONDS = 60.0


def two_runs(campaign: Campaign) -> None:
    """A second run of the lane is refused, whether the first one works or hangs."""
    child = campaign.running()
    hangs = campaign.chance.random() < 0.5
    if hangs:
        send_signal(child.pid, signal.SIGSTOP)
    second = MirrorChild(campaign.config, "run", "--once")
    try:
        code = second.wait(REFUSED_SECONDS)
        words = second.err.read_text()
    finally:
        second.close()
        send_signal(child.pid, signal.SIGCONT)
    campaign.report.fault("second run", "the first one hangs" if hangs else "the first one works")
    if code != 1 or "is held by" not in words:
        campaign.report.account.unexplain(f"a second run of the lane ended with {code}: {second.last_words()}")


def kinds(campaign: Campaign) -> list[Callable[[Campaign], None]]:
    """What to do, in random order."""
    wanted = campaign.report.wanted
    # Without Spark the driver hangs, and its lock blocks every other run until it continues.
    beside = late_in_its_own_run if campaign.inline else late_beside_another_run
    fixed: list[Callable[[Campaign], None]] = [beside] * max(1, wanted // 5)
    fixed += [late_in_its_own_run] * max(1, wanted // 6) + [two_runs] * max(1, wanted // 15)
    chosen = fixed + [pause_processes] * max(0, wanted - len(fixed))
    campaign.chance.shuffle(chosen)
    return chosen


def test_zombies(plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    campaign = Campaign(plan("zombies"), tmp_path, source, target, engine=with_spark())
    todo = kinds(campaign)

    def step() -> None:
        campaign.pause()
        (todo.pop() if todo else pause_processes)(campaign)
        campaign.moving()

    campaign.drive(step)

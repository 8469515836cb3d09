"""Processes that are stopped around sends and continue later, when another run may have taken over; two runs of one lane."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.crash_points import ONCE, STOP
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import LEASE_SECONDS, Campaign, with_spark
from tests.faults.child import MirrorChild, send_signal, wait_for
from tests.faults.pauses import pause_processes
from tests.faults.report import CampaignReport

REACH_SECONDS = 150.0
"""A start of Spark on a busy machine."""
REFUSED_SECONDS = 60.0
AFTER_LEASE = LEASE_SECONDS + 1.0
PLACES = ("produce.before_send", "produce.after_send", "produce.before_ack")
DRIVER_PLACES = ("record.before", "record.after", "commit.before", "commit.after")


def stop_at(campaign: Campaign, place: str) -> list[int]:
    """A fresh run that stops itself at a named place; the processes that hang."""
    campaign.blame()
    campaign.running().kill_tree()
    mark = campaign.folder / f"stopped-{len(campaign.report.faults)}-{time.monotonic_ns()}"
    child = campaign.start(**{STOP: f"{place}:{campaign.chance.randint(1, 5)}", ONCE: str(mark)})
    wait_for(f"a process to stop at {place}", lambda: mark.exists() and child.stopped(), REACH_SECONDS)
    return child.stopped()


def late_in_its_own_run(campaign: Campaign) -> None:
    """It hangs at a send until its lease is over, and continues in the run that waits for it."""
    place = campaign.chance.choice(PLACES + DRIVER_PLACES)
    stopped = stop_at(campaign, place)
    time.sleep(AFTER_LEASE)
    for pid in stopped:
        send_signal(pid, signal.SIGCONT)
    campaign.report.fault(f"zombie {place}", f"pid {stopped}, its run waited")


def late_beside_another_run(campaign: Campaign) -> None:
    """A worker hangs at a send, its run is killed, another run continues; then the worker resumes with its connection open."""
    place = campaign.chance.choice(PLACES)
    stopped = stop_at(campaign, place)
    old = campaign.child
    assert old is not None
    campaign.blame()
    old.kill_tree(spare=frozenset(stopped))
    campaign.child = None
    try:
        began = time.monotonic()
        campaign.start()
        campaign.moving()
        time.sleep(max(0.0, AFTER_LEASE - (time.monotonic() - began)))
        alive = [pid for pid in old.stopped() if pid in stopped and send_signal(pid, signal.SIGCONT)]
        campaign.report.fault(f"zombie {place}", f"pid {alive} of {stopped}, another run has continued")
        if not alive:
            campaign.report.account.unexplain("the stopped worker did not outlive its run: nothing was tested")
        campaign.moving()
    finally:
        old.close()


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

"""Processes that are stopped around sends and go on later, when another run may have taken over; two runs of one lane."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mirror_pipeline.crash_points import ONCE, STOP
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import LEASE_SECONDS, Campaign, with_spark
from tests.faults.child import MirrorChild, send_signal, wait_for
from tests.faults.report import CampaignReport

REACH_SECONDS = 150.0
"""A start of Spark on a busy machine."""
REFUSED_SECONDS = 60.0
AFTER_LEASE = LEASE_SECONDS + 1.0
PLACES = ("produce.before_send", "produce.after_send", "produce.before_ack")
DRIVER_PLACES = ("record.before", "record.after", "commit.before", "commit.after")


def a_pause(campaign: Campaign) -> None:
    """A worker, all workers, the driver or the JVM hang for a while, mostly shorter than the lease."""
    child = campaign.running()
    who = "driver" if campaign.inline else campaign.chance.choice(("worker", "worker", "worker", "workers", "driver", "jvm"))
    worker = child.a_worker(campaign.chance, campaign.ports)
    all_of_them: dict[str, Sequence[int | None]] = {
        "worker": [worker], "workers": child.workers(), "driver": [child.pid], "jvm": [child.jvm()],
    }  # fmt: skip
    seconds = campaign.chance.uniform(0.1, 3.0) if campaign.chance.random() < 0.75 else campaign.chance.uniform(LEASE_SECONDS, 7.0)
    chosen = [pid for pid in all_of_them[who] if pid is not None and send_signal(pid, signal.SIGSTOP)]
    if not chosen:
        return
    time.sleep(seconds)
    for pid in chosen:
        send_signal(pid, signal.SIGCONT)
    campaign.report.fault(f"pause {who}", f"{seconds:.1f} s, {len(chosen)} processes")


def stop_at(campaign: Campaign, place: str) -> list[int]:
    """A fresh run that stops itself at a named place; the processes that hang."""
    campaign.blame()
    campaign.running().kill_tree()
    mark = campaign.folder / f"stopped-{len(campaign.report.faults)}-{time.monotonic_ns()}"
    child = campaign.start(**{STOP: f"{place}:{campaign.chance.randint(1, 5)}", ONCE: str(mark)})
    wait_for(f"a process to stop at {place}", lambda: mark.exists() and child.stopped(), REACH_SECONDS)
    return child.stopped()


def late_in_its_own_run(campaign: Campaign) -> None:
    """It hangs at a send until its lease is over, and goes on in the run that waits for it."""
    place = campaign.chance.choice(PLACES + DRIVER_PLACES)
    stopped = stop_at(campaign, place)
    time.sleep(AFTER_LEASE)
    for pid in stopped:
        send_signal(pid, signal.SIGCONT)
    campaign.report.fault(f"zombie {place}", f"pid {stopped}, its run waited")


def late_beside_another_run(campaign: Campaign) -> None:
    """A worker hangs at a send, its run is killed, another run goes on; then the worker comes back with its connection open."""
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
        campaign.report.fault(f"zombie {place}", f"pid {alive} of {stopped}, another run has gone on")
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
    # Without Spark who hangs is the driver, and its lock keeps every other run away until it goes on.
    beside = late_in_its_own_run if campaign.inline else late_beside_another_run
    fixed: list[Callable[[Campaign], None]] = [beside] * max(1, wanted // 5)
    fixed += [late_in_its_own_run] * max(1, wanted // 6) + [two_runs] * max(1, wanted // 15)
    chosen = fixed + [a_pause] * max(0, wanted - len(fixed))
    campaign.chance.shuffle(chosen)
    return chosen


def test_zombies(plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    campaign = Campaign(plan("zombies"), tmp_path, source, target, engine=with_spark())
    todo = kinds(campaign)

    def step() -> None:
        campaign.pause()
        (todo.pop() if todo else a_pause)(campaign)
        campaign.moving()

    campaign.drive(step)

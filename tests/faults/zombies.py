"""Processes that stop themselves at a named place and continue after their lease, in their own run or beside another one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from mirror_pipeline.crash_points import ONCE, STOP
from tests.faults.campaign import LEASE_SECONDS, Campaign
from tests.faults.child import send_signal, wait_for

REACH_SECONDS = 150.0
"""A start of Spark on a busy machine."""
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


def late_in_its_own_run(
    campaign: Campaign, places: tuple[str, ...] = PLACES + DRIVER_PLACES, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """It hangs at a send until its lease is over, and continues in the run that waits for it."""
    place = campaign.chance.choice(places)
    stopped = stop_at(campaign, place)
    meanwhile()
    time.sleep(AFTER_LEASE)
    for pid in stopped:
        send_signal(pid, signal.SIGCONT)
    campaign.report.fault(f"zombie {place}", f"pid {stopped}, its run waited")


def late_beside_another_run(
    campaign: Campaign, places: tuple[str, ...] = PLACES, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """A worker hangs at a send, its run is killed, another run continues; then the worker resumes with its connection open."""
    place = campaign.chance.choice(places)
    stopped = stop_at(campaign, place)
    meanwhile()
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

"""``kill -9`` of one process of a running mirror, of all of them, or at a named crash point."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

from mirror_pipeline.crash_points import CRASH, ONCE
from tests.faults.campaign import Campaign
from tests.faults.child import Stuck, send_signal, wait_for
from tests.support.mirrors import create_topic, produce

DEATH_SECONDS = 60.0
POINT_SECONDS = 150.0
"""Covers a start of Spark on a busy machine and the 60 s until a lane's first maintenance round."""
IN_WORKERS = ("stage.", "produce.", "fill.")


def kill_worker(campaign: Campaign) -> None:
    """One worker, mostly one that is connected to the target; without Spark the only process there is."""
    if campaign.inline:
        return kill_driver(campaign)
    child = campaign.running()
    wait_for("a worker to kill", lambda: bool(child.workers()) or not child.alive, POINT_SECONDS)
    pid = child.a_worker(campaign.chance, campaign.ports if campaign.chance.random() < 0.7 else set())
    if pid is not None and send_signal(pid, signal.SIGKILL):
        campaign.report.fault("worker", f"pid {pid}")


def kill_daemon(campaign: Campaign) -> None:
    """The parent of the workers: Spark forks a new one."""
    if campaign.inline:
        return kill_driver(campaign)
    child = campaign.running()
    wait_for("a daemon to kill", lambda: bool(child.daemons()) or not child.alive, POINT_SECONDS)
    for pid in child.daemons()[:1]:
        send_signal(pid, signal.SIGKILL)
        campaign.report.fault("daemon", f"pid {pid}")


def kill_jvm(campaign: Campaign) -> None:
    """Spark's JVM: the run must end by itself."""
    if campaign.inline:
        return kill_driver(campaign)
    child = campaign.running()
    pid = child.jvm()
    if pid is None:
        return
    campaign.blame()
    send_signal(pid, signal.SIGKILL)
    campaign.report.fault("jvm", f"pid {pid}")
    try:
        wait_for("the run to end after its JVM", lambda: not child.alive, DEATH_SECONDS)
    except Stuck:
        campaign.report.account.unexplain(f"the driver continues without its JVM:\n{child.dump()}")
        child.kill_tree()


def kill_driver(campaign: Campaign) -> None:
    """The driver alone; JVM and workers end by themselves while the next run starts."""
    child = campaign.running()
    campaign.blame()
    send_signal(child.pid, signal.SIGKILL)
    campaign.report.fault("driver", f"pid {child.pid}")
    child.wait(DEATH_SECONDS)


def kill_tree(campaign: Campaign) -> None:
    """All at once."""
    child = campaign.running()
    campaign.blame()
    child.kill_tree()
    campaign.report.fault("tree", f"driver {child.pid}")


def crash_at(campaign: Campaign, name: str) -> None:
    """A new run that dies at a named point, in the driver or in a worker."""
    kill_tree(campaign)
    number = len(campaign.report.faults)
    mark = campaign.folder / f"crashed-{number}"
    nth = campaign.chance.randint(1, 1 if name.startswith(("begin.", "recover.", "evict.")) else 4)
    if name.startswith("begin."):
        create_topic(campaign.source, f"load-late-{number}", 2)
        produce(campaign.source, f"load-late-{number}", 50, partitions=2)
        campaign.late.append(f"load-late-{number}")
    child = campaign.start(**{CRASH: f"{name}:{nth}", ONCE: str(mark)})
    campaign.blame()
    with suppress(Stuck):
        wait_for(name, lambda: mark.exists() or not child.alive, POINT_SECONDS)
    if not mark.exists():
        campaign.report.note(f"point {name}:{nth} was not reached")
        return
    if name.startswith(IN_WORKERS) and not campaign.inline:
        campaign.unblame()
    else:
        child.wait(DEATH_SECONDS)
    campaign.report.fault(f"point {name}", f"the {nth}. time")


KILLS: dict[str, Callable[[Campaign], None]] = {
    "worker": kill_worker, "daemon": kill_daemon, "jvm": kill_jvm, "driver": kill_driver, "tree": kill_tree,
}  # fmt: skip

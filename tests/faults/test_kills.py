"""``kill -9`` of workers, JVM, driver and the whole tree, at random moments and at every named crash point."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mirror_pipeline.crash_points import CRASH, ONCE, POINTS
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import INLINE, Campaign, with_spark
from tests.faults.child import Stuck, send_signal, wait_for
from tests.faults.report import CampaignReport
from tests.support.mirrors import create_topic, produce

DEATH_SECONDS = 60.0
POINT_SECONDS = 150.0
"""A start of Spark on a busy machine, and the 60 s after which a lane tidies its buffer for the first time."""
SMALL_BUFFER = {"max_bytes": "8MB", "retention": "1s"}
"""So that the buffer is tidied all the time, and dies in the middle of that, too."""
IN_WORKERS = ("stage.", "produce.")


def kinds(campaign: Campaign) -> list[str]:
    """What to do, in random order: about six in ten are kills of workers, every crash point comes once."""
    wanted = campaign.report.wanted
    points = [f"point {name}" for name in POINTS] if wanted >= 60 else [f"point {n}" for n in campaign.chance.sample(POINTS, wanted // 7)]
    rest = wanted - 2 * len(points)
    others = ["driver"] * (rest // 12) + ["jvm"] * (rest // 12) + ["daemon"] * (rest // 30) + ["tree"] * (rest // 8)
    chosen = points + others + ["worker"] * (rest - len(others))
    campaign.chance.shuffle(chosen)
    return chosen


def kill_worker(campaign: Campaign) -> None:
    """One worker, mostly one that is connected to the target; without Spark the only process there is."""
    if campaign.inline:
        return kill_driver(campaign)
    child = campaign.running()
    pid = child.a_worker(campaign.chance, campaign.ports if campaign.chance.random() < 0.7 else set())
    if pid is not None and send_signal(pid, signal.SIGKILL):
        campaign.report.fault("worker", f"pid {pid}")


def kill_daemon(campaign: Campaign) -> None:
    """The father of the workers: Spark forks a new one."""
    if campaign.inline:
        return kill_driver(campaign)
    for pid in campaign.running().daemons()[:1]:
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
        campaign.report.account.unexplain(f"the driver goes on without its JVM:\n{child.dump()}")
        child.kill_tree()


def kill_driver(campaign: Campaign) -> None:
    """The driver alone; JVM and workers are left to end by themselves, beside the next run."""
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


def test_kills(plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    campaign = Campaign(plan("kills"), tmp_path, source, target, buffer=SMALL_BUFFER, engine=with_spark())
    run(campaign, kinds(campaign), "worker")


def test_kills_without_spark(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    """Small micro-batches are run by the mirror's own process: it dies at every point at which a worker would have died alone."""
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    report = plan("alone")
    campaign = Campaign(report, tmp_path, source, target, buffer=SMALL_BUFFER, engine=INLINE)
    points = [f"point {name}" for name in POINTS]
    campaign.chance.shuffle(points)
    run(campaign, points[: report.wanted // 2], "driver")


def run(campaign: Campaign, todo: list[str], rest: str) -> None:
    """Do what is to do, then ``rest`` until there are enough faults."""

    def step() -> None:
        kind = todo.pop() if todo else rest
        campaign.pause()
        if kind.startswith("point "):
            crash_at(campaign, kind.removeprefix("point "))
        else:
            KILLS[kind](campaign)
        campaign.moving()

    campaign.drive(step)

"""Everything at once for half an hour: kills, pauses, proxy faults, brokers, full disks, in random order, recovered from or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.faults.campaign import Campaign, with_spark
from tests.faults.disks import SmallDisk, fill_buffer, small_disk, why_not
from tests.faults.kills import kill_driver, kill_jvm, kill_tree, kill_worker
from tests.faults.pauses import pause_brokers, pause_processes
from tests.faults.report import CampaignReport
from tests.faults.wire import proxy_step
from tests.support.proxy_cluster import ProxiedCluster, proxied_cluster

BUFFER = "96m"
SMALL_BUFFER = {"max_bytes": "32MB", "retention": "5s"}
RECOVER_SHARE = 0.6
"""How often records must arrive again before the next fault comes; otherwise faults pile up."""
LONGEST_OUTAGE = 4.0


class Soak:
    """All kinds of faults on one campaign."""

    def __init__(self, campaign: Campaign, source: ProxiedCluster, target: ProxiedCluster, disk: SmallDisk | None) -> None:
        self.campaign = campaign
        self.source, self.target = source, target
        self.disk = disk
        self.kinds: list[Callable[[], None]] = [self.worker] * 6 + [self.wire] * 6 + [self.pause] * 4
        self.kinds += [self.restart, self.restart, self.broker, self.broker_pause, self.broker_pause]
        self.kinds += [self.full] if disk else []

    def step(self) -> None:
        """One fault; then, mostly, wait until records arrive."""
        self.campaign.running()
        self.campaign.pause()
        self.campaign.chance.choice(self.kinds)()
        if self.campaign.chance.random() < RECOVER_SHARE:
            self.campaign.moving()

    def worker(self) -> None:
        """``kill -9`` of a worker."""
        kill_worker(self.campaign)

    def restart(self) -> None:
        """``kill -9`` of something without which the run ends."""
        self.campaign.chance.choice((kill_jvm, kill_driver, kill_tree))(self.campaign)

    def wire(self) -> None:
        """A proxy fault."""
        proxy_step(self.campaign, self.source, self.target)

    def pause(self) -> None:
        """SIGSTOP, SIGCONT."""
        pause_processes(self.campaign)

    def broker(self) -> None:
        """A broker dies, or all of a cluster, and comes back."""
        side, cluster = self.campaign.chance.choice((("source", self.source.cluster), ("target", self.target.cluster)))
        node = self.campaign.chance.choice((1, 2, 3, None))
        cluster.kill(node=node)
        self.campaign.report.fault(f"{side} kill", f"broker {node}" if node else "all brokers")
        time.sleep(self.campaign.chance.uniform(0, LONGEST_OUTAGE))
        cluster.start()

    def broker_pause(self) -> None:
        """A broker hangs for a while, or all of a cluster do."""
        side, cluster = self.campaign.chance.choice((("source", self.source.cluster), ("target", self.target.cluster)))
        seconds = self.campaign.chance.uniform(0.3, LONGEST_OUTAGE)
        node = self.campaign.chance.choice((1, 2, 3, None))
        pause_brokers(self.campaign, side, cluster, node, seconds)

    def full(self) -> None:
        """The buffer's disk is full for a while."""
        assert self.disk is not None
        fill_buffer(self.campaign, self.disk)


def test_soak(plan: Callable[[str], CampaignReport], own_clusters: Callable[..., None], tmp_path: Path) -> None:
    report = plan("soak")
    minutes, report.wanted = report.wanted, 1
    source, target = (proxied_cluster(tmp_path / "kafka" / name, seed=report.seed) for name in "ab")
    own_clusters(source.cluster)
    own_clusters(target.cluster)
    with ExitStack() as mounted:
        disk = None
        if why_not():
            report.note(f"no full disks: {why_not()}")
        else:
            disk = mounted.enter_context(small_disk(tmp_path / "mirror" / "buffer", BUFFER))
        campaign = Campaign(
            report, tmp_path / "mirror", source.direct, target.direct, via=(source.via, target.via), buffer=SMALL_BUFFER,
            engine=with_spark(),
        )  # fmt: skip
        soak = Soak(campaign, source, target, disk)
        until = time.monotonic() + 60 * minutes

        def step() -> None:
            soak.step()
            report.wanted = len(report.faults) + (1 if time.monotonic() < until else 0)

        campaign.drive(step)

"""A produce request that reaches a forgetful broker late, after a worker's death has made the mirror doubt all outcomes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign
from tests.faults.child import connected, send_signal
from tests.faults.load import OLD_STREAMS
from tests.faults.report import CampaignReport
from tests.faults.sides import FORGETFUL
from tests.support.proxy import PRODUCE, Harm, Rule
from tests.support.proxy_cluster import ProxiedCluster, proxied_cluster

HELD_SECONDS = 1.5
"""Longer than the target remembers; shorter than a request may take."""


def begin(own: Callable[[LocalCluster], None], folder: Path, report: CampaignReport) -> tuple[Campaign, ProxiedCluster]:
    """A campaign against a target that forgets producers at once."""
    source = proxied_cluster(folder / "kafka" / "a", seed=report.seed)
    own(source.cluster)
    target = proxied_cluster(folder / "kafka" / "b", seed=report.seed, config=FORGETFUL)
    own(target.cluster)
    return Campaign(report, folder / "mirror", source.direct, target.direct, via=(source.via, target.via), streams=OLD_STREAMS), target


def holds(pid: int, port: int) -> bool:
    """Whether the process has a connection from that port."""
    with suppress(psutil.Error):
        return any(c.laddr and c.laddr.port == port for c in psutil.Process(pid).net_connections("tcp"))
    return False


def test_the_other_worker_goes_on_sending(
    plan: Callable[[str], CampaignReport], own_clusters: Callable[[LocalCluster], None], tmp_path: Path
) -> None:
    """One of two produce tasks dies while a request of the other is on its way: that one's batches must not be sent again yet."""
    campaign, target = begin(own_clusters, tmp_path, plan("late"))

    def step() -> None:
        child = campaign.running()
        rule = target.proxy.arm(Rule(Harm.DELAY_REQUEST, PRODUCE, seconds=HELD_SECONDS))
        if not rule.fired.wait(10):
            target.proxy.disarm(rule)
            return
        others = [pid for pid in child.workers() if connected(pid, campaign.ports) and not holds(pid, rule.client)]
        for pid in others[:1]:
            send_signal(pid, signal.SIGKILL)
            campaign.report.fault("worker", f"a request of another one is held for {HELD_SECONDS} s")
        time.sleep(HELD_SECONDS)
        campaign.moving()

    campaign.drive(step)

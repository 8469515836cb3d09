"""Brokers that are killed, stopped, restarted and paused on both sides, each of three brokers; leaders that move."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, without_spark
from tests.faults.pauses import move_leaders, pause_brokers
from tests.faults.report import CampaignReport
from tests.faults.sides import QUICK, Side

LONGEST_PAUSE = 6.0


class Brokers:
    """The faults of this campaign."""

    def __init__(self, campaign: Campaign, source: Side, target: Side) -> None:
        self.campaign = campaign
        self.source, self.target = source, target
        self.chance = campaign.chance

    def step(self) -> None:
        """One fault: two in three on the target."""
        side = self.chance.choice((self.source, self.target, self.target))
        self.chance.choice((self.one_down, self.one_down, self.paused, partial(move_leaders, self.campaign), self.most_down))(side)

    def one_down(self, side: Side) -> None:
        """One of the three brokers dies or stops, its leaders move; it comes back."""
        node = self.chance.choice(side.nodes)
        how = self.chance.choice(("kill", "stop"))
        if how == "kill":
            side.cluster.kill(node=node)
        else:
            side.stop(node)
        self.campaign.report.fault(f"{side.name} {how}", f"broker {node} of 3")
        if self.chance.random() < 0.5:
            self.campaign.moving()
        side.cluster.start()
        side.in_sync()

    def most_down(self, side: Side) -> None:
        """Two of three die, or all: fewer than min.insync.replicas are left, writes are refused until they are back."""
        left = self.chance.choice((*side.nodes, 0))
        for node in side.nodes:
            if node != left:
                side.cluster.kill(node=node)
        self.campaign.report.fault(f"{side.name} kill {'two' if left else 'all'}", f"broker {left} of 3 is left" if left else "")
        time.sleep(self.chance.uniform(0, 3))
        side.cluster.start()
        side.in_sync()

    def paused(self, side: Side) -> None:
        """One broker hangs, or all of them, for a while; the controller fences a broker that hangs for long."""
        node = self.chance.choice((*side.nodes, None))
        seconds = self.chance.uniform(0.3, LONGEST_PAUSE)
        pause_brokers(self.campaign, side.name, side.cluster, node, seconds)


def test_brokers(plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    report = plan("brokers")
    source, target = (Side(name, cluster_factory(names=[name], brokers=3, config=QUICK)[0]) for name in ("source", "target"))
    addresses = (source.cluster.bootstrap_servers, target.cluster.bootstrap_servers)
    campaign = Campaign(report, tmp_path, *addresses, engine=without_spark(report.seed))
    brokers = Brokers(campaign, source, target)

    def step() -> None:
        campaign.running()
        campaign.pause()
        brokers.step()
        campaign.moving()

    campaign.drive(step)

"""Two clusters of three brokers: one broker's trouble, moving leaders, partitions without a leader, quotas, restarts one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, without_spark
from tests.faults.child import Stuck, wait_for
from tests.faults.load import DEFAULT_STREAMS, Stream
from tests.faults.report import CampaignReport
from tests.faults.sides import QUICK, STEADY, Side
from tests.support.quotas import KINDS, set_quotas

OTHERS_SECONDS = 5.0
"""How long partitions of healthy brokers may take to continue while another broker does not answer."""
SHORTEST_HANG, LONGEST_HANG, LONGEST_STEADY = 8.0, 20.0, 30.0
LONGEST_DEATH = 16.0
"""Ten seconds longer than it takes until the controller reports no leader."""
SINGLE = tuple(Stream(f"load-single-{n}", replicas=1, codec="lz4" if n else "none") for n in range(2))
"""Partitions that have no leader while their only broker is down."""

Plan = Callable[..., CampaignReport]
Factory = Callable[..., list[LocalCluster]]


class Two:
    """A campaign between two clusters of three brokers."""

    def __init__(self, report: CampaignReport, factory: Factory, folder: Path, config: dict[str, str], **more: Any) -> None:
        sides = [Side(name, factory(names=[name], brokers=3, config=config)[0]) for name in ("source", "target")]
        self.source, self.target = sides
        addresses = [side.cluster.bootstrap_servers for side in sides]
        self.campaign = Campaign(report, folder, *addresses, engine=without_spark(report.seed), **more)
        self.report, self.chance = report, self.campaign.chance

    def drive(self, step: Callable[[], None]) -> None:
        """Steps, each with a run in progress before it and records arriving after it."""

        def whole() -> None:
            self.campaign.running()
            self.campaign.pause()
            step()
            self.campaign.moving()

        self.campaign.drive(whole)

    def topics(self, side: Side) -> list[str]:
        """The load's topics as they are called there."""
        names = [stream.topic for stream in self.campaign.load.streams]
        return names if side is self.source else ["east." + name for name in names]

    def others_go_on(self, until: float) -> None:
        """Records of other partitions arrive all the time although one broker is down."""
        while time.monotonic() < until - OTHERS_SECONDS:
            before = self.campaign.delivered()
            try:
                wait_for("others to continue", lambda b=before: self.campaign.delivered() > b >= 0, OTHERS_SECONDS, poll=0.15)  # type: ignore[misc]
            except Stuck:
                self.report.account.unexplain(f"after fault {len(self.report.faults) + 1}: nothing arrived for {OTHERS_SECONDS:.0f} s")


@pytest.mark.parametrize("steady", [True, False], ids=["leaders stay", "leaders move"])
def test_a_source_broker_stops_answering(plan: Plan, cluster_factory: Factory, tmp_path: Path, steady: bool) -> None:
    """SIGSTOP for 5 to 30 s. While leaders stay, the partitions of the others must not wait."""
    report = plan("silent" if steady else "silent-moves", counted_as="silent")
    two = Two(report, cluster_factory, tmp_path, STEADY if steady else QUICK, streams=(*DEFAULT_STREAMS, *SINGLE))

    def step() -> None:
        node = two.chance.choice(two.source.nodes)
        seconds = two.chance.uniform(*((5.0, LONGEST_STEADY) if steady else (SHORTEST_HANG, LONGEST_HANG)))
        two.source.hang(node, seconds, two.others_go_on if steady else None)
        report.fault("source silent", f"broker {node} of 3 for {seconds:.1f} s, leaders {'stay' if steady else 'move'}")

    two.drive(step)


def test_partitions_have_no_leader_for_a_while(plan: Plan, cluster_factory: Factory, tmp_path: Path) -> None:
    """Topics of one replica, on both sides: a broker dies, its partitions have no leader until it is back; the others continue."""
    report = plan("leaderless")
    single = {"topics": {"include": ["load-.*"], "replication_factor": 1}}
    two = Two(report, cluster_factory, tmp_path, QUICK, streams=(*SINGLE, Stream("load-plain"), Stream("load-wide", 6)), mirror=single)

    def step() -> None:
        side = two.chance.choice((two.source, two.target))
        node, seconds = two.chance.choice(side.nodes), two.chance.uniform(1, LONGEST_DEATH)
        side.cluster.kill(node=node)
        time.sleep(seconds)
        without = sum(leader in (-1, node) for leader in side.leaders(two.topics(side)).values())
        side.cluster.start()
        side.in_sync()
        report.fault(f"{side.name} leaderless", f"broker {node} of 3 dead for {seconds:.1f} s, {without} partitions without leader")

    two.drive(step)


def test_leaders_move_under_load(plan: Plan, cluster_factory: Factory, tmp_path: Path) -> None:
    """On the source mostly, several times in a row, with producers that wait for all replicas."""
    report = plan("leaders")
    two = Two(report, cluster_factory, tmp_path, QUICK)

    def step() -> None:
        side = two.chance.choice((two.source, two.source, two.source, two.target))
        for _ in range(two.chance.randint(1, 5)):
            moved, refusal = side.move_leaders(two.topics(side), two.chance.randint(1, 2))
            if refusal:
                report.note(f"leaders do not move: {refusal}")
                return
            report.fault(f"{side.name} leaders move", f"{moved} partitions")
            time.sleep(two.chance.uniform(0, 1.5))

    two.drive(step)


def test_quotas_come_and_go(plan: Plan, cluster_factory: Factory, tmp_path: Path) -> None:
    """Less than the load needs, on either side, for some seconds; by bytes or by the time that requests take."""
    report = plan("quotas")
    two = Two(report, cluster_factory, tmp_path, QUICK)

    def step() -> None:
        side = two.chance.choice((two.source, two.target))
        kinds = two.chance.sample(KINDS, two.chance.randint(1, 2))
        rates = {kind: two.chance.randint(1, 5) if kind.startswith("request") else two.chance.randint(20_000, 200_000) for kind in kinds}
        seconds = two.chance.uniform(2, 10)
        set_quotas(side.cluster.bootstrap_servers, rates)
        try:
            time.sleep(seconds)
            if two.chance.random() < 0.5:
                two.campaign.moving()
        finally:
            set_quotas(side.cluster.bootstrap_servers, dict.fromkeys(rates))
        limits = ", ".join(f"{kind} {rate:,}" for kind, rate in rates.items())
        report.fault(f"{side.name} quota", f"{limits} for {seconds:.1f} s")

    two.drive(step)


def test_both_clusters_are_restarted_one_broker_at_a_time(plan: Plan, cluster_factory: Factory, tmp_path: Path) -> None:
    """As an upgrade does it, under load; now and then both clusters at once."""
    report = plan("rolling")
    two = Two(report, cluster_factory, tmp_path, QUICK, streams=(*DEFAULT_STREAMS, Stream("load-wide", 6)))

    def step() -> None:
        sides = two.chance.choice(([two.source, two.target], [two.source], [two.target]))
        for node in two.source.nodes:
            for side in sides:
                side.restart(node)
                report.fault(f"{side.name} restart", f"broker {node} of 3")

    two.drive(step)

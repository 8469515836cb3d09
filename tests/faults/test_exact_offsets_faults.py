"""``offsets: exact`` under kills and zombies in the middle of markers, and without its buffer: no offset may be shifted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.crash_points import FILL_POINTS
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, with_spark, without_spark
from tests.faults.kills import KILLS, crash_at, kill_tree
from tests.faults.load import Stream
from tests.faults.pauses import move_leaders
from tests.faults.report import CampaignReport
from tests.faults.sides import QUICK, Side
from tests.faults.zombies import late_beside_another_run, late_in_its_own_run

STREAMS = (Stream("load-plain", partitions=2), Stream("load-tx", transactional=True), Stream("load-tx2", partitions=2, transactional=True))
PRODUCE_POINTS = ("produce.before_send", "produce.after_send", "produce.before_ack")
LEADERS_MOVE = 0.4


def a_campaign(
    report: CampaignReport, clusters: Callable[..., list[LocalCluster]], folder: Path, engine: dict[str, object]
) -> tuple[Campaign, Callable[[], None]]:
    """Of exact offsets between clusters of three brokers; and what moves leaders, four times in ten, mostly on the target."""
    source, target = (Side(name, clusters(names=[name], brokers=3, config=QUICK)[0]) for name in ("source", "target"))
    addresses = (source.cluster.bootstrap_servers, target.cluster.bootstrap_servers)
    campaign = Campaign(report, folder, *addresses, streams=STREAMS, engine=engine, mirror={"offsets": "exact"})

    def leaders() -> None:
        if campaign.chance.random() < LEADERS_MOVE:
            move_leaders(campaign, campaign.chance.choice((source, target, target)))

    return campaign, leaders


def test_kills_in_the_middle_of_markers(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    report = plan("exact")
    campaign, leaders = a_campaign(report, cluster_factory, tmp_path, without_spark(report.seed) or with_spark())

    def step() -> None:
        campaign.pause()
        leaders()
        if campaign.chance.random() < 0.5:
            crash_at(campaign, campaign.chance.choice(FILL_POINTS + PRODUCE_POINTS))
        else:
            KILLS[campaign.chance.choice(["worker", "driver", "tree"])](campaign)
        campaign.moving()

    campaign.drive(step)


def test_zombies_in_the_middle_of_markers(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    campaign, leaders = a_campaign(plan("markers"), cluster_factory, tmp_path, with_spark())

    def step() -> None:
        campaign.pause()
        beside = not campaign.inline and campaign.chance.random() < 0.5
        (late_beside_another_run if beside else late_in_its_own_run)(campaign, FILL_POINTS, leaders)
        campaign.moving()

    campaign.drive(step)


def test_the_buffer_is_lost_with_its_ledger(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    report = plan("buffers")
    engine = without_spark(report.seed) or with_spark()
    campaign = Campaign(report, tmp_path, source, target, streams=STREAMS, engine=engine, mirror={"offsets": "exact"})

    def step() -> None:
        campaign.pause(3.0)
        kill_tree(campaign)
        shutil.rmtree(campaign.buffer_uri)
        campaign.moving()

    campaign.drive(step)

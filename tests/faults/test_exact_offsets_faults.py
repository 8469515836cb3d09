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
from tests.faults.report import CampaignReport
from tests.faults.zombies import late_beside_another_run, late_in_its_own_run

STREAMS = (Stream("load-plain", partitions=2), Stream("load-tx", transactional=True), Stream("load-tx2", partitions=2, transactional=True))
PRODUCE_POINTS = ("produce.before_send", "produce.after_send", "produce.before_ack")


def test_kills_in_the_middle_of_markers(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    report = plan("exact")
    engine = without_spark(report.seed) or with_spark()
    campaign = Campaign(report, tmp_path, source, target, streams=STREAMS, engine=engine, mirror={"offsets": "exact"})

    def step() -> None:
        campaign.pause()
        if campaign.chance.random() < 0.5:
            crash_at(campaign, campaign.chance.choice(FILL_POINTS + PRODUCE_POINTS))
        else:
            KILLS[campaign.chance.choice(["worker", "driver", "tree"])](campaign)
        campaign.moving()

    campaign.drive(step)


def test_zombies_in_the_middle_of_markers(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    campaign = Campaign(plan("markers"), tmp_path, source, target, streams=STREAMS, engine=with_spark(), mirror={"offsets": "exact"})

    def step() -> None:
        campaign.pause()
        beside = not campaign.inline and campaign.chance.random() < 0.5
        (late_beside_another_run if beside else late_in_its_own_run)(campaign, FILL_POINTS)
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

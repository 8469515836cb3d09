"""Source brokers that answer late: an answer comes after the next question was asked, of this broker or of the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, without_spark
from tests.faults.report import CampaignReport
from tests.faults.sides import QUICK, Side
from tests.support.proxy import FETCH, LIST_OFFSETS, METADATA, Harm, Rule
from tests.support.proxy_cluster import proxied_cluster

FIRE_SECONDS = 4.0
LONGEST_DELAY = 2.6
"""Shorter than the engine's request timeout in campaigns: late, and yet an answer."""
APIS = (FETCH, FETCH, FETCH, FETCH, LIST_OFFSETS, METADATA)
MOST = 6
MOVE_SHARE = 0.2


def test_late_answers(plan: Callable[[str], CampaignReport], own_clusters: Callable[[LocalCluster], None], tmp_path: Path) -> None:
    report = plan("answers")
    source, target = (proxied_cluster(tmp_path / "kafka" / name, seed=report.seed, config=QUICK) for name in "ab")
    own_clusters(source.cluster)
    own_clusters(target.cluster)
    campaign = Campaign(
        report, tmp_path / "mirror", source.direct, target.direct, via=(source.via, target.via), engine=without_spark(report.seed)
    )
    side, chance = Side("source", source.cluster), campaign.chance

    def step() -> None:
        """Some answers of one broker, or of any, are late; now and then the leaders have moved before they come."""
        campaign.running()
        campaign.pause()
        rules = chance.choice((source.proxy.rules, *(proxy.rules for proxy in source.proxy.each)))
        armed = [
            rules.arm(Rule(Harm.DELAY_RESPONSE, chance.choice(APIS), chance.randrange(3), chance.uniform(0.2, LONGEST_DELAY)))
            for _ in range(chance.randint(1, MOST))
        ]
        if chance.random() < MOVE_SHARE:
            side.move_leaders([stream.topic for stream in campaign.load.streams], chance.randint(1, 2))
        deadline = time.monotonic() + FIRE_SECONDS
        late = [rule for rule in armed if rule.fired.wait(max(0.0, deadline - time.monotonic())) or not rules.disarm(rule)]
        if late:
            report.fault("source late", "; ".join(str(rule) for rule in late))
        campaign.moving()

    campaign.drive(step)

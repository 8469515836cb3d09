"""``kill -9`` of workers, JVM, driver and the whole tree, at random moments and at every named crash point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.crash_points import POINTS
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import INLINE, Campaign, with_spark
from tests.faults.kills import KILLS, crash_at
from tests.faults.report import CampaignReport

SMALL_BUFFER = {"max_bytes": "8MB", "retention": "1s"}
"""Small, so that maintenance runs all the time and is killed in the middle, too."""


def kinds(campaign: Campaign) -> list[str]:
    """What to do, in random order: about six in ten are kills of workers, every crash point comes once."""
    wanted = campaign.report.wanted
    points = [f"point {name}" for name in POINTS] if wanted >= 60 else [f"point {n}" for n in campaign.chance.sample(POINTS, wanted // 7)]
    rest = wanted - 2 * len(points)
    others = ["driver"] * (rest // 12) + ["jvm"] * (rest // 12) + ["daemon"] * (rest // 30) + ["tree"] * (rest // 8)
    chosen = points + others + ["worker"] * (rest - len(others))
    campaign.chance.shuffle(chosen)
    return chosen


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

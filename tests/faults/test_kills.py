"""``kill -9`` of workers, JVM, driver and the whole tree, at random moments and at every named crash point; hosts of other clocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.crash_points import POINTS
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import INLINE, Campaign, with_spark, without_spark
from tests.faults.kills import KILLS, crash_at
from tests.faults.report import CampaignReport
from tests.support.hosts import other_clock
from tests.support.mirrors import add_partitions, create_topic, produce

SMALL_BUFFER = {"max_bytes": "8MB", "retention": "1s"}
"""Small, so that maintenance runs all the time and is killed in the middle, too."""

CLOCKS = (7200.0, 0.0, -7200.0)


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


def test_runs_on_hosts_with_other_clocks(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    """Two hours fast, right, two hours slow; meanwhile a topic gets one partition after the other."""
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    report = plan("clocks")
    campaign = Campaign(report, tmp_path, source, target, buffer=SMALL_BUFFER, engine=without_spark(report.seed))
    topic, partitions, ahead = "load-late-wide", 1, 0.0
    create_topic(source, topic)
    produce(source, topic, 50)
    campaign.late.append(topic)

    def next_host() -> None:
        nonlocal partitions, ahead
        partitions += 1
        add_partitions(source, topic, partitions)
        produce(source, topic, 50, partitions=partitions, start=50 * partitions)
        ahead = campaign.chance.choice([clock for clock in CLOCKS if clock != ahead])
        campaign.extra = other_clock(tmp_path, ahead)
        report.say(f"the next run's clock is {ahead:+.0f} s ahead")

    points = campaign.chance.sample(POINTS, min(len(POINTS), report.wanted // 2))
    todo = [f"point {name}" for name in points] + ["driver"] * (report.wanted // 4)
    campaign.chance.shuffle(todo)
    run(campaign, todo, "tree", next_host)


def run(campaign: Campaign, todo: list[str], rest: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Do what is to do, then ``rest`` until there are enough faults; ``meanwhile`` comes before the run that follows."""

    def step() -> None:
        kind = todo.pop() if todo else rest
        campaign.pause()
        if kind.startswith("point "):
            crash_at(campaign, kind.removeprefix("point "))
        else:
            KILLS[kind](campaign)
        meanwhile()
        campaign.moving()

    campaign.drive(step)

"""The object store that holds the buffer is killed, started again and paused, also while the mirror dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.campaign import LEASE_SECONDS, Campaign, without_spark
from tests.faults.report import CampaignReport
from tests.support.kafka_source import ClusterPair
from tests.support.object_store import BUCKET, ObjectStore

LONGEST = LEASE_SECONDS + 3
"""Half of the pauses outlast the lease."""


class Store:
    """The faults of this campaign."""

    def __init__(self, campaign: Campaign, store: ObjectStore) -> None:
        self.campaign, self.store = campaign, store
        self.chance = campaign.chance

    def step(self) -> None:
        """One fault; one in five with the mirror's death in it."""
        self.chance.choice((self.killed, self.killed, self.paused, self.paused, self.both))()

    def killed(self) -> None:
        """Its connections break in the middle of a transfer, then its port is closed."""
        seconds = self.chance.choice((0.0, self.chance.uniform(0, LONGEST)))
        self.store.kill()
        time.sleep(seconds)
        self.store.start()
        self.campaign.report.fault("store kill", f"unreachable for {seconds:.1f} s")

    def paused(self) -> None:
        """It takes requests, and answers them later."""
        seconds = self.chance.uniform(0.3, LONGEST)
        assert self.store.process is not None
        os.kill(self.store.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.store.process.pid, signal.SIGCONT)
        self.campaign.report.fault("store pause", f"{seconds:.1f} s")

    def both(self) -> None:
        """The mirror dies while the store is unreachable; the next run reports that, or finds it again."""
        child = self.campaign.running()
        self.store.kill()
        self.campaign.pause()
        self.campaign.blame()
        child.kill_tree()
        self.campaign.start()
        self.campaign.blame()
        seconds = self.chance.uniform(0, LONGEST)
        time.sleep(seconds)
        self.store.start()
        self.campaign.report.fault("store and mirror kill", f"store unreachable for {seconds:.1f} s more")


def test_object_stores(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., ClusterPair], object_store: ObjectStore, tmp_path: Path
) -> None:
    report = plan("stores")
    source, target = cluster_factory(names=["a", "b"])
    campaign = Campaign(
        report, tmp_path / "mirror", source.bootstrap_servers, target.bootstrap_servers,
        buffer={"uri": f"s3://{BUCKET}/buffer", "lease": f"{LEASE_SECONDS:.0f}s"}, engine=without_spark(report.seed),
    )  # fmt: skip
    store = Store(campaign, object_store)

    def step() -> None:
        campaign.running()
        campaign.pause()
        store.step()
        campaign.moving()

    campaign.drive(step)
    assert not report.ends, f"an unreachable store must not end a run:\n{report.ends}"

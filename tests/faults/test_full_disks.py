"""The buffer's disk and the target broker's disk run full and are freed again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mirror_pipeline.local.embedded.cluster import write_state
from mirror_pipeline.local.embedded.settings import ClusterSpec, kafka_uuid
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, without_spark
from tests.faults.child import wait_for
from tests.faults.disks import SmallDisk, fill_buffer, small_disk, why_not
from tests.faults.report import CampaignReport

BUFFER = "64m"
LOG_DIR = "512m"
SMALL_BUFFER = {"max_bytes": "24MB", "retention": "5s"}
HALT_SECONDS = 20.0


def fill_target(campaign: Campaign, disk: SmallDisk, target: LocalCluster) -> None:
    """The broker ends itself when its only log folder fails; it is started again once there is space."""
    taken = disk.fill()
    deadline = time.monotonic() + HALT_SECONDS
    while target.alive and time.monotonic() < deadline:
        time.sleep(0.1)
    halted = not target.alive
    target.kill()
    disk.free()
    end = "ended itself" if halted else "kept running and was killed"
    campaign.report.fault("target full", f"{taken >> 10} KiB taken, the broker {end}")
    target.start()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_full_disks(
    plan: Callable[[str], CampaignReport], own_clusters: Callable[[LocalCluster], None],
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path,
) -> None:  # fmt: skip
    report = plan("disks")
    (source,) = cluster_factory(names=["a"], brokers=3)
    with ExitStack() as mounted:
        folder = tmp_path / "kafka" / "b"
        log_dir = mounted.enter_context(small_disk(folder / "broker-1" / "data", LOG_DIR))
        buffer = mounted.enter_context(small_disk(tmp_path / "mirror" / "buffer", BUFFER))
        # A target of one broker: its full disk ends it, and with it the only log of every partition.
        write_state(folder, ClusterSpec(heap="256m", config={"log.index.size.max.bytes": "65536"}), kafka_uuid(), [])
        target = LocalCluster(folder)
        own_clusters(target)
        target.start()
        campaign = Campaign(
            report, tmp_path / "mirror", source.bootstrap_servers, target.bootstrap_servers,
            buffer=SMALL_BUFFER, engine=without_spark(report.seed),
        )  # fmt: skip

        def step() -> None:
            campaign.pause()
            if campaign.chance.random() < 0.75:
                fill_buffer(campaign, buffer)
            else:
                fill_target(campaign, log_dir, target)
            campaign.moving()

        try:
            campaign.drive(step)
        finally:
            target.kill()
            wait_for("the target to end", lambda: not target.alive, HALT_SECONDS)

"""Run workers of Dagster under ``mirror up`` are killed, alone or with everything else; the sensor starts the lane again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign
from tests.faults.child import MirrorChild, send_signal, wait_for
from tests.faults.report import CampaignReport
from tests.support.dagster_page import Up, end, family, start

KILLS_OF_A_LIFE = 2
"""Dagster's sensor waits 30 s after one failure and doubles that with each: after two kills a new ``mirror up`` takes over."""
WORKER_SECONDS = 200.0
GONE_SECONDS = 120.0


class DagsterCampaign(Campaign):
    """The mirror is a lane of ``mirror up`` here."""

    up: Up | None = None

    def start(self, **extra: str) -> MirrorChild:
        """A new ``mirror up``, with its own instance, which has no failures on record."""
        shutil.rmtree(self.folder / ".mirror", ignore_errors=True)
        self.up = start(self.config, self.source, self.target)
        self.report.runs += 1
        return None  # type: ignore[return-value]

    def running(self) -> Any:
        """``mirror up`` restarts lanes; nothing restarts ``mirror up``."""
        if self.up is None or self.up.process.poll() is not None:
            self.start()

    def worker(self) -> int:
        """The process that runs the lane now."""
        found: list[int] = []

        def there() -> bool:
            stores = self.mirror.flow.lane_stores()
            file = read_lane_file(stores[0]) if stores else None
            found[:] = [file.pid] if file is not None and file.pid is not None and file.state == "running" and self.up else []
            return bool(found) and self.up is not None and found[0] in family(self.up)

        wait_for("a lane to run", there, WORKER_SECONDS)
        return found[0]

    def end_up(self, *, gently: bool) -> None:
        """End ``mirror up`` and all it has started."""
        if self.up is None:
            return
        if gently:
            end(self.up)
        up = self.up
        stopped: set[int] = set()
        while new := (family(up) | ({up.process.pid} if up.process.poll() is None else set())) - stopped:
            for pid in new:
                send_signal(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            send_signal(pid, signal.SIGKILL)
        up.process.wait(30)
        wait_for("all processes to be gone", lambda: not family(up), GONE_SECONDS)
        self.up = None

    def _end_run(self) -> None:
        self.end_up(gently=True)


def test_dagster_kills(plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    source, target = (cluster.bootstrap_servers for cluster in cluster_factory(2))
    campaign = DagsterCampaign(plan("dagster"), tmp_path, source, target)
    kills = 0

    def step() -> None:
        nonlocal kills
        pid = campaign.worker()
        campaign.pause(2)
        kills += 1
        if kills % KILLS_OF_A_LIFE:
            os.kill(pid, signal.SIGKILL)
            campaign.report.fault("run worker", f"pid {pid}")
        else:
            campaign.end_up(gently=False)
            campaign.report.fault("mirror up", f"with its run worker {pid}")
        campaign.moving(WORKER_SECONDS)

    try:
        campaign.drive(step)
    finally:
        campaign.end_up(gently=False)

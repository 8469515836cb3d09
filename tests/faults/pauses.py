"""SIGSTOP and SIGCONT: processes of a mirror, or brokers, that hang for a while; leaders that move meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import LEASE_SECONDS, Campaign
from tests.faults.child import send_signal
from tests.faults.sides import Side


def pause_processes(campaign: Campaign) -> None:
    """A worker, all workers, the driver or the JVM hang for a while, mostly shorter than the lease."""
    child = campaign.running()
    who = "driver" if campaign.inline else campaign.chance.choice(("worker", "worker", "worker", "workers", "driver", "jvm"))
    worker = child.a_worker(campaign.chance, campaign.ports)
    all_of_them: dict[str, Sequence[int | None]] = {
        "worker": [worker], "workers": child.workers(), "driver": [child.pid], "jvm": [child.jvm()],
    }  # fmt: skip
    seconds = campaign.chance.uniform(0.1, 3.0) if campaign.chance.random() < 0.75 else campaign.chance.uniform(LEASE_SECONDS, 7.0)
    chosen = [pid for pid in all_of_them[who] if pid is not None and send_signal(pid, signal.SIGSTOP)]
    if not chosen:
        return
    time.sleep(seconds)
    for pid in chosen:
        send_signal(pid, signal.SIGCONT)
    campaign.report.fault(f"pause {who}", f"{seconds:.1f} s, {len(chosen)} processes")


def pause_brokers(campaign: Campaign, side: str, cluster: LocalCluster, node: int | None, seconds: float) -> None:
    """One broker of a cluster hangs, or all of them."""
    cluster.pause(node=node)
    time.sleep(seconds)
    cluster.resume(node=node)
    campaign.report.fault(f"{side} pause", f"{f'broker {node}' if node else 'all brokers'} for {seconds:.1f} s")


def move_leaders(campaign: Campaign, side: Side) -> None:
    """Leaders of all topics of the load move."""
    prefix = "" if side.name == "source" else "east."
    moved, refusal = side.move_leaders([prefix + stream.topic for stream in campaign.load.streams], campaign.chance.randint(1, 2))
    if refusal:
        campaign.report.note(f"leaders do not move: {refusal}")
    else:
        campaign.report.fault(f"{side.name} leaders move", f"{moved} partitions")

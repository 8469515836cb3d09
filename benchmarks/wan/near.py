"""The near end of the link, run inside its namespace: the target cluster, both tools in alternation, the measurement.

    python -m benchmarks.wan.near TASK.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import machine, results, table
from benchmarks.rounds import Place, RoundFailed, copy_round
from benchmarks.sides import Side
from benchmarks.versus import say, sides
from benchmarks.wan.far import PLAIN_ADDRESS, TLS_ADDRESS, WORKLOADS
from benchmarks.workloads import chosen
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.local.embedded.cluster import LocalCluster
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters

WARMERS = 2
"""Sides that copy once before anything is measured."""


def measure(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """All rounds over the link that is up."""
    (workload,) = chosen([task["workload"]], WORKLOADS)
    source = LocalCluster(folder / "source")
    (target,) = start_clusters(
        folder, names=["target"], heap=machine.BROKER_HEAP, jvm_options=(machine.SERVER_JIT,), config=machine.BROKER_CONFIG
    )
    try:
        assert source.pid and target.pid
        place = Place(
            TLS_ADDRESS if task["tls"] else PLAIN_ADDRESS, target.bootstrap_servers, source.pid, target.pid, source.brokers[0].data,
            folder / "rounds", folder / "ca.pem" if task["tls"] else None, workload.partitions,
            source_plain=PLAIN_ADDRESS,
        )  # fmt: skip
        entry: dict[str, Any] = {"workload": workload.facts(), "scale": task["scale"], "rounds": []}
        entry["log_bytes"] = place.size(workload.names)
        chosen_sides = sides(task["sides"], task["inline_bytes"])
        for side in chosen_sides[:WARMERS]:  # a broker's first copies cost it several times the CPU of later ones
            _try(place, side, workload, f"warm{side.name[0]}", task["seconds"])
        for number in range(task["rounds"]):
            turn = number % len(chosen_sides)
            for side in [*chosen_sides[turn:], *chosen_sides[:turn]]:
                found = _try(place, side, workload, f"r{number + 1}{side.name[0]}", task["seconds"])
                entry["rounds"].append({**found, "round": number + 1})
        return results.finished(entry)
    finally:
        stop_clusters(folder, "target")


def _try(place: Place, side: Side, workload: Any, tag: str, seconds: float) -> dict[str, Any]:
    begin = time.monotonic()
    try:
        found = copy_round(place, side, workload, tag, at_most=seconds)
    except (RoundFailed, MirrorError, ValueError, psutil.Error) as problem:
        found = {"side": side.name, "failed": str(problem)}
    say(f"{workload.name}: {side.title}: {table.one_line('bulk', found)} ({time.monotonic() - begin:.0f} s)")
    return found


def main(task: Path, result: Path) -> None:
    """Read what to do, write what came out."""
    result.write_text(json.dumps(measure(json.loads(task.read_text()), task.parent)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

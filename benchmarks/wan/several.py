"""One topic from each of three clusters that hold it, and from all of them (``sources``), over links of 20, 100 and 200 ms.

    python -m benchmarks.wan.several                     2 GB; three clusters at 1 Gbit/s, 40 MB/s from each; about 8 minutes
    python -m benchmarks.wan.several --limit 30MB --gigabytes 1

The target and the mirror are beside none of them. Prints a JSON line for each round: the rate from the first record to the last, the
bytes by source, and the ratio to the best cluster alone. In the last round one of them is killed and one is paused in the middle.
Needs root (network namespaces), gcc and iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.measure import Ends as LogEnds
from benchmarks.wan.far import PORTS, WORKLOADS
from benchmarks.wan.link import Line, links
from mirror_pipeline.children import default_signals
from mirror_pipeline.local.embedded.cluster import LocalCluster
from mirror_pipeline.local.embedded.settings import BROKER
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters

ROOT = Path(__file__).parents[2]
ROUND_TRIPS = {"east": 20.0, "north": 100.0, "west": 200.0}
WORKLOAD = WORKLOADS[0]
LOOK_SECONDS = 0.25
STEP = 4  # looks in a second


def config_of(folder: Path, addresses: dict[str, str], tag: str, source: str, sources: Sequence[str], target: str, limit: str) -> Path:
    """A mirror.yaml of one exact mirror; each tag has target topics and a buffer of its own."""
    mirror: dict[str, Any] = {"name": "bench", "source": source, "target": target, "topics": {"include": [WORKLOAD.names[0]]}}
    mirror |= {"offsets": "exact", "naming": f"{tag}.{{topic}}" if tag else "identity", "sources": list(sources)}
    body = {
        "clusters": {alias: {"bootstrap_servers": address} for alias, address in addresses.items()},
        "buffer": {"uri": str(folder / f"buffer-{source}-{target}-{tag}")},
        "mirrors": [mirror],
        **({"engine": {"bandwidth": limit}} if limit else {}),
    }
    path = folder / f"mirror-{source}-{target}-{tag}.yaml"
    path.write_text(json.dumps(body))
    return path


def same_logs(source: LocalCluster, copies: Sequence[LocalCluster]) -> None:
    """Let stopped clusters hold what another one holds, offset by offset, each under its own cluster id."""
    for copy in copies:
        data = copy.brokers[0].data
        own = [line for line in (data / "meta.properties").read_text().splitlines() if line.startswith("cluster.id=")]
        shutil.rmtree(data)
        shutil.copytree(source.brokers[0].data, data)
        lines = [line for line in (data / "meta.properties").read_text().splitlines() if not line.startswith("cluster.id=")]
        (data / "meta.properties").write_text("\n".join([*lines, *own, ""]))


def run(config: Path) -> subprocess.Popen[bytes]:
    """``mirror run --once``."""
    command = [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(config), "run", "--once", "--json"]
    out, log = config.with_suffix(".json").open("wb"), config.with_suffix(".log").open("wb")
    with out, log:
        return subprocess.Popen(command, cwd=config.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=log, preexec_fn=default_signals)


def watched(config: Path, target: str, topic: str, total: int, at_half: Callable[[], None] | None) -> dict[str, Any]:
    """Run a copy, and see how fast its target grows: MB/s in all, and in the second half from ten seconds after its begin."""
    process, ends = run(config), LogEnds(target, [topic])
    looks: list[tuple[float, int]] = []
    half = 0.0
    try:
        while process.poll() is None:
            seen = sum(ends.read().values())
            looks.append((time.monotonic(), seen))
            if not half and seen >= total / 2:
                half = time.monotonic()
                if at_half is not None:
                    at_half()
            time.sleep(LOOK_SECONDS)
    finally:
        process.kill()
        ends.close()
    (found,) = json.loads(config.with_suffix(".json").read_text() or "{}")["mirrors"]
    first = next(at for at, seen in looks if seen)
    last, end = next((at, seen) for at, seen in looks if seen == looks[-1][1])
    each = WORKLOAD.record_bytes / 1e6
    later = next(((at, seen) for at, seen in looks if half and at > half + 10), (last, end))
    report = {"state": found["state"], "records": found["records"], "mb_per_s": end * each / (last - first)}
    report["by_second"] = [
        round((after - before) * each / (then - at), 1)
        for (at, before), (then, after) in zip(looks[::STEP], looks[STEP::STEP], strict=False) if after > before
    ]  # fmt: skip
    report |= {"later_mb_per_s": (end - later[1]) * each / (last - later[0]) if last > later[0] else None}
    reasons = [row["reason"] for row in found["topics"] if row["reason"]]
    return {**report, "copied": found["copied"], "left_out": found["left_out"], "reasons": reasons}


def near(folder: Path, task: dict[str, Any]) -> None:
    """Inside the near namespace: the rounds."""
    machine.touch_memory()
    (target,) = start_clusters(
        folder, names=["target"], heap=machine.BROKER_HEAP, jvm_options=(machine.SERVER_JIT,), config=machine.BROKER_CONFIG
    )
    addresses = {**task["addresses"], "home": target.bootstrap_servers}
    ends = LogEnds(addresses["east"], WORKLOAD.names)
    total = sum(ends.read().values())
    ends.close()
    try:
        best = 0.0
        alone = {f"{name} alone": (name, list[str]()) for name in ROUND_TRIPS}
        three = "east", [name for name in ROUND_TRIPS if name != "east"]
        for number, (what, (source, sources)) in enumerate((alone | {"three": three, "three, one killed and one paused": three}).items()):
            tag = f"r{number}"
            at_half = (lambda: _trouble(folder)) if "killed" in what else None
            config = config_of(folder, addresses, tag, source, sources, "home", task["limit"])
            found = watched(config, target.bootstrap_servers, f"{tag}.{WORKLOAD.names[0]}", total, at_half)
            best = best if sources else max(best, found["mb_per_s"])
            found |= {"complete": found["records"] == total, "ratio": found["mb_per_s"] / best}
            print(json.dumps({"round": what, **found}), flush=True)
    finally:
        stop_clusters(folder, "target")


def _trouble(folder: Path) -> None:
    for name, what in (("north", signal.SIGKILL), ("west", signal.SIGSTOP)):
        pid = LocalCluster(folder / name).pid
        assert pid
        os.kill(pid, what)


def main(given: Sequence[str] | None = None) -> int:
    """Links, clusters, fill, rounds."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.wan.several", description=__doc__, formatter_class=shape)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--limit", default="40MB", help="a second, from each cluster")
    parser.add_argument("--bits-per-second", type=float, default=1e9)
    parser.add_argument("--task", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.task:
        near(options.task.parent, json.loads(options.task.read_text()))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="mirror-several-"))
    task = folder / "task.json"
    scale = options.gigabytes * 1e9 / WORKLOAD.total_bytes
    with links([Line(trip, options.bits_per_second) for trip in ROUND_TRIPS.values()]) as ends:
        places = dict(zip(ROUND_TRIPS, ends, strict=True))

        def inside(end: str, *words: str) -> int:
            command = ends[0].command(end, sys.executable, "-m", *words)
            return subprocess.run(command, cwd=ROOT, check=False, stdin=subprocess.DEVNULL).returncode

        try:
            for name, place in places.items():
                if inside(place.far, "benchmarks.wan.far", "start", str(folder), "plain", name, place.far_address):
                    return 1
            inside(places["east"].far, "benchmarks.wan.far", "fill", WORKLOAD.name, str(scale))
            for step in ("stop", "resume"):
                for name, place in places.items():
                    inside(place.far, "benchmarks.wan.far", step, str(folder), name)
                if step == "stop":
                    same_logs(LocalCluster(folder / "east"), [LocalCluster(folder / name) for name in ("north", "west")])
            addresses = {name: f"{place.far_address}:{PORTS[BROKER]}" for name, place in places.items()}
            task.write_text(json.dumps({"addresses": addresses, "scale": scale, "limit": options.limit}))
            return inside(ends[0].near, "benchmarks.wan.several", "--task", str(task))
        finally:
            for name, place in places.items():
                if (pid := LocalCluster(folder / name).pid) is not None:
                    os.kill(pid, signal.SIGCONT)
                inside(place.far, "benchmarks.wan.far", "stop", str(folder), name)
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

"""What a trickle costs: latency, CPU, memory and Delta commits of one lane's run at a low, steady rate.

    python -m benchmarks.trickle                                           # 5 MB/s of 1 KB records, 12 partitions
    python -m benchmarks.trickle --record-bytes 200 --bytes-per-second 30e3 # 150 records a second
    python -m benchmarks.trickle --how run --how up                         # also the run that `mirror up` starts
    python -m benchmarks.trickle --python .venv/bin/python --python ../other/.venv/bin/python   # two installations, in turn

Starts two clusters of one broker each, and in each round ``mirror run``, ``mirror up`` or both of every installation. Prints one JSON
line for each: percentiles in milliseconds, the share of a core, the same as CPU of one micro-batch in milliseconds (other programs change
that least), memory of the run's processes at the end (``uss``: their own pages; ``pss``: with their part of shared ones), commits an hour
of each Delta table, and log files at the end. Of ``mirror up`` the process of the lane's run counts, with all that it started; web
server, daemon and code server do not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from benchmarks import latency
from benchmarks.machine import BROKER_CONFIG, SERVER_JIT
from benchmarks.measure import Ends
from benchmarks.mirror_yaml import write_mirror_yaml
from benchmarks.sides import Launched
from benchmarks.workloads import Workload, fill
from mirror_pipeline.children import default_signals
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters

HEAP = "512m"
# `mirror up` starts four processes, and its sensor looks every ten seconds.
START_SECONDS = 180.0
COMMANDS = {"run": ("run", "--json"), "up": ("up", "--port", "0")}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.trickle", description=__doc__, formatter_class=plain)
    parser.add_argument("--record-bytes", type=int, default=1_000)
    parser.add_argument("--bytes-per-second", type=float, default=5e6)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, after ten seconds of warming up")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--how", action="append", default=[], choices=COMMANDS, help="how the lane's run is started; default: run")
    parser.add_argument("--engine", type=json.loads, default={}, metavar="JSON", help='as {"poll_interval": "1s"}')
    parser.add_argument("--python", action="append", default=[], help="interpreter of an installation; repeat to compare several")
    return parser.parse_args(given)


def launch(python: str, config: Path, folder: Path, how: str) -> Launched:
    """Start ``mirror run`` or ``mirror up`` of one installation."""
    command = [os.path.abspath(python), "-m", "mirror_pipeline.cli", "-c", str(config), *COMMANDS[how]]
    with (folder / "stdout.json").open("wb") as out, (folder / "stderr.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True, preexec_fn=default_signals
        )
    return Launched(process, {}, folder / "stderr.log")


def log_state(buffer: Path) -> dict[str, tuple[int, int]]:
    """Newest version and number of files of each Delta log, by table."""
    found: dict[str, tuple[int, int]] = {}
    for log in buffer.glob("*/*/*/_delta_log"):
        names = [path.name for path in log.iterdir()]
        versions = [int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit()]
        found[log.parent.name] = (max(versions, default=0), len(names))
    return found


def lane_process(buffer: Path) -> psutil.Process:
    """The process that runs the buffer's only lane, by the lane's status file."""
    (status,) = buffer.glob("*/*/status.json")
    return psutil.Process(json.loads(status.read_text())["pid"])


def memory(root: psutil.Process) -> dict[str, int]:
    """Memory of a process and its descendants, in megabytes."""
    infos = [process.memory_full_info() for process in (root, *root.children(recursive=True))]
    return {f"{kind}_mb": round(sum(getattr(info, kind) for info in infos) / 1e6) for kind in ("uss", "pss", "rss")}


def one_round(
    options: argparse.Namespace, python: str, how: str, addresses: tuple[str, str], folder: Path, tag: str
) -> dict[str, Any]:
    """Run one installation in one way and measure it."""
    workload = Workload(
        f"trickle-{tag}", "latency", options.record_bytes, partitions=options.partitions,
        seconds=options.seconds, rate_bytes=int(options.bytes_per_second),
    )  # fmt: skip
    topic = workload.names[0]
    fill(addresses[0], workload, 1.0)
    folder.mkdir()
    config = write_mirror_yaml(folder, addresses, topic, naming="copy.{topic}", engine=options.engine)
    running = launch(python, config, folder, how)
    try:
        latency.prime(addresses[0], topic, workload)
        _wait(addresses[1], f"copy.{topic}", workload.partitions)
        lane = lane_process(folder / "buffer")
        before, began = log_state(folder / "buffer"), time.monotonic()
        figures = latency.measure(addresses[0], topic, addresses[1], f"copy.{topic}", workload, lane)
        after, seconds = log_state(folder / "buffer"), time.monotonic() - began
        per_hour = {name: round((after[name][0] - before.get(name, (0, 0))[0]) * 3600 / seconds) for name in after}
        used = memory(lane)
        figures["micro_batch_cpu_ms"] = figures.get("cpu_share", 0.0) * 3_600_000 / max(1, per_hour["spans"])
    finally:
        code = running.end()
    rounded = {key: round(value, 3) for key, value in figures.items()}
    return {
        "python": python, "how": how, "bytes_per_second": workload.rate_bytes, "record_bytes": workload.record_bytes, **rounded, **used,
        "commits_per_hour": per_hour, "log_files": {name: count for name, (_, count) in after.items()}, "exit": code,
        "errors": running.errors(),
    }  # fmt: skip


def _wait(bootstrap: str, topic: str, records: int) -> None:
    ends, deadline = Ends(bootstrap, [topic]), time.monotonic() + START_SECONDS
    try:
        while sum(ends.read().values()) < records:
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing arrived within {START_SECONDS:.0f} s")
            time.sleep(0.2)
    finally:
        ends.close()


def main() -> None:
    """Start the clusters, run the rounds, stop the clusters."""
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="mirror-trickle-"))
    clusters = start_clusters(folder, names=["source", "target"], heap=HEAP, jvm_options=(SERVER_JIT,), config=BROKER_CONFIG)
    addresses = (clusters[0].bootstrap_servers, clusters[1].bootstrap_servers)
    try:
        for number in range(options.rounds):
            for index, (python, how) in enumerate(product(options.python or [sys.executable], options.how or ["run"])):
                tag = f"{number}-{index}"
                print(json.dumps(one_round(options, python, how, addresses, folder / tag, tag)), flush=True)
    finally:
        stop_clusters(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Peak memory of a copy: one topic, one `mirror run --once`, sampled every 50 ms.

    python -m benchmarks.memory_peak --record-bytes 900000 --partitions 12
    sudo .venv/bin/python -m benchmarks.memory_peak --record-bytes 900000 --round-trip-ms 200       # over an emulated long link

Prints one JSON line: the peak of anonymous memory (``RssAnon``: the process's own pages, without mapped files), the
seconds of the copy, and whether every record has arrived.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import BROKER_CONFIG, SERVER_JIT
from benchmarks.mirror_yaml import write_mirror_yaml
from benchmarks.wan.far import PLAIN_ADDRESS
from benchmarks.wan.link import Line, link
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.embedded.cluster import LocalCluster
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.model import TopicPartition

ROOT = Path(__file__).parents[1]
TOPIC, TAG = "memory", "copy"
SAMPLE_SECONDS = 0.05
HEAP = "512m"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.memory_peak", description=__doc__, formatter_class=plain)
    parser.add_argument("--record-bytes", type=int, default=900_000)
    parser.add_argument("--batch-bytes", type=int, default=16_384, help="a larger record is a batch of its own")
    parser.add_argument("--bytes", type=float, default=1.5e9, dest="total", help="of the whole topic")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--round-trip-ms", type=float, default=0.0, help="over an emulated link; 0: on this machine's loopback")
    parser.add_argument("--bits-per-second", type=float, default=1e9)
    parser.add_argument("--engine", type=json.loads, default={}, metavar="JSON", help='as {"connections": 32}')
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--step", choices=["fill", "copy"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def fill(options: argparse.Namespace) -> None:
    """Fill the source topic."""
    batch = max(options.batch_bytes, options.record_bytes)
    records = fill_bulk(options.source, TOPIC, options.partitions, int(options.total), options.record_bytes, batch)
    (options.folder / "records").write_text(str(records))


def copy(options: argparse.Namespace) -> None:
    """Start a target, copy into it ``rounds`` times."""
    folder = options.folder
    config = {**BROKER_CONFIG, "message.max.bytes": str(max(1_048_588, 2 * options.record_bytes))}
    (target,) = start_clusters(folder, names=["target"], heap=HEAP, jvm_options=(SERVER_JIT,), config=config)
    try:
        for number in range(options.rounds):
            print(json.dumps(_round(options, target.bootstrap_servers, f"{TAG}{number}")), flush=True)
    finally:
        stop_clusters(folder, "target")


def _round(options: argparse.Namespace, target: str, tag: str) -> dict[str, Any]:
    place = options.folder / tag
    place.mkdir()
    write_mirror_yaml(place, (options.source, target), TOPIC, naming=tag + ".{topic}", engine=options.engine)
    began, peak = time.monotonic(), 0
    with (place / "out").open("wb") as out:
        command = [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(place / "mirror.yaml"), "run", "--once"]
        process = subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        while process.poll() is None:
            peak = max(peak, _anonymous(process.pid))
            time.sleep(SAMPLE_SECONDS)
    seconds = time.monotonic() - began
    if process.returncode:
        sys.stderr.write((place / "out").read_text()[-2000:])
    shutil.rmtree(place / "buffer", ignore_errors=True)
    return {
        "record_bytes": options.record_bytes, "partitions": options.partitions, "round_trip_ms": options.round_trip_ms,
        "engine": options.engine, "exit": process.returncode, "seconds": round(seconds, 1),
        "mb_per_second": round(options.total / 1e6 / seconds, 1), "peak_anonymous_mb": round(peak / 1e6),
        "complete": _records(target, f"{tag}.{TOPIC}") == int((options.folder / "records").read_text()),
    }  # fmt: skip


def _anonymous(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def _records(bootstrap: str, topic: str) -> int:
    with WireClient(ClusterSettings("target", (bootstrap,))) as client:
        parts = [TopicPartition(topic, number) for number in client.metadata([topic]).topics[topic].partitions]
        return sum(answer.offset for answer in client.list_offsets(dict.fromkeys(parts, LATEST_TIME)).values())


@contextlib.contextmanager
def _clusters(options: argparse.Namespace, folder: Path) -> Iterator[tuple[list[str], list[str], str]]:
    """Command prefixes for the far and the near end, and the source's address."""
    if options.round_trip_ms:
        with link(Line(options.round_trip_ms, options.bits_per_second)) as ends:
            far, near = ends.command(ends.far), ends.command(ends.near)
            _run(far, "benchmarks.wan.far", "start", str(folder))
            try:
                yield far, near, PLAIN_ADDRESS
            finally:
                _run(far, "benchmarks.wan.far", "stop", str(folder))
        return
    start_clusters(folder, names=["source"], heap=HEAP, jvm_options=(SERVER_JIT,), config=BROKER_CONFIG)
    try:
        yield [], [], LocalCluster(folder / "source").bootstrap_servers
    finally:
        stop_clusters(folder, "source")


def _run(prefix: Sequence[str], module: str, *words: str) -> None:
    subprocess.run([*prefix, sys.executable, "-m", module, *words], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)


def main() -> None:
    """Fill at the far end of the link, copy at the near end."""
    options = arguments()
    if options.step:
        (fill if options.step == "fill" else copy)(options)
        return
    folder = Path(tempfile.mkdtemp(prefix="mirror-memory-"))
    try:
        with _clusters(options, folder) as (far, near, source):
            words = [*sys.argv[1:], "--folder", str(folder), "--source", source]
            _run(far, "benchmarks.memory_peak", *words, "--step", "fill")
            _run(near, "benchmarks.memory_peak", *words, "--step", "copy")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

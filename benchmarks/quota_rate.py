"""Copy, verify and measure lag under client quotas (KIP-13), compared with the rate that the quotas allow.

    .venv/bin/python -m benchmarks.quota_rate                                # 0.2 MB/s on the target, 2 MB/s on the source
    .venv/bin/python -m benchmarks.quota_rate --target-rate 0 --connections 32 --megabytes 40     # the source quota only

Prints one JSON line for each number of connections. A ratio of 1 means that the tighter quota limits every byte from the start of
the process to its end. After an idle period a broker admits up to ten seconds' worth at once, hence ratios above 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.mirror_yaml import write_mirror_yaml
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.local.shapes.bulk import fill_bulk
from tests.support.quotas import set_quotas

TOPIC = "quota"
LIMIT_SECONDS = 1800


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.quota_rate", description=__doc__, formatter_class=plain)
    parser.add_argument("--source-rate", type=float, default=2.0, help="MB/s per broker, consumers; 0: no quota")
    parser.add_argument("--target-rate", type=float, default=0.2, help="MB/s per broker, producers and consumers; 0: no quota")
    parser.add_argument("--megabytes", type=float, default=12.0)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32])
    return parser.parse_args(given)


def main() -> None:
    """Fill one source; copy, verify and measure the lag for each number of connections."""
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="mirror-quota-"))
    try:
        source, target = (c.bootstrap_servers for c in start_clusters(folder / "clusters", names=["source", "target"], heap="512m"))
        records = fill_bulk(source, TOPIC, options.partitions, int(options.megabytes * 1e6), options.record_bytes)
        set_quotas(source, {"consumer_byte_rate": options.source_rate * 1e6 or None})
        rate = options.target_rate * 1e6 or None
        set_quotas(target, {"consumer_byte_rate": rate, "producer_byte_rate": rate})
        for connections in options.connections:
            print(json.dumps(_round(options, folder / f"c{connections}", source, target, connections, records)), flush=True)
    finally:
        stop_clusters(folder / "clusters")
        shutil.rmtree(folder, ignore_errors=True)


def _round(options: argparse.Namespace, place: Path, source: str, target: str, connections: int, records: int) -> dict[str, Any]:
    place.mkdir()
    write_mirror_yaml(place, (source, target), TOPIC, name="m", naming=place.name + ".{topic}", engine={"connections": connections})
    quota = min(rate for rate in (options.source_rate, options.target_rate) if rate)
    result: dict[str, Any] = {"connections": connections, "records": records, "quota_mb_per_second": quota}
    for name, words in (("run", ["run", "--once"]), ("verify", ["verify", "--mirror", "m"]), ("lag", ["lag", "--mirror", "m"])):
        began = time.monotonic()
        code = _mirror(place, words)
        seconds = time.monotonic() - began
        result[name] = {"exit": code, "seconds": round(seconds, 1)}
        if name != "lag":
            result[name]["ratio"] = round(options.megabytes / seconds / quota, 2)
    return result


def _mirror(place: Path, words: Sequence[str]) -> int:
    with (place / "out").open("ab") as out:
        command = [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(place / "mirror.yaml"), *words]
        done = subprocess.run(command, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=LIMIT_SECONDS)
    if done.returncode:
        sys.stderr.write((place / "out").read_text()[-2000:])
    return done.returncode


if __name__ == "__main__":
    main()

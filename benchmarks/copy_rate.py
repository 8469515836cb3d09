"""How fast ``mirror run --once`` copies: embedded clusters, fresh topics, medians over rounds.

    .venv/bin/python -m benchmarks.copy_rate --gigabytes 1 --record-bytes 1000 --rounds 3

Prints one line per round and one JSON document. The time is ``seconds`` of ``run --json``: from the start of the copy, with Spark
running, until everything is on the target and in the ledger.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.mirror_yaml import write_mirror_yaml
from mirror_pipeline import Mirror, load_config
from mirror_pipeline.execution.spark import build_session
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.local.shapes.bulk import fill_bulk


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--batch-bytes", type=int, default=16_384)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--micro-batch", default="256MB")
    parser.add_argument("--not-durable", action="store_true", help="without fsync of the buffer")
    return parser.parse_args()


def main() -> None:
    """Run the rounds."""
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="copy-rate-"))
    try:
        clusters = start_clusters(folder / "clusters", 2)
        addresses = (clusters[0].bootstrap_servers, clusters[1].bootstrap_servers)
        engine, buffer = {"micro_batch_bytes": options.micro_batch}, {"durable": not options.not_durable}
        config = write_mirror_yaml(folder, addresses, "bench-.*", engine=engine, buffer=buffer)
        mirror = Mirror(load_config(config), "bench")
        session = build_session(mirror.flow.settings.engine)
        rates = [copy(mirror, session, clusters[0].bootstrap_servers, number, options) for number in range(options.rounds)]
        print(json.dumps({"options": vars(options), "mb_per_second": rates, "median_mb_per_second": statistics.median(rates)}))
    finally:
        stop_clusters(folder / "clusters")
        shutil.rmtree(folder, ignore_errors=True)


def copy(mirror: Mirror, session: object, source: str, number: int, options: argparse.Namespace) -> float:
    """Fill a topic, copy it, return MB/s of log bytes."""
    size = int(options.gigabytes * 1e9)
    topic = f"bench-{number}"
    records = fill_bulk(source, topic, options.partitions, size, options.record_bytes, options.batch_bytes, options.codec)
    report = mirror.run(once=True, session=session)  # type: ignore[arg-type]
    seconds = report.seconds
    if report.state != "ok" or report.records != records:
        raise SystemExit(f"round {number}: {report}")
    rate = report.bytes / seconds / 1e6
    print(f"round {number}: {records:,} records, {report.bytes / 1e6:.0f} MB in {seconds:.2f} s: {rate:.0f} MB/s", file=sys.stderr)
    return rate


if __name__ == "__main__":
    main()

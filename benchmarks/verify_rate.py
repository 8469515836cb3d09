"""The time of a verification compared with that of the copy: embedded clusters, fresh topics, both times and their ratio each round.

    .venv/bin/python -m benchmarks.verify_rate --gigabytes 1 --record-bytes 1000 --rounds 3

The copy's time is that of ``run --json``, the verification's that of ``verify --json``: both start when Spark is
running. With ``--external`` the same topics are also compared without a ledger.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.mirror_yaml import write_mirror_yaml
from mirror_pipeline import Mirror, load_config
from mirror_pipeline.execution.spark import build_session
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.verdicts import VerifyReport
from mirror_pipeline.verify.external import verify_external


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--batch-bytes", type=int, default=16_384)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--external", action="store_true", help="compare without a ledger too")
    return parser.parse_args()


def main() -> None:
    """Run the rounds."""
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="verify-rate-"))
    try:
        clusters = start_clusters(folder / "clusters", 2)
        addresses = (clusters[0].bootstrap_servers, clusters[1].bootstrap_servers)
        config = write_mirror_yaml(folder, addresses, "bench-.*")
        mirror = Mirror(load_config(config), "bench")
        session = build_session(mirror.flow.settings.engine)
        rounds = [one_round(mirror, session, clusters[0].bootstrap_servers, number, options) for number in range(options.rounds)]
        medians = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
        print(json.dumps({"options": vars(options), "rounds": rounds, "medians": medians}))
    finally:
        stop_clusters(folder / "clusters")
        shutil.rmtree(folder, ignore_errors=True)


def one_round(mirror: Mirror, session: Any, source: str, number: int, options: argparse.Namespace) -> dict[str, float]:
    """Fill a topic, copy it, verify it."""
    topic = f"bench-{number}"
    records = fill_bulk(
        source, topic, options.partitions, int(options.gigabytes * 1e9), options.record_bytes, options.batch_bytes, options.codec
    )
    copied = mirror.run(once=True, session=session)
    if copied.state != "ok" or copied.records != records:
        raise SystemExit(f"round {number}: {copied}")
    report = sound(mirror.verify(topics=[topic], session=session), records)
    row = {"copy_seconds": copied.seconds, "verify_seconds": report.seconds, "ratio": report.seconds / copied.seconds}
    if options.external:
        names = (mirror.flow.settings.source, mirror.flow.settings.target)
        outside = sound(verify_external(mirror.flow.config, *names, {topic: f"{names[0]}.{topic}"}, session=session), records)
        row["external_seconds"] = outside.seconds
    facts = ", ".join(f"{name} {value:.2f}" for name, value in row.items())
    print(f"round {number}: {records:,} records, {report.bytes / 1e6:.0f} MB on each side: {facts}", file=sys.stderr)
    return row


def sound(report: VerifyReport, records: int) -> VerifyReport:
    """The report itself if it covers every record and has no difference; otherwise exit."""
    if not report.ok or report.records != records:
        raise SystemExit(f"{report.records} of {records} records, {report.differences[:3]}")
    return report


if __name__ == "__main__":
    main()

"""What `offsets: exact` costs: the rate of `mirror run --once` with exact over that with translated offsets.

    .venv/bin/python -m benchmarks.exact_rate                              # 1 GB plain, transactions of 1000, 100 and 10 records
    .venv/bin/python -m benchmarks.exact_rate --only plain --rounds 5

Both sides copy the same topic in turn, each into topics of its own. Prints a JSON line for each shape: MB/s of each round, the medians and
their ratio. Each transaction writes to one partition, so that there is a marker to fill for each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.mirror_yaml import write_mirror_yaml
from mirror_pipeline import Mirror, load_config
from mirror_pipeline.execution.spark import build_session
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.local.shapes.bulk import fill_bulk
from tests.support.mirrors import create_topic

RECORD_BYTES, PARTITIONS = 1000, 12
PLAIN = "plain"
MEGABYTES = {PLAIN: 1000, "1000": 400, "100": 200, "10": 20}
MODES = ("translated", "exact")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.exact_rate", description=__doc__, formatter_class=plain)
    parser.add_argument("--only", default=",".join(MEGABYTES), metavar="SHAPE,...", help="plain, or records of a transaction")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(given)


def main() -> None:
    """Fill the source, then copy in turn."""
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="exact-rate-"))
    try:
        source, target = (c.bootstrap_servers for c in start_clusters(folder / "clusters", names=["source", "target"]))
        session = None
        for shape in options.only.split(","):
            topic = f"bench-{shape}"
            _fill(source, topic, shape)
            rates: dict[str, list[float]] = {mode: [] for mode in MODES}
            for number in range(options.rounds):
                for mode in MODES if number % 2 else reversed(MODES):
                    place = folder / f"{shape}-{mode}-{number}"
                    place.mkdir()
                    naming = f"{mode}-{number}.{{topic}}"
                    path = write_mirror_yaml(place, (source, target), topic, naming=naming, offsets=mode)
                    mirror = Mirror(load_config(path), "bench")
                    session = session or build_session(mirror.flow.settings.engine)
                    report = mirror.run(once=True, session=session)
                    if report.state != "ok":
                        raise SystemExit(f"{shape} {mode}: {report}")
                    rates[mode].append(round(report.bytes / report.seconds / 1e6, 1))
                    shutil.rmtree(place)
            medians = {mode: statistics.median(rates[mode]) for mode in MODES}
            ratio = round(medians["exact"] / medians["translated"], 3)
            print(json.dumps({"shape": shape, "mb_per_second": rates, **medians, "ratio": ratio}), flush=True)
    finally:
        stop_clusters(folder / "clusters")
        shutil.rmtree(folder, ignore_errors=True)


def _fill(source: str, topic: str, shape: str) -> None:
    size = MEGABYTES[shape] * 1_000_000
    if shape == PLAIN:
        fill_bulk(source, topic, PARTITIONS, size, RECORD_BYTES)
        return
    create_topic(source, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": source, "transactional.id": f"bench-{time.time_ns()}", "linger.ms": 5})
    producer.init_transactions(30)
    value = bytes(range(250)) * (RECORD_BYTES // 250)
    for number in range(size // RECORD_BYTES // int(shape)):
        producer.begin_transaction()
        for _ in range(int(shape)):
            producer.produce(topic, value, partition=number % PARTITIONS)
        producer.commit_transaction(30)


if __name__ == "__main__":
    main()

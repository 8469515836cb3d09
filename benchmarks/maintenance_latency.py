"""Measure the commit latency of a busy lane, alone and with maintenance running all the time.

    .venv/bin/python benchmarks/maintenance_latency.py --commits 300 --every 1

Stages, commits and records small micro-batches as fast as the disk allows; in every other round a second thread runs maintenance.
Verification always succeeds without reading: the cost measured is that of the tables. Prints percentiles of each round in milliseconds
and the number of files in the Delta logs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LEASE_SECONDS, LaneStore, open_lane
from mirror_pipeline.buffer.place.usage import lane_use
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.engine.driver.maintain.rounds import Maintenance
from mirror_pipeline.model import Incarnation, Send, Verdict, Verification

LIFE = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True)
class Place:
    """The buffer section of a configuration."""

    uri: str
    lease: float = LEASE_SECONDS


@dataclass(frozen=True)
class Verified:
    """A verification without differences."""

    verified: dict[tuple[str, int, str], int]
    records: int = 0
    bytes: int = 0
    differences: tuple[()] = ()
    unreadable: tuple[()] = ()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=300, help="micro-batches in each round")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two maintenance rounds")
    parser.add_argument("--retention", type=int, default=5, help="seconds until a span may be evicted")
    parser.add_argument("--span-bytes", type=int, default=20_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", default="alone,maintained,alone,maintained")
    return parser.parse_args()


class Lane:
    """One lane whose target accepts everything at once."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.store: LaneStore = open_lane(Place(str(folder)), "bench", "lane-0")
        self.spans, self.ledger = SpanTable(self.store), Ledger(self.store)
        self.spans.ensure()
        self.ledger.ensure()
        starts = dict.fromkeys(range(options.partitions), 0)
        self.ledger.add_incarnation(Incarnation("t", LIFE, "a", "b", "a.t", "id", starts, starts, 1))
        self._payload = os.urandom(options.span_bytes)
        self._partitions = options.partitions
        self.number = 0

    def copy_batch(self) -> tuple[float, float]:
        """Stage and record one micro-batch; seconds of its two commits."""
        number = self.number
        writer = PartFileWriter(self.store, number, 0)
        for partition in range(self._partitions):
            writer.add(SpanDraft("t", partition, LIFE, number, number + 1, 1, 1, 1, 2), self._payload)
        part = writer.close()
        assert part is not None
        began = time.perf_counter()
        self.spans.commit(number, [part])
        staged = time.perf_counter()
        sends = [Send("t", p, LIFE, number, number + 1, "a.t", number, number + 1, 1, number, number) for p in range(self._partitions)]
        self.ledger.record(number, sends)
        self.number += 1
        return staged - began, time.perf_counter() - staged

    def verify(self, budget: int) -> Verified:
        """Record everything that was sent as verified."""
        verified, now = self.ledger.verified(), int(time.time() * 1000)
        rows = [
            Verification(*key, verified.get(key, 0), end, 1, end, "", Verdict.SAME, "staged", now)
            for key, end in self.ledger.reached().items()
            if end > verified.get(key, 0)
        ]
        self.ledger.add_verifications(rows)
        return Verified(self.ledger.verified())


def main() -> None:
    """Run the rounds."""
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="maintenance-latency-"))
    try:
        lane = Lane(folder / "buffer", options)
        for name in options.rounds.split(","):
            print(json.dumps({"round": name, **measured(lane, options, maintained=name == "maintained")}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(lane: Lane, options: argparse.Namespace, *, maintained: bool) -> dict[str, object]:
    """One round: percentiles of both commits."""
    over, rounds = threading.Event(), 0
    maintenance = Maintenance(lane.store, lane.spans, lane.ledger, options.retention, 50 * 10**9, verify=lane.verify)

    def run_round() -> None:
        nonlocal rounds
        while not over.wait(options.every):
            maintenance.run_round()
            rounds += 1

    thread = threading.Thread(target=run_round, daemon=True)
    if maintained:
        thread.start()
    began = time.perf_counter()
    times = [lane.copy_batch() for _ in range(options.commits)]
    seconds = time.perf_counter() - began
    over.set()
    if maintained:
        thread.join()
    use = lane_use(lane.store)
    return {
        "commits": lane.number, "commits_per_second": round(options.commits / seconds, 1), "maintenance_rounds": rounds,
        "spans_ms": percentiles([t[0] for t in times]), "ledger_ms": percentiles([t[1] for t in times]),
        "live_files": lane.spans.live_files(), "log_files": use.log_files, "disk_mb": round(use.total / 1e6, 1),
    }  # fmt: skip


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    found = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(seconds)}
    return {name: round(value * 1e3, 1) for name, value in found.items()}


if __name__ == "__main__":
    main()

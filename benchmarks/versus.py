"""This tool and MirrorMaker 2, side by side on two embedded clusters of this machine.

    make bench                                     all workloads; the large copies need about 55 GB of disk
    make bench BENCH=--quick                       four workloads, under 6 minutes
    python -m benchmarks.versus --only 1kb,latency --rounds 5
    python -m benchmarks.versus --only large       copies of which Spark carries most: rate, share of limit, Spark's share, ratios
    python -m benchmarks.page build/bench/versus.json      takes a full run over into docs/benchmarks.md

The results file is written after every workload. With --resume those that it has already are not measured again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks import bars, latency, machine, results, table
from benchmarks.mm2 import JARS, MirrorMaker, reasons
from benchmarks.rounds import ROUNDS, Place, RoundFailed
from benchmarks.sides import Limit, Ours, Side
from benchmarks.workloads import LARGE, QUICK, WORKLOADS, Workload, chosen, fill, remove
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution.jars import ensure_jars, terminal_progress
from mirror_pipeline.execution.placement import INLINE_BYTES
from mirror_pipeline.local.embedded.settings import DEFAULT_VERSION
from mirror_pipeline.local.embedded.start import stop_clusters
from mirror_pipeline.units import parse_size

OUTPUT = Path("build/bench/versus.json")
QUICK_SCALE = 0.3
IN_PROCESS = "1000TB"  # no micro-batch is larger
WARM_UP_SIDES = ("ours", "tuned")  # both kinds of clients
WARM_UPS, WARM_UP_SCALE = 2, 2.0  # times, and of the first workload's bytes: a broker's CPU-seconds for a copy no longer fall after that
FREE_BYTES = 2_000_000_000  # of the disk are left for everything else
QUICK_SECONDS = {"latency": 8.0, "idle": 8.0}
QUICK_TOPICS = 200


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.versus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"of {LARGE}, {', '.join(w.name for w in WORKLOADS)}")
    parser.add_argument("--sides", default=",".join(table.ORDER), metavar="SIDE,...", help=f"of {', '.join(table.ORDER)}")
    parser.add_argument("--inline-bytes", metavar="SIZE", help="engine.inline_bytes of `ours`: a lower one lets Spark carry small copies")
    parser.add_argument("--rounds", type=int, default=3, help="of the core workloads; the others take one less, idle and latency one")
    parser.add_argument("--scale", type=float, default=1.0, help="of the amount of data, of topics and of the seconds watched")
    parser.add_argument("--quick", action="store_true", help="four workloads, one round, less data: under 6 minutes")
    parser.add_argument("--verify", action="store_true", help="compare every bulk copy record by record, by `mirror verify --external`")
    parser.add_argument("--no-touch", action="store_true", help="do not write to free memory first")
    parser.add_argument("--no-warm-up", action="store_true", help="no unmeasured round first: brokers are not compiled yet")
    parser.add_argument("--folder", type=Path, help="where clusters and buffers lie; a temporary folder otherwise")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--resume", action="store_true", help="measure only the workloads that the output does not have yet")
    options = parser.parse_args(given)
    if options.quick:
        options.only, options.rounds, options.scale = options.only or ",".join(QUICK), 1, min(options.scale, QUICK_SCALE)
    return options


def scaled(workload: Workload, options: argparse.Namespace) -> Workload:
    """The workload as it will run: fewer topics and seconds with --quick and small scales (bulk data is scaled when it is filled)."""
    if workload.kind == "bulk" or (not options.quick and options.scale >= 1):
        return workload
    seconds = QUICK_SECONDS[workload.kind] if options.quick else max(3.0, workload.seconds * options.scale)
    topics = workload.topics if workload.topics == 1 else QUICK_TOPICS if options.quick else max(10, int(workload.topics * options.scale))
    return replace(workload, seconds=seconds, topics=topics)


def sides(names: str, inline_bytes: str | int | None = None) -> list[Side]:
    """The sides by name.

    Args:
        names: separated by commas.
        inline_bytes: ``engine.inline_bytes`` of ``ours``; None: its default.
    """
    known: dict[str, Side] = {
        "ours": Ours({"inline_bytes": inline_bytes} if inline_bytes is not None else None),
        "inproc": Ours({"inline_bytes": IN_PROCESS}, "inproc"),
        "limit": Limit(),
        "tuned": MirrorMaker("tuned"),
        "default": MirrorMaker("default"),
    }
    if unknown := [name for name in names.split(",") if name not in known]:
        raise SystemExit(f"no side {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def fitting(workloads: Sequence[Workload], scale: float, folder: Path) -> None:
    """``SystemExit`` when the disk is too small for one of the workloads."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free - FREE_BYTES
    largest = max(workloads, key=lambda w: w.disk_bytes(scale), default=None)
    if largest is not None and largest.disk_bytes(scale) > free:
        need = f"{largest.name} needs {largest.disk_bytes(scale) / 1e9:.0f} GB of disk, {folder} has {max(0, free) / 1e9:.0f}"
        raise SystemExit(f"error: {need}; use --folder, or --scale {scale * free / largest.disk_bytes(scale):.2f}")


class Bench:
    """A run of the comparison: the clusters, and what was measured so far."""

    def __init__(self, options: argparse.Namespace, place: Place) -> None:
        self.options = options
        self.place = place
        self.sides = sides(options.sides, options.inline_bytes)
        self._number = 0

    def tag(self, side: Side) -> str:
        """A name that no round had before; target topics and MirrorMaker's cluster aliases begin with it."""
        self._number += 1
        return f"r{self._number}{side.name[0]}"

    def warm_up(self) -> None:
        """Unmeasured copies by each kind of client, so that the brokers' compilers have done their work on both, as they have on
        brokers that are up for more than a minute."""
        workload = replace(WORKLOADS[0], name="warm-up")
        say("warm-up")
        fill(self.place.source, workload, WARM_UP_SCALE * min(1.0, self.options.scale))
        kinds = [side for side in self.sides if side.name in WARM_UP_SIDES] or self.sides[:1]
        for side in kinds * (1 if self.options.quick else WARM_UPS):
            self._try(side, workload, 0)
        remove(self.place.source, workload.names)

    def measure(self, workload: Workload) -> dict[str, Any]:
        """All rounds of a workload, the sides in alternation, each round beginning with another one."""
        rounds: list[dict[str, Any]] = []
        entry: dict[str, Any] = {"workload": workload.facts(), "scale": self.options.scale, "rounds": rounds}
        say(f"{workload.name}: filling the source")
        entry["records"] = fill(self.place.source, workload, self.options.scale)
        entry["log_bytes"] = self.place.size(workload.names)
        os.sync()
        if workload.kind == "bulk" and not self.options.no_touch:
            machine.touch_memory()  # again: a large source has pushed all else out, and the first side would pay for what is free now
        if workload.kind == "latency":
            names = workload.names
            latency.prime(self.place.source, names[0], workload)
            entry["floor"] = latency.measure(self.place.source, names[0], self.place.source, names[0], workload, None)
        taking_part = [side for side in self.sides if side.name in workload.sides]
        if workload.kind == "bulk" and not self.options.no_touch:  # the first copy after a fill would pay for memory that is new to it
            self._try(Limit(), workload, 0)
        for number in range(self._rounds(workload)):
            turn = number % max(1, len(taking_part))
            for side in [*taking_part[turn:], *taking_part[:turn]]:
                if workload.kind == "latency":  # nothing of the round before shall be copied first
                    remove(self.place.source, workload.names)
                    fill(self.place.source, workload, self.options.scale)
                rounds.append(self._try(side, workload, number + 1))
        remove(self.place.source, workload.names)
        return {**results.finished(entry), "taken_at": now()}

    def _rounds(self, workload: Workload) -> int:
        if workload.kind != "bulk":
            return 1
        rounds = int(self.options.rounds)
        return rounds if workload.core else max(1, rounds - 1)

    def _try(self, side: Side, workload: Workload, number: int) -> dict[str, Any]:
        begin = time.monotonic()
        try:
            found = ROUNDS[workload.kind](self.place, side, workload, self.tag(side))
        except (RoundFailed, latency.NothingArrived, MirrorError, ValueError, psutil.Error) as problem:
            found = {"side": side.name, "failed": str(problem)}
        say(f"{workload.name}: round {number}, {side.title}: {table.one_line(workload.kind, found)} ({time.monotonic() - begin:.0f} s)")
        return {**found, "round": number}


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure everything that is asked for; the output is written after each workload."""
    workloads = [scaled(w, options) for w in chosen(name for name in options.only.split(",") if name)]
    before = results.load(options.output) if options.resume else None
    there = {entry["workload"]["name"] for entry in before["workloads"]} if before else set()
    workloads = [workload for workload in workloads if workload.name not in there]
    document: dict[str, Any] = {
        "schema": results.SCHEMA, "started_at": now(), "machine": machine.facts(), "versions": machine.versions(), "mm2": reasons(),
        "options": {
            "rounds": options.rounds, "scale": options.scale, "sides": options.sides, "quick": options.quick,
            "inline_bytes": parse_size(options.inline_bytes) if options.inline_bytes is not None else INLINE_BYTES,
        },
        "workloads": [],
    }  # fmt: skip
    fitting(workloads, options.scale, folder)
    document["touched_bytes"] = 0 if options.no_touch else machine.touch_memory()
    try:
        source, target = machine.two_clusters(folder / "clusters")
        assert source.pid and target.pid
        data = source.brokers[0].data
        addresses = (source.bootstrap_servers, target.bootstrap_servers)
        place = Place(*addresses, source.pid, target.pid, data, folder / "rounds", verify=options.verify)
        bench = Bench(options, place)
        if not options.no_warm_up and any(w.kind == "bulk" for w in workloads):
            bench.warm_up()
        for workload in workloads:
            document["workloads"].append(bench.measure(workload))
            document["load_average"] = os.getloadavg()[0]
            results.save(options.output, results.merge(before, document))
    finally:
        stop_clusters(folder / "clusters")
    return results.merge(before, document)


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def say(line: str) -> None:
    """Progress, to standard error."""
    print(f"{datetime.now():%H:%M:%S} {line}", file=sys.stderr, flush=True)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, then print the table; 1 when a round failed."""
    options = arguments(given)
    with terminal_progress() as progress:
        for kind in (f"kafka-{DEFAULT_VERSION}", JARS):
            ensure_jars(kind, progress)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="mirror-bench-"))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that brokers and mirrors are ended
    try:
        document = run(options, folder.absolute())
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    table.show(document)
    bars.write_all(document, options.output.parent)
    say(f"results: {options.output}, charts beside it")
    failed = any("failed" in entry for workload in document["workloads"] for entry in workload["rounds"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

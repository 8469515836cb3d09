"""What a Spark job costs apart from its work: for tasks that do nothing, step by step, and for the read and write tasks of a copy.

    python -m benchmarks.job_cost                                        local[3] and local[4]
    python -m benchmarks.job_cost --master spark://127.0.0.1:7077 --spark spark.driver.host=127.0.0.1    a standalone cluster as well

Steps of a job, in milliseconds (medians): `prepare` is closure pickling and the calls to Java that make the RDD; `hand over` is scheduling,
and passing the task to a Python worker; `back` is from the task's end to the result in the driver. CPU milliseconds are those of one job in
the driver's Python, in Java and in the workers. For real tasks the cost is the job's time less the seconds that the task itself reports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.mirror_yaml import write_mirror_yaml
from mirror_pipeline import Mirror, flow, load_config
from mirror_pipeline.config import EngineConfig, FrozenMap
from mirror_pipeline.execution.spark import SparkRunner, build_session
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.local.shapes.bulk import fill_bulk

LOCAL = ("local[3]", "local[4]")
WARM_UP_JOBS = 30  # Java's quick compiler has seen the path by then
SHARE = 20  # a job's fixed cost shall be at most one part in so many of its work
COLUMNS = ("prepare", "hand over", "back", "job", "two at once", "CPU driver", "CPU Java", "CPU workers")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.job_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", action="append", default=[], help="a further master, such as spark://host:port; repeatable")
    parser.add_argument("--spark", action="append", default=[], metavar="KEY=VALUE", help="a property for further masters; repeatable")
    parser.add_argument("--jobs", type=int, default=150, help="jobs without work")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="that real tasks copy; 0: none")
    parser.add_argument("--one", nargs=2, metavar=("MASTER", "CONFIG"), help=argparse.SUPPRESS)
    return parser.parse_args(given)


def clocked(_: object) -> tuple[float, float]:
    """A task that does nothing: when it began and ended, by the clock that all processes of a machine share."""
    began = time.monotonic()
    return began, time.monotonic()


class TimedRdd:
    """Spark's base RDD, whose jobs note down their steps."""

    def __init__(self, base: Any, notes: list[dict[str, float]]) -> None:
        self._base = base
        self._notes = notes

    def mapPartitions(self, function: Callable[..., Any]) -> Any:
        """An object with ``collect``."""
        return TimedJob(self._base.mapPartitions(function), self._notes, time.monotonic())


class TimedJob:
    """One job of :func:`clocked`."""

    def __init__(self, rdd: Any, notes: list[dict[str, float]], began: float) -> None:
        self._rdd = rdd
        self._notes = notes
        self._began = began

    def collect(self) -> Any:
        """Run it."""
        _ = self._rdd._jrdd  # pickles the closure and makes the RDD in Java
        prepared = time.monotonic()
        answer = self._rdd.collect()
        done = time.monotonic()
        ((begin, end),) = answer
        steps = {"prepare": prepared - self._began, "hand over": begin - prepared, "back": done - end, "job": done - self._began}
        self._notes.append(steps)
        return answer


def without_work(session: Any, jobs: int) -> dict[str, float]:
    """Milliseconds of a job of :func:`clocked`, by step."""
    runner = SparkRunner(session.sparkContext)
    runner.warm()
    notes: list[dict[str, float]] = []
    runner._base = TimedRdd(runner._base, notes)  # type: ignore[assignment]
    for _ in range(WARM_UP_JOBS):
        runner.run(clocked, [None], name="warm-up")
    notes.clear()
    before = _cpu()
    for _ in range(jobs):
        runner.run(clocked, [None], name="no work")
    spent = {name: (now - before[name]) / jobs for name, now in _cpu().items()}
    middle = {step: statistics.median(note[step] for note in notes) for step in notes[0]}
    pairs = []
    for _ in range(jobs // 2):
        began = time.monotonic()
        runner.run_each(clocked, [None, None], name="two at once")
        pairs.append(time.monotonic() - began)
    return {name: seconds * 1000 for name, seconds in {**middle, "two at once": statistics.median(pairs), **spent}.items()}


def _cpu() -> dict[str, float]:
    """CPU-seconds so far of this process, of Java and of the workers below it."""
    this = psutil.Process()
    found = {"CPU driver": sum(this.cpu_times()[:2]), "CPU Java": 0.0, "CPU workers": 0.0}
    for process in this.children(recursive=True):
        try:
            found["CPU Java" if process.name() == "java" else "CPU workers"] += sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return found


class TimedRunner(SparkRunner):
    """Notes down the time of each job of a copy, and the part of it that its task reports."""

    notes: list[tuple[str, float, float]] = []

    def _run_one(self, function: Any, spec: Any, name: str) -> Any:
        began = time.monotonic()
        answer = super()._run_one(function, spec, name)
        if hasattr(answer, "seconds"):
            self.notes.append((name.split()[0], time.monotonic() - began, answer.seconds))
        return answer


def real(session: Any, config: Path) -> dict[str, dict[str, float]]:
    """Milliseconds of the copy's jobs by name: work, and the rest."""
    vars(flow)["SparkRunner"] = TimedRunner
    report = Mirror(load_config(config), "bench").run(once=True, session=session)
    if report.state != "ok":
        raise SystemExit(f"error: the copy failed: {report}")
    found = {}
    for name in sorted({name for name, _, _ in TimedRunner.notes}):
        jobs = [(whole, work) for kind, whole, work in TimedRunner.notes if kind == name]
        found[name] = {
            "jobs": len(jobs),
            "work": statistics.median(work for _, work in jobs) * 1000,
            "cost": statistics.median(whole - work for whole, work in jobs) * 1000,
            "share": sum(whole - work for whole, work in jobs) / max(1e-9, sum(work for _, work in jobs)),
        }
    return found


def one(master: str, config: str, jobs: int, spark: dict[str, str]) -> None:
    """Measure one master in this process, with these properties of Spark; prints a JSON document."""
    session = build_session(EngineConfig(spark_master=master, spark=FrozenMap(spark)))
    found: dict[str, Any] = {"master": master, "steps": without_work(session, jobs)}
    if config:
        found["real"] = real(session, Path(config))
    print(json.dumps(found))


def show(found: Sequence[dict[str, Any]]) -> None:
    """Two tables."""
    console = Console(width=140)
    steps = Table("master", *COLUMNS, title="ms for a job without work")
    for entry in found:
        steps.add_row(entry["master"], *(f"{entry['steps'][column]:.1f}" for column in COLUMNS))
    console.print(steps)
    tasks = Table("master", "job", "jobs", "work ms", "cost ms", "cost/work", f"cost x {SHARE}, ms", title="jobs of a copy")
    for entry in found:
        for name, figures in entry.get("real", {}).items():
            cells = [f"{figures['jobs']:.0f}", f"{figures['work']:.0f}", f"{figures['cost']:.1f}", f"{figures['share']:.1%}"]
            tasks.add_row(entry["master"], name, *cells, f"{figures['cost'] * SHARE:.0f}")
    if tasks.row_count:
        console.print(tasks)


def main(given: Sequence[str] | None = None) -> None:
    """Measure each master in a process of its own."""
    options = arguments(given)
    if options.one:
        master, config = options.one
        one(master, config, options.jobs, dict(pair.split("=", 1) for pair in options.spark))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that brokers are ended
    folder = Path(tempfile.mkdtemp(prefix="job-cost-"))
    found = []
    try:
        addresses = ("", "")
        if options.gigabytes:
            source, target = start_clusters(folder / "clusters", names=["source", "target"])
            addresses = (source.bootstrap_servers, target.bootstrap_servers)
            fill_bulk(addresses[0], "cost", 12, int(options.gigabytes * 1e9))
        for number, master in enumerate([*LOCAL, *options.master]):
            place = folder / f"m{number}"
            place.mkdir()
            engine = {"inline_bytes": 0, "spark_master": master}
            path = write_mirror_yaml(place, addresses, "cost", naming=place.name + ".{topic}", engine=engine) if options.gigabytes else ""
            own = [word for pair in options.spark if master not in LOCAL for word in ("--spark", pair)]
            words = ["--one", master, str(path), "--jobs", str(options.jobs), *own]
            done = subprocess.run([sys.executable, "-m", "benchmarks.job_cost", *words], stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            shutil.rmtree(place, ignore_errors=True)
    finally:
        if options.gigabytes:
            stop_clusters(folder / "clusters")
        shutil.rmtree(folder, ignore_errors=True)
    show(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

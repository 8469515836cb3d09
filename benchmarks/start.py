"""How long `mirror run` takes to its first record on the target, and to its first Spark task done, with the class archive and without.

    python -m benchmarks.start --rounds 3                        default settings, a backlog of 3 GB
    python -m benchmarks.start --gigabytes 0.4 --inline-bytes 1MB --rounds 1

Both kinds of start alternate. Each run is ended once its first Spark task is done; its target topic is removed. Prints a line per run, then
medians and, for the start of Spark, where the time goes; then one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
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

from benchmarks import machine
from benchmarks.measure import Ends, Tree
from benchmarks.mirror_yaml import write_mirror_yaml
from benchmarks.workloads import remove
from mirror_pipeline.children import default_signals
from mirror_pipeline.execution import class_archive
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.local.shapes.bulk import fill_bulk

ROOT = Path(__file__).parents[1]
TOPIC = "start"
WITHOUT_ARCHIVE = {"spark.driver.defaultJavaOptions": "-Xshare:auto"}  # Java's own archive of its own classes, as always
STAMPS = "MIRROR_BENCH_STAMPS"  # the file for the times that a run notes down
PATIENCE = 180.0
END_SECONDS = 60.0
SAMPLE_SECONDS = 0.02
STEPS = ("first record", "imported", "Spark begins", "pyspark imported", "JVM up", "context", "workers warm", "first task")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--inline-bytes", metavar="SIZE", help="engine.inline_bytes: a lower one starts Spark with a smaller backlog")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind of start")
    parser.add_argument("--kinds", default="archive,plain", help="of archive, plain")
    return parser.parse_args(given)


def child(words: Sequence[str]) -> int:
    """A process of ours: ``mirror``, which notes down when each step of Spark's start was done (monotonic seconds)."""
    from mirror_pipeline.cli.main import main as mirror
    from mirror_pipeline.execution import spark

    stamp("imported")

    def around(owner: Any, name: str, before: str, after: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            stamp(before)
            answer = inner(*given, **named)
            stamp(after)
            return answer

        setattr(owner, name, timed)

    around(spark, "_quiet_java", "pyspark imported", "")
    around(spark.SparkRunner, "warm", "context", "workers warm")
    whole = spark.build_context

    def context(*given: Any, **named: Any) -> Any:
        stamp("Spark begins")
        import pyspark.java_gateway as gateway

        around(gateway, "launch_gateway", "", "JVM up")
        return whole(*given, **named)

    from mirror_pipeline import flow

    spark.build_context = vars(flow)["build_context"] = context
    run_one = spark.SparkRunner._run_one

    def task(self: Any, function: Any, spec: Any, name: str) -> Any:
        answer = run_one(self, function, spec, name)
        if function is not time.sleep:
            stamp("first task")
        return answer

    spark.SparkRunner._run_one = task  # type: ignore[method-assign]
    return mirror(list(words))


def stamp(step: str) -> None:
    """Note the time of a step."""
    if step:
        with Path(os.environ[STAMPS]).open("a") as file:
            file.write(json.dumps([step, time.monotonic()]) + "\n")


def steps(path: Path, began: float) -> dict[str, float]:
    """Seconds from the launch to the first time of each step."""
    found: dict[str, float] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        step, at = json.loads(line)
        found.setdefault(step, at - began)
    return found


def once(folder: Path, addresses: tuple[str, str], kind: str, number: int, inline_bytes: str | None) -> dict[str, float]:
    """One run, ended at its first Spark task; ``SystemExit`` when it ends before.

    Returns:
        Seconds to each step, and the CPU-seconds of the run's processes until its first task was done.
    """
    place = folder / f"{kind}{number}"
    place.mkdir()
    spark = {} if kind == "archive" else {"spark": WITHOUT_ARCHIVE}
    engine = {**spark, **({"inline_bytes": inline_bytes} if inline_bytes is not None else {})}
    config = write_mirror_yaml(place, addresses, TOPIC, naming=place.name + ".{topic}", engine=engine)
    stamps, target = place / "stamps", f"{place.name}.{TOPIC}"
    code = "import sys; from benchmarks.start import child; sys.exit(child(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-c", str(config), "run"]
    ends = Ends(addresses[1], [target])
    with (place / "log").open("wb") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=default_signals,
            env={**os.environ, "PYTHONPATH": str(ROOT), STAMPS: str(stamps)},
        )  # fmt: skip
        tree, first = Tree(process.pid), 0.0
        try:
            while "first task" not in (found := steps(stamps, began)):
                if not first and any(ends.read().values()):
                    first = time.monotonic() - began
                tree.cpu()
                if process.poll() is not None or time.monotonic() - began > PATIENCE:
                    raise SystemExit(f"error: no Spark task was done: {(place / 'log').read_text(errors='replace')[-600:]}")
                time.sleep(SAMPLE_SECONDS)
            found |= {"first record": first or found["first task"], "cpu": tree.cpu()}
        finally:
            process.terminate()
            process.wait(END_SECONDS)
            ends.close()
    remove(addresses[1], [target])
    shutil.rmtree(place / "buffer", ignore_errors=True)
    return found


def show(kind: str, runs: Sequence[dict[str, float]]) -> str:
    """Medians of a kind of start: seconds from the launch to each step."""
    middle = {step: statistics.median(run[step] for run in runs if step in run) for step in STEPS if any(step in run for run in runs)}
    cpu = statistics.median(run["cpu"] for run in runs)
    return f"{kind:8}" + ", ".join(f"{step} {seconds:.2f}" for step, seconds in middle.items()) + f" s; {cpu:.1f} CPU-seconds"


def main(given: Sequence[str] | None = None) -> None:
    """Run all rounds."""
    options = arguments(given)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that brokers and the mirror are ended
    kinds = options.kinds.split(",")
    if "archive" in kinds:
        class_archive.build()
    folder = Path(tempfile.mkdtemp(prefix="mirror-start-"))
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    try:
        names = ["source", "target"]
        source, target = start_clusters(folder / "clusters", names=names, heap=machine.BROKER_HEAP, config=machine.BROKER_CONFIG)
        addresses = (source.bootstrap_servers, target.bootstrap_servers)
        fill_bulk(addresses[0], TOPIC, 12, int(options.gigabytes * 1e9))
        for number in range(options.rounds):
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                runs[kind].append(once(folder, addresses, kind, number, options.inline_bytes))
                print(show(f"{kind} {number + 1}", runs[kind][-1:]), file=sys.stderr, flush=True)
    finally:
        stop_clusters(folder / "clusters")
        shutil.rmtree(folder, ignore_errors=True)
    for kind in kinds:
        print(show(kind, runs[kind]))
    print(json.dumps({"options": vars(options), "runs": runs}))


if __name__ == "__main__":
    main()

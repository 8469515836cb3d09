"""A mirror under constant load: whether buffer, Delta logs, file counts and memory stay within bounds.

    .venv/bin/python -m benchmarks.soak --minutes 60 --megabytes-per-second 2 --cap 256MB --retention 2m

Two embedded clusters, three topics (plain, transactional with aborts, compacted), `mirror run` as a child process. It samples
the buffer's size, the Delta logs, the live files, the memory of every process of the mirror, and the lag every ten seconds.
At the end the load stops, the mirror catches up, and `mirror verify` compares everything. Prints a table, writes JSON, and
exits with 1 if a bound does not hold.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.mirror_yaml import write_mirror_yaml
from benchmarks.soak_load import Load, create_topics
from benchmarks.soak_report import Sample, bounds_broken, print_table
from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.place.usage import buffer_use
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters

SAMPLE_SECONDS = 10.0
START_SECONDS = 120.0
DRAIN_SECONDS = 180.0
VERIFY_SECONDS = 3600.0
MIRROR = "soak"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--megabytes-per-second", type=float, default=2.0)
    parser.add_argument("--cap", default="256MB")
    parser.add_argument("--retention", default="2m")
    parser.add_argument("--micro-batch", default="16MB")
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    parser.add_argument("--keep", action="store_true", help="keep the folder with clusters, buffer and logs")
    return parser.parse_args()


@dataclass(frozen=True)
class Place:
    """Folder, configuration and mirror of the run."""

    folder: Path
    config: Path
    mirror: Mirror


def prepare(folder: Path, options: argparse.Namespace) -> tuple[Place, str]:
    """Clusters, topics, configuration; the place and the source's address."""
    clusters = start_clusters(folder / "clusters", 2, config={"log.cleaner.backoff.ms": "5000"})
    create_topics(clusters[0].bootstrap_servers)
    addresses = (clusters[0].bootstrap_servers, clusters[1].bootstrap_servers)
    engine, buffer = {"micro_batch_bytes": options.micro_batch}, {"max_bytes": options.cap, "retention": options.retention}
    config = write_mirror_yaml(folder, addresses, "soak-.*", name=MIRROR, engine=engine, buffer=buffer)
    return Place(folder, config, Mirror(load_config(config), MIRROR)), clusters[0].bootstrap_servers


def command(place: Place, *words: str) -> list[str]:
    """A call of the command line tool."""
    return [sys.executable, "-m", "mirror_pipeline.cli", *words, "-c", str(place.config)]


def memory(pid: int) -> dict[str, int]:
    """Resident bytes of the mirror's processes, by kind."""
    usage = {"driver": 0, "jvm": 0, "workers": 0}
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return usage
    for process in family:
        try:
            kind = "driver" if process.pid == pid else "jvm" if process.name().startswith("java") else "workers"
            usage[kind] += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return usage


def look(place: Place, pid: int, began: float) -> Sample:
    """One sample."""
    (store,) = place.mirror.flow.lane_stores()
    lanes = buffer_use(store)
    status = place.mirror.status()
    use = status.lanes[0].buffer
    lag = place.mirror.lag()
    return Sample(
        seconds=round(time.time() - began, 1),
        disk=sum(lane.total for lane in lanes.values()),
        spans=use.spans_bytes if use else 0,
        ledger=use.ledger_bytes if use else 0,
        logs=use.log_bytes if use else 0,
        log_files=sum(lane.log_files for lane in lanes.values()),
        live_files=use.live_files if use else 0,
        unverified=use.unverified_bytes if use else 0,
        lag=lag.lag_records,
        lag_seconds=lag.lag_seconds or 0.0,
        full=bool(use and use.full_since),
        maintenance_error=use.upkeep_error if use else "",
        **memory(pid),
    )


def soak(place: Place, source: str, options: argparse.Namespace) -> tuple[list[Sample], dict[str, Any]]:
    """The load, the mirror, the samples; then the verdict of ``mirror verify``."""
    with (place.folder / "run.log").open("w") as log:
        process = subprocess.Popen(command(place, "run"), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    began = time.time()
    load = Load(source, options.megabytes_per_second * 1e6)
    samples: list[Sample] = []
    try:
        load.start()
        wait_for_lane(place, process)
        while time.time() - began < options.minutes * 60:
            samples.append(sampled(place, process, began))
            time.sleep(SAMPLE_SECONDS)
        load.stop()
        deadline = time.time() + DRAIN_SECONDS
        while place.mirror.lag().lag_records and time.time() < deadline:
            time.sleep(1)
        left = place.mirror.lag().lag_records
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
    finally:
        load.stop()
        end(process)
    verdict = subprocess.run(command(place, "verify", "--json"), capture_output=True, text=True, timeout=VERIFY_SECONDS)
    verified = json.loads(verdict.stdout) if verdict.stdout.strip() else {"ok": False, "error": verdict.stderr[-2000:]}
    produced = {"produced_records": load.records, "produced_bytes": load.bytes, "aborted_records": load.aborted}
    return samples, {**produced, "lag_left": left, "run_code": code, "verify": verified}


def sampled(place: Place, process: subprocess.Popen[bytes], began: float) -> Sample:
    """Take one sample and print it."""
    if process.poll() is not None:
        raise SystemExit(f"the mirror ended by itself with code {process.returncode}: see {place.folder}/run.log")
    sample = look(place, process.pid, began)
    print(json.dumps(asdict(sample)), file=sys.stderr, flush=True)
    return sample


def wait_for_lane(place: Place, process: subprocess.Popen[bytes]) -> None:
    """Until the lane says that it runs."""
    deadline = time.time() + START_SECONDS
    while time.time() < deadline and process.poll() is None:
        lanes = place.mirror.status().lanes
        if lanes and lanes[0].state == "running":
            return
        time.sleep(0.5)
    raise SystemExit(f"the mirror did not start: see {place.folder}/run.log")


def end(process: subprocess.Popen[bytes]) -> None:
    """End the mirror and what it started."""
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in family:
            with_no_error(child.kill)


def with_no_error(act: Any) -> None:
    """Call it; a process that is gone already is fine."""
    try:
        act()
    except psutil.NoSuchProcess:
        return


def interrupted(number: int, frame: object) -> None:
    """Told to stop: end clusters and mirror on the way out."""
    raise KeyboardInterrupt


def main() -> None:
    """Run it and judge."""
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # a background job of a shell has SIGINT ignored
        signal.signal(number, interrupted)
    folder = Path(tempfile.mkdtemp(prefix="mirror-soak-"))
    failed = True
    try:
        place, source = prepare(folder, options)
        cap = place.mirror.flow.config.buffer.max_bytes
        samples, outcome = soak(place, source, options)
        broken = bounds_broken(samples, outcome, cap=cap, minutes=options.minutes)
        body = {"options": {k: str(v) for k, v in vars(options).items()}, "outcome": outcome, "broken": broken}
        options.out.write_text(json.dumps({**body, "samples": [asdict(s) for s in samples]}, indent=1))
        print_table(samples, outcome, cap=cap)
        print("\n".join(f"BROKEN: {line}" for line in broken) or "all bounds hold")
        failed = bool(broken)
    finally:
        stop_clusters(folder / "clusters")
        if not (options.keep or failed):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept: {folder}", file=sys.stderr)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()

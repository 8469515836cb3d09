"""What looking at many topics costs: a scrape, the page, and the exporter's share of a core.

    python -m benchmarks.many_topics                    # 1,000 topics of one partition, copied while they are looked at
    python -m benchmarks.many_topics --topics 3000 --seconds 120

Starts two clusters of one broker each, a lane that copies 100 records a second spread over all topics, ``mirror exporter`` and
``mirror page``, each with its defaults. Prints one JSON line: seconds of an answer (median and worst of ``--looks``), its bytes, and the
share of a core that the exporter took in ``--seconds`` while it was scraped every 15 seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.machine import BROKER_CONFIG, SERVER_JIT
from benchmarks.measure import Ends, Tree
from benchmarks.mirror_yaml import write_mirror_yaml
from mirror_pipeline.children import default_signals
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.page.token import TOKEN_ENV

TOKEN = "many-topics-benchmark"  # noqa: S105 - of this run alone
START_SECONDS = 300.0
RECORDS_A_SECOND = 100
SCRAPE_SECONDS = 15.0


def create(bootstrap: str, names: Sequence[str]) -> None:
    """Topics of one partition, with a record in each."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for begin in range(0, len(names), 200):
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names[begin : begin + 200]]).values():
            made.result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for name in names:
        producer.produce(name, b"first", partition=0)
    producer.flush(60)


def load(bootstrap: str, names: Sequence[str], stop: threading.Event) -> None:
    """A steady trickle over all topics in turn."""
    producer, number = Producer({"bootstrap.servers": bootstrap, "log_level": 0}), 0
    while not stop.wait(1 / RECORDS_A_SECOND):
        producer.produce(names[number % len(names)], b"x" * 200, partition=0)
        producer.poll(0)
        number += 1
    producer.flush(10)


def command(folder: Path, config: Path, *words: str) -> subprocess.Popen[bytes]:
    """A command of the mirror in the background."""
    with (folder / f"{words[0]}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(config), *words], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, env={**os.environ, TOKEN_ENV: TOKEN}, start_new_session=True, preexec_fn=default_signals,
        )  # fmt: skip


def answer(url: str) -> tuple[float, int]:
    """Seconds and bytes of one answer."""
    request, began = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"}), time.monotonic()  # noqa: S310 - http
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - the same
        size = len(response.read())
    return time.monotonic() - began, size


def looked(url: str, looks: int) -> dict[str, float]:
    """Median and worst of some answers, after a first one."""
    answer(url)
    found = [answer(url) for _ in range(looks)]
    seconds = [each for each, _ in found]
    return {"median_s": round(statistics.median(seconds), 3), "worst_s": round(max(seconds), 3), "bytes": found[-1][1]}


def wait_for(what: str, process: subprocess.Popen[bytes], holds: Any) -> None:
    """Until it holds, of a command that runs."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if holds():
                return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {START_SECONDS:.0f} s")
        time.sleep(1)


def exporter_share(pid: int, url: str, seconds: float) -> float:
    """Of a core, while it is scraped."""
    tree = Tree(pid)
    before, began = tree.cpu(), time.monotonic()
    while time.monotonic() - began < seconds:
        answer(url)
        time.sleep(SCRAPE_SECONDS)
    return (tree.cpu() - before) / (time.monotonic() - began)


def measure(folder: Path, addresses: tuple[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Start all, look at it, end all."""
    names = [f"many-{number:05}" for number in range(options.topics)]
    create(addresses[0], names)
    config = write_mirror_yaml(folder, addresses, "many-.*", naming="copy.{topic}")
    metrics, page = f"http://127.0.0.1:{options.port}/metrics", f"http://127.0.0.1:{options.port + 1}/mirrors"
    stop = threading.Event()
    running = [command(folder, config, "run")]
    try:
        ends = Ends(addresses[1], [f"copy.{name}" for name in names])
        wait_for("the copy", running[0], lambda: sum(ends.read().values()) >= len(names))
        ends.close()
        threading.Thread(target=load, args=(addresses[0], names, stop), daemon=True).start()
        running += [command(folder, config, "exporter", "--listen", f"127.0.0.1:{options.port}")]
        running += [command(folder, config, "page", "--port", str(options.port + 1))]
        for process, url in zip(running[1:], (metrics, page), strict=True):
            wait_for(url, process, lambda url=url: answer(url)[1] > 0)
        time.sleep(2 * SCRAPE_SECONDS)  # the first looks compile and connect
        share = exporter_share(running[1].pid, metrics, options.seconds)
        found = {"scrape": metrics, "overview": page, "mirror": f"{page}/m/bench", "topics_live": f"{page}/m/bench/topics/live"}
        answers = {key: looked(url, options.looks) for key, url in found.items()}
        return {"topics": options.topics, **answers, "exporter_core": round(share, 4)}
    finally:
        stop.set()
        for process in reversed(running):
            process.terminate()
            process.wait(60)


def main(given: Sequence[str] | None = None) -> None:
    """Start the clusters, measure, stop the clusters."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.many_topics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=90.0, help="over which the exporter's CPU is counted")
    parser.add_argument("--looks", type=int, default=20)
    parser.add_argument("--port", type=int, default=19308, help="of the exporter; the page has the next one")
    options = parser.parse_args(given)
    folder = Path(tempfile.mkdtemp(prefix="mirror-many-topics-"))
    clusters = start_clusters(folder, names=["source", "target"], jvm_options=(SERVER_JIT,), config=BROKER_CONFIG)
    try:
        print(json.dumps(measure(folder, (clusters[0].bootstrap_servers, clusters[1].bootstrap_servers), options)), flush=True)
    finally:
        stop_clusters(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

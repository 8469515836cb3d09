"""The sides of the comparison: what is started, what it is started with, and this project's own side."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.mirror_yaml import write_mirror_yaml
from benchmarks.workloads import Workload
from mirror_pipeline.children import default_signals

ROOT = Path(__file__).parents[1]
TITLES = {
    "ours": "Mirror Pipeline",
    "inproc": "Mirror Pipeline, in process",
    "limit": "limit",
    "tuned": "MirrorMaker 2, tuned",
    "default": "MirrorMaker 2, default",
}
STOP_SECONDS = 60.0  # a clean end: MirrorMaker 2 stores offsets, a lane finishes its micro-batch


@dataclass(frozen=True, slots=True)
class Flow:
    """One copy: source, target, workload. ``tag`` is new each time, so that every round has its own target topics."""

    source: str
    target: str
    workload: Workload
    tag: str
    source_ca: Path | None = None
    mm2_tasks: int | None = None


@dataclass(slots=True)
class Launched:
    """A running mirror: its root process, target topic by source topic, the log to look for errors in, and where it reports at its end."""

    process: subprocess.Popen[bytes]
    topics: dict[str, str]
    log: Path
    report: Path | None = None
    _ended: bool = False

    def end(self) -> int | None:
        """SIGTERM, after a minute SIGKILL to all of its session; the exit code, None when it had to be killed."""
        if self._ended:
            return self.process.returncode
        self._ended = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        late = self.process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: no other process is in it
        code = self.process.wait()
        return None if late else code

    def errors(self) -> list[str]:
        """The first error lines of its log."""
        if not self.log.exists():
            return []
        with self.log.open(errors="replace") as lines:
            errors = [line.strip()[:300] for line in lines if " ERROR " in line or line.startswith(("error:", "Traceback"))]
        return errors[:5]

    def spark(self) -> dict[str, float]:
        """After its end: Spark's share of the bytes that were read, and its jobs, by the run's own report; empty without such a report."""
        text = self.report.read_text() if self.report is not None else ""
        runs = json.loads(text).get("mirrors", []) if text.strip() else []
        by_spark, by_driver, jobs = (sum(run.get(key, 0) for run in runs) for key in ("spark_bytes", "driver_bytes", "spark_jobs"))
        return {"spark_share": by_spark / (by_spark + by_driver), "spark_jobs": jobs} if by_spark + by_driver else {}


class Side(Protocol):
    """One product under test."""

    name: str
    title: str
    rival: bool  # not this project's: a large copy by it is ended unfinished

    def launch(self, flow: Flow, folder: Path) -> Launched:
        """Start it for a flow; it runs until it is stopped."""


def mirror_command(flow: Flow, folder: Path, engine: dict[str, Any] | None = None) -> list[str]:
    """The words ``mirror -c FILE``; the file describes the flow and is written into ``folder``."""
    source = {"security": {"protocol": "SSL", "ca_file": str(flow.source_ca)}} if flow.source_ca else {}
    addresses, naming = (flow.source, flow.target), flow.tag + ".{topic}"
    config = write_mirror_yaml(folder, addresses, flow.workload.pattern, naming=naming, engine=engine, source=source)
    return [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(config)]


def differences(flow: Flow, topics: dict[str, str], folder: Path) -> str:
    """Compare source and target record by record; the start of the verdict, empty if they are equal."""
    pairs = [word for pair in topics.items() for word in ("--topic", "=".join(pair))]
    command = [*mirror_command(flow, folder), "verify", "--external", "--source", "source", "--target", "target", "--json", *pairs]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [done.stdout])[-1][:300]


class Ours:
    """``mirror run``, with the settings a new user gets: every byte in the buffer on disk, flushed, before it is sent.

    Args:
        engine: settings that differ from the defaults.
        name: of the side.
    """

    rival = False

    def __init__(self, engine: dict[str, Any] | None = None, name: str = "ours") -> None:
        self.engine = engine or {}
        self.name = name
        self.title = TITLES[name]

    def launch(self, flow: Flow, folder: Path) -> Launched:
        """Start it for a flow; buffer, settings and log are in ``folder``."""
        return _launch([*mirror_command(flow, folder, self.engine), "run", "--json"], flow, folder)


class Limit:
    """Fetch and produce with nothing between: see :mod:`benchmarks.limit`."""

    name = "limit"
    title = TITLES["limit"]
    rival = False

    def launch(self, flow: Flow, folder: Path) -> Launched:
        """Start it for a flow; its log is in ``folder``."""
        words = [flow.source, flow.target, flow.tag, *flow.workload.names]
        return _launch([sys.executable, "-m", "benchmarks.limit", *words], flow, folder)


def _launch(command: list[str], flow: Flow, folder: Path) -> Launched:
    """A process of ours, in a session of its own; the name of its target topics begins with the flow's tag."""
    with (folder / "stdout.json").open("wb") as out, (folder / "stderr.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True, preexec_fn=default_signals,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    topics = {name: f"{flow.tag}.{name}" for name in flow.workload.names}
    return Launched(process, topics, folder / "stderr.log", folder / "stdout.json")

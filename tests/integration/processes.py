"""Help for tests that run the mirror as a process of its own and end it, gently or not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.execution.spark import DAEMON_MODULE
from tests.support.hosts import other_clock


def start_mirror(config: Path, *arguments: str, ahead: float = 0.0) -> subprocess.Popen[str]:
    """``mirror -c config arguments`` in a session of its own; its output goes to files beside the configuration.

    ``ahead``: seconds by which its clock is ahead of everybody else's.
    """
    out, err = config.parent / "stdout.txt", config.parent / "stderr.txt"
    with out.open("w") as stdout, err.open("a") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "mirror_pipeline.cli", *arguments, "-c", str(config)],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, start_new_session=True,
            env={**os.environ, **(other_clock(config.parent, ahead) if ahead else {})},
        )  # fmt: skip


def document(config: Path) -> dict[str, object]:
    """The JSON document that the last process printed."""
    body: dict[str, object] = json.loads((config.parent / "stdout.txt").read_text())
    return body


def kill_tree(process: subprocess.Popen[str]) -> None:
    """``kill -9`` for the process and everything it has started: Python, JVM, Spark's workers."""
    try:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    for member in tree:
        try:
            os.kill(member.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(30)
    psutil.wait_procs(tree, timeout=30)


def wait_until(condition: Callable[[], bool], seconds: float, what: str | Callable[[], str]) -> None:
    """Poll until the condition holds; fail with ``what`` after ``seconds`` (a function is asked then)."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what if isinstance(what, str) else what()}"
        time.sleep(0.05)


def lane_is_running(folder: Path, process: subprocess.Popen[str]) -> Callable[[], bool]:
    """True once the lane's status file names this process as running, or the process has ended."""
    store = LaneStore(str(folder / "buffer" / "m" / "lane-0"), "m", "lane-0")

    def running() -> bool:
        file = read_lane_file(store)
        return process.poll() is not None or (file.pid == process.pid and file.state == "running")

    return running


def kill_a_worker(process: subprocess.Popen[str]) -> int:
    """``kill -9`` for one of the Python workers that Spark has forked; how many were killed (0 when there is none now)."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return 0
    workers = [member for member in family if _is_worker(member)]
    for worker in random.sample(workers, min(1, len(workers))):
        try:
            worker.kill()
        except psutil.NoSuchProcess:
            return 0
        return 1
    return 0


def _is_worker(process: psutil.Process) -> bool:
    """A child of the daemon that Spark starts its Python workers with."""
    try:
        parent = process.parent()
        return parent is not None and DAEMON_MODULE in " ".join(parent.cmdline())
    except psutil.NoSuchProcess:
        return False

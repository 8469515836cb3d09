"""The mirror as a process of its own, with its JVM and Python workers in reach."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from mirror_pipeline.crash_points import CRASH
from mirror_pipeline.execution.spark import DAEMON_MODULE
from tests.support.waiting import has_input

SUBREAPER = Path(__file__).with_name("subreaper.py")
END_SECONDS = 60.0
DUMP_SECONDS = 1.0


class Stuck(AssertionError):
    """Something that must happen did not happen in time."""


def wait_for(what: str, condition: Callable[[], object], seconds: float, *, poll: float = 0.05) -> None:
    """Poll until the condition holds.

    Raises:
        Stuck: it did not hold within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Stuck(f"waited {seconds:.0f} s for {what}")
        time.sleep(poll)


def send_signal(pid: int, number: int) -> bool:
    """False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class MirrorChild:
    """``mirror ARGUMENTS -c config``, started at once, in its own session below a subreaper.

    Args:
        config: its mirror.yaml; output goes to ``out-N.txt`` and ``err-N.txt`` beside it.
        arguments: the command.
        extra: environment on top of ours, for crash points.
    """

    _count = 0

    def __init__(self, config: Path, *arguments: str, extra: Mapping[str, str] | None = None) -> None:
        MirrorChild._count += 1
        self.config = config
        self.out = config.parent / f"out-{MirrorChild._count}.txt"
        self.err = config.parent / f"err-{MirrorChild._count}.txt"
        self.code: int | None = None
        with self.err.open("wb") as err:
            self._subreaper = subprocess.Popen(
                [sys.executable, str(SUBREAPER), "/bin/sh", "-c", 'exec "$@" >"$0"', str(self.out)]
                + [sys.executable, "-m", "mirror_pipeline.cli", "--debug", *arguments, "-c", str(config)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, start_new_session=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", **(extra or {})},
            )  # fmt: skip
        self.pid = int(self._line(END_SECONDS) or 0)
        self.began = time.monotonic()

    def _line(self, seconds: float) -> str:
        assert self._subreaper.stdout is not None
        return self._subreaper.stdout.readline().decode().strip() if has_input(self._subreaper.stdout, seconds) else ""

    def poll(self) -> int | None:
        """The exit code once it has ended, negative for a signal."""
        if self.code is None and (line := self._line(0)):
            self.code = int(line)
        return self.code

    @property
    def alive(self) -> bool:
        """Whether the driver runs (or is stopped)."""
        return self.poll() is None

    def wait(self, seconds: float) -> int:
        """The exit code. Raises Stuck."""
        wait_for(f"{self.config.parent.name}: mirror to end", lambda: self.poll() is not None, seconds)
        assert self.code is not None
        return self.code

    def family(self) -> list[psutil.Process]:
        """All descendants of the subreaper."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._subreaper.pid).children(recursive=True)
        return []

    def _named(self, *words: str) -> Iterator[psutil.Process]:
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                if all(word in process.cmdline() for word in words):
                    yield process

    def jvm(self) -> int | None:
        """The process id of Spark's JVM."""
        return next((p.pid for p in self._named("org.apache.spark.deploy.SparkSubmit")), None)

    def daemons(self) -> list[int]:
        """What forks Spark's Python workers: started by the JVM, or by the driver before the JVM was up."""
        return self._daemons_and_workers()[0]

    def workers(self) -> list[int]:
        """Spark's Python workers; those whose daemon was killed still serve the JVM."""
        return self._daemons_and_workers()[1]

    def _daemons_and_workers(self) -> tuple[list[int], list[int]]:
        named = {p.pid: p.ppid() for p in self._named(DAEMON_MODULE)}
        orphans = {pid for pid, parent in named.items() if parent == self._subreaper.pid}
        daemons = [pid for pid, parent in named.items() if parent not in named and pid not in orphans]
        return daemons, [pid for pid in named if pid not in daemons]

    def a_worker(self, chance: random.Random, ports: set[int]) -> int | None:
        """A worker, one with a connection to one of ``ports`` if there is one."""
        workers = self.workers()
        busy = [pid for pid in workers if connected(pid, ports)]
        return chance.choice(busy or workers) if workers else None

    def stopped(self) -> list[int]:
        """Processes of the family that hang in SIGSTOP."""
        return [p.pid for p in self.family() if _status(p) == psutil.STATUS_STOPPED]

    def kill_tree(self, spare: frozenset[int] = frozenset()) -> None:
        """``kill -9`` for driver, JVM and workers, except ``spare``."""
        family = [process for process in self.family() if process.pid not in spare]
        for process in family:
            send_signal(process.pid, signal.SIGKILL)
        psutil.wait_procs(family, timeout=END_SECONDS)
        self.wait(END_SECONDS)

    def end(self, seconds: float = 120.0) -> int:
        """SIGTERM and wait; the exit code. Raises Stuck."""
        if self.alive:
            send_signal(self.pid, signal.SIGTERM)
        return self.wait(seconds)

    def close(self) -> None:
        """End the subreaper and its descendants."""
        if self._subreaper.stdin is not None:
            self._subreaper.stdin.close()
        self._subreaper.wait(END_SECONDS)
        if self._subreaper.stdout is not None:
            self._subreaper.stdout.close()

    def last_words(self) -> str:
        """The last line of its error output."""
        lines = [line.strip() for line in self.err.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("error", "hint")) or "halted" in line]
        return " | ".join((errors or lines)[-2:])[:400]

    def dump(self) -> str:
        """Stacks of JVM, workers and driver of a run that hangs (it ends by this)."""
        for pid in self.stopped():
            send_signal(pid, signal.SIGCONT)
        jvm = self.jvm()
        if jvm is not None:
            send_signal(jvm, signal.SIGQUIT)
            time.sleep(DUMP_SECONDS)
        for pid in self.workers():
            send_signal(pid, signal.SIGABRT)
        time.sleep(DUMP_SECONDS)
        send_signal(self.pid, signal.SIGABRT)
        with contextlib.suppress(Stuck):
            self.wait(10)
        return f"all of it: {self.err}\n" + self.err.read_text(errors="replace")[-6000:]


def finished(config: Path, *words: str, seconds: float, point: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit code, document and last words of a command that ends, or is killed at a crash point."""
    child = MirrorChild(config, *words, "--json", extra={CRASH: point} if point else {})
    try:
        code = child.wait(seconds)
        text = child.out.read_text()
        return code, json.loads(text) if code == 0 else {}, child.err.read_text(errors="replace")
    finally:
        child.close()


def connected(pid: int, ports: set[int]) -> bool:
    """Whether the process has a connection to one of the ports."""
    try:
        return any(c.raddr and c.raddr.port in ports for c in psutil.Process(pid).net_connections("tcp"))
    except psutil.Error:
        return False


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return ""

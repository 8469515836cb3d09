"""One embedded Kafka broker: a JVM in its own session, which any process can find through its folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mirror_pipeline.children import default_signals
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution.java import find_java
from mirror_pipeline.local.embedded.settings import kafka_uuid, logging_properties

# What formatting writes beside meta.properties: up to Kafka 4.3, and from 4.4 on.
FORMATTED = ("bootstrap.checkpoint", "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint")
FORMAT_SECONDS = 90.0  # a JVM that writes two small files: 2 s, longer on a starved machine
STOP_SECONDS = 30.0  # a clean stop flushes every log; 1-3 s for an embedded broker
KILL_SECONDS = 10.0  # until the kernel has removed the process
_POLL_SECONDS = 0.05
_STOP_POLL_SECONDS = 0.001
_HALTED = frozenset("TtZX")  # stopped, traced, zombie, dead: proc(5), /proc/pid/stat

_children: dict[int, subprocess.Popen[bytes]] = {}  # started by this process, which must reap them


class StartFailed(MirrorError):
    """A broker ended before it was ready, or was not ready in time; the message contains the first error of its log."""


class LocalBroker:
    """Broker ``node`` of an embedded cluster in ``folder``: ``data/``, ``server.properties``, ``server.log``, ``pid``."""

    def __init__(self, folder: Path, node: int, version: str, heap: str, jvm_options: Sequence[str] = ()) -> None:
        self.folder = folder
        self.node = node
        self._version = version
        self._heap = heap
        self._jvm_options = tuple(jvm_options)
        self._marker = f"-Dmirror.broker={folder}"

    @property
    def data(self) -> Path:
        """Kafka's log directory."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The broker's own log."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The process id, None when no process of this broker runs; an id that another process has reused does not count."""
        try:
            pid = int((self.folder / "pid").read_text())
        except (OSError, ValueError):
            return None
        child = _children.get(pid)
        if child is not None:  # its command line is empty for a moment while it starts
            return pid if child.poll() is None else None
        return pid if f"{self._marker} " in f"{command_line(pid)} " else None

    @property
    def alive(self) -> bool:
        """True while the process exists, paused or not."""
        return self.pid is not None

    def write_settings(self, text: str) -> None:
        """Write server.properties and the log's configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "server.properties").write_text(text)
        (self.folder / "logging.properties").write_text(logging_properties(self._version)[1])

    def format(self, jars: Path, cluster_id: str, storage_args: Sequence[str]) -> None:
        """Format the data folder, unless it is formatted."""
        if (self.data / "meta.properties").exists():
            return
        command = [*self._java(jars, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"), "kafka.tools.StorageTool", "format"]
        command += ["-g", "-t", cluster_id, "-c", str(self.folder / "server.properties"), *storage_args]
        try:
            done = subprocess.run(  # noqa: S603 - our own command line
                command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FORMAT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise StartFailed(f"formatting {self.data} took more than {FORMAT_SECONDS:.0f} s", hint=f"log: {self.log}") from error
        (self.folder / "format.log").write_text(done.stdout + done.stderr)
        if done.returncode != 0:
            raise StartFailed(f"formatting {self.data}: {cause_in(done.stderr or done.stdout)}", hint=f"log: {self.folder / 'format.log'}")

    def format_like(self, other: LocalBroker) -> None:
        """Format the data folder, unless it is formatted, as another broker's of the same cluster, which saves a JVM.

        With static voters only ``node.id`` and ``directory.id`` differ (KIP-631, KIP-858).
        """
        if (self.data / "meta.properties").exists():
            return
        for formatted in (name for name in FORMATTED if (other.data / name).exists()):
            (self.data / formatted).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(other.data / formatted, self.data / formatted)
        own = {"node.id": str(self.node), "directory.id": kafka_uuid()}
        lines = (other.data / "meta.properties").read_text().splitlines()
        text = "".join(f"{key}={own.get(key, value)}\n" for key, _, value in (line.partition("=") for line in lines if "=" in line))
        (self.data / "meta.properties").write_text(text)

    def launch(self, jars: Path) -> None:
        """Start the JVM; it outlives this process. The cluster waits until it is ready."""
        options = [f"-Xmx{self._heap}", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError", *self._jvm_options]
        command = [*self._java(jars, *options), "kafka.Kafka"]
        command.append(str(self.folder / "server.properties"))
        self.log.unlink(missing_ok=True)
        with (self.folder / "stdout.log").open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=default_signals,
            )  # fmt: skip
        _children[process.pid] = process
        (self.folder / "pid").write_text(str(process.pid))

    def _java(self, jars: Path, *options: str) -> list[str]:
        name, _ = logging_properties(self._version)
        log_settings = f"-D{name}=file:{self.folder / 'logging.properties'}"
        quiet = ["-Djava.awt.headless=true", "-XX:-UsePerfData"]
        return [str(find_java()), *options, *quiet, self._marker, log_settings, "-cp", f"{jars}/*"]

    def signal(self, number: int) -> None:
        """Send a signal to the process, if there is one; SIGSTOP returns when it has stopped (Linux).

        Raises:
            MirrorError: it does not stop.
        """
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if number == signal.SIGSTOP:
                self._stopped(pid)

    def _stopped(self, pid: int) -> None:
        """Wait until no thread runs: on a busy machine, threads stop up to tens of ms after the first one."""
        if not _by(time.monotonic() + KILL_SECONDS, lambda: self.pid != pid or has_stopped(pid), pause=_STOP_POLL_SECONDS):
            raise MirrorError(f"process {pid} of {self.folder} does not stop", hint="inspect it with ps")

    def terminate(self) -> None:
        """SIGTERM; a paused process is resumed for it."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def end(self, deadline: float) -> None:
        """Wait until the process has ended; SIGKILL once ``deadline`` (of ``time.monotonic``) has passed."""
        if not self._ended_by(deadline):
            self.signal(signal.SIGKILL)
            if not self._ended_by(time.monotonic() + KILL_SECONDS):
                raise MirrorError(f"process {self.pid} of {self.folder} does not end", hint="inspect it with ps")
        (self.folder / "pid").unlink(missing_ok=True)

    def _ended_by(self, deadline: float) -> bool:
        return _by(deadline, lambda: not self.alive, pause=_POLL_SECONDS)

    def failure(self) -> str:
        """The cause of a failed start in one line, from the broker's own output."""
        texts = [path.read_text(errors="replace") for path in (self.log, self.folder / "stdout.log") if path.exists()]
        return next((cause for text in texts if (cause := cause_in(text))), "no output")


def _by(deadline: float, condition: Callable[[], bool], *, pause: float) -> bool:
    """Poll; return whether the condition held before ``deadline`` (of ``time.monotonic``)."""
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
    return True


def command_line(pid: int) -> str:
    """The command line of a process, empty when it does not exist (or is a zombie)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        if Path("/proc/self").exists():
            return ""
    listed = subprocess.run(  # noqa: S603 - no /proc (macOS), but ps
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return listed.stdout


def thread_states(pid: int) -> set[str]:
    """The states of a process's threads, letters of proc(5); empty if there is no such process, or no /proc."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            states.add(stat.read_text(errors="replace").rpartition(")")[2].split()[0])
    return states


def has_stopped(pid: int) -> bool:
    """Whether no thread of the process runs: it is paused or has ended."""
    return thread_states(pid) <= _HALTED


_ERROR = re.compile(r"^(?:\[[^\]]*\] )?(?:ERROR|FATAL) (?P<text>.*?)(?: \([\w.$]+\))?$")
_THROWN = re.compile(r"^(?:Caused by: |Exception in thread \S+ )?(?P<text>(?:[\w$]+\.)+[\w$]*(?:Exception|Error)\b.*)$")


def cause_in(log: str) -> str:
    """The innermost exception of the first error in a Kafka log, else the error's own text, else the last line."""
    lines = log.splitlines()
    first = next((i for i, line in enumerate(lines) if _ERROR.match(line) or _THROWN.match(line)), None)
    if first is None:
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    head = _ERROR.match(lines[first])
    thrown: list[str] = []
    for line in lines[first + (head is not None) :]:
        match = _THROWN.match(line)
        if match:
            thrown.append(match["text"])
        elif not line.startswith(("\t", " ")):
            break
    return (thrown[-1] if thrown else head["text"] if head else lines[first]).strip()[:400]

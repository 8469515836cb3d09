"""The processes of ``mirror up``: each has its own process group and log file, and none outlives its stop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mirror_pipeline.children import default_signals

SERVICE_POLL_SECONDS = 0.2
TAIL_LINES = 8
_PR_SET_PDEATHSIG = 1


class Service:
    """One child process. Its descendants (run workers, their JVMs) share its process group."""

    def __init__(self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        if log.exists():
            os.replace(log, log.with_suffix(".log.1"))
        with log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
                [sys.executable, "-P", "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                # Its own session: Ctrl-C in the terminal reaches `mirror up` alone, which ends the children in the right order.
                start_new_session=True,
                preexec_fn=_end_with_parent(),
            )

    @property
    def pid(self) -> int:
        """The process id; the group has the same id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def terminate(self) -> None:
        """SIGTERM to the process, not to its group."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def end(self, seconds: float) -> None:
        """Terminate, wait, then kill the whole group: no descendant is left."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def wait_until(condition: Callable[[], bool], seconds: float, *, give_up: Callable[[], bool] = lambda: False) -> bool:
    """Poll until the condition holds; False on timeout or when ``give_up`` returns True."""
    deadline = time.monotonic() + seconds
    while not condition():
        if give_up() or time.monotonic() >= deadline:
            return False
        time.sleep(SERVICE_POLL_SECONDS)
    return True


def _end_with_parent() -> Callable[[], None]:
    """On Linux the kernel sends the child SIGTERM when this process dies, even by SIGKILL."""
    if not sys.platform.startswith("linux"):
        return default_signals
    libc = ctypes.CDLL(None, use_errno=True)

    def set_signal() -> None:
        default_signals()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return set_signal

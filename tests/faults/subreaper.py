"""Run one command and adopt its orphaned processes: ``python subreaper.py COMMAND ...``.

A process group that loses its last parent in the session is orphaned, and the kernel wakes its stopped members with
SIGHUP. A worker of Spark that is stopped while its JVM is killed would therefore never resume late, as a
frozen virtual machine does. This process is a subreaper in the same session, so the group keeps a parent.

It prints the command's process id and, after its end, its exit code. When its standard input closes it kills
all its descendants and exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LOOK_SECONDS = 0.05
END_SECONDS = 10.0


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, from /proc."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        own = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return own + [below for child in own for below in descendants(child)]


def kill_all() -> None:
    """Kill and reap all descendants, stopped processes included."""
    deadline = time.monotonic() + END_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap(-1)
        time.sleep(LOOK_SECONDS)


def reap(child: int) -> int | None:
    """Reap every ended process; return the exit code of ``child`` if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
    return code


def main() -> None:
    """Start the command, print its id and exit code, clean up."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, process_group=0).pid
    print(child, flush=True)
    while True:
        code = reap(child)
        if code is not None:
            print(code, flush=True)
        if select.select([sys.stdin], [], [], LOOK_SECONDS)[0] and not sys.stdin.buffer.read(1):
            break
    kill_all()


if __name__ == "__main__":
    main()

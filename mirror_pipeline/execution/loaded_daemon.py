"""A Spark daemon that loads the tasks' code while Java starts, instead of after it: a second less until the first task.

    this process --fork--> loads, then waits at a socket
    Java         --fork--> the daemon that Spark asked for: passes its pipes and variables to the waiting one, and stays until that ends

Java sees no difference: it reads and writes the same pipes, and ends the daemon by closing them. Where no process waits (a daemon that Java
starts again, an executor of a cluster) the daemon loads by itself.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.children import default_signals

VARIABLE = "MIRROR_SPARK_DAEMON"  # of the daemon that Java starts: the socket at which a loaded one waits
WAIT = "--wait"
_PIPES = (0, 1, 2)
_started: list[subprocess.Popen[bytes]] = []  # each ends with this process, which holds its standard input open


def start_loading(module: str, folder: str) -> str:
    """Start a process that loads ``module``'s code and then waits for the daemon that Java starts.

    Args:
        module: whose main is :func:`run`.
        folder: for the socket, closed to other users.

    Returns:
        The value of ``VARIABLE`` for that daemon.
    """
    path = Path(folder, f"daemon-{len(_started)}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        os.set_inheritable(listener.fileno(), True)
        command = [sys.executable, "-P", "-m", module, WAIT, str(listener.fileno())]
        # Spark gives its workers the same seed, so that all of them hash a string alike.
        variables = {**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        child = subprocess.Popen(  # noqa: S603 - this interpreter, our module
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()], env=variables, preexec_fn=default_signals,
        )  # fmt: skip
    _started.append(child)
    return str(path)


def wait_for_pipes(listener: socket.socket) -> bool:
    """Take over the pipes and variables of the daemon that Java started; False when the process that started this one is gone."""
    ready, _, _ = select.select([listener.fileno(), 0], [], [])
    if listener.fileno() not in ready:
        return False
    handed, _ = listener.accept()
    address = listener.getsockname()
    listener.close()
    Path(address).unlink(missing_ok=True)  # a daemon that Java starts again loads by itself
    _, pipes, _, _ = socket.recv_fds(handed, 1, len(_PIPES))
    with handed.makefile("rb") as lines:
        variables = json.loads(lines.readline())
    for pipe, number in zip(pipes, _PIPES, strict=True):
        os.dup2(pipe, number)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(variables)
    handed.sendall(b"+")
    handed.detach()  # open until this process ends: the other end waits for that
    return True


def hand_over() -> bool:
    """In the daemon that Java started: give the pipes to the loaded one and wait for its end; False when none waits."""
    path = os.environ.pop(VARIABLE, None)
    if path is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(path)
            socket.send_fds(line, [b"."], _PIPES)
            line.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
            taken = bool(line.recv(1))
        except OSError:  # taken by an earlier daemon, or ended
            return False
        while taken and line.recv(1):
            pass
    return taken


def run(arguments: list[str], load: Callable[[], None], serve: Callable[[], None]) -> None:
    """The daemon's main: load and serve, for this process's Java or for the one that hands its pipes over."""
    if arguments[:1] == [WAIT]:
        os.setpgid(0, 0)  # not ended with the terminal's other processes: Java ends it
        listener = socket.socket(fileno=int(arguments[1]))
        load()
        if wait_for_pipes(listener):
            serve()
    elif not hand_over():
        load()
        serve()

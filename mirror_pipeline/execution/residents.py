"""Processes on a Spark executor that outlive a task: what one task has under way is there for the next.

Spark gives a task to whichever of its Python workers is idle. So a worker hands a task that continues an earlier one to a resident process,
one for each key, and waits for its result:

    daemon --fork--> keeper --fork--> resident of a key: runs its tasks one after the other
       |               ^                     ^
       +--fork--> worker: the key ..........: a connection, over which task and result go

There is no address: workers inherit the way to the keeper, and the connection is passed on. A resident ends when the worker of its task is
gone, as the worker's own task would; without a task for IDLE_SECONDS; and with the keeper, which ends once daemon and workers are gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from mirror_pipeline.children import default_signals
from mirror_pipeline.errors import TaskLost

T = TypeVar("T")
R = TypeVar("R")

# What a resident holds is worth nothing once its reader pauses: starting anew takes a second or two.
RESIDENT_IDLE_SECONDS = 20.0
# The first connection may reach a resident that is just ending.
TRIES = 2
_KEY_BYTES = 1024
_ACCEPTED = b"+"
_SIZE = struct.Struct("!Q")

_keeper: socket.socket | None = None


class NoResident(Exception):
    """There is no keeper, or it is gone: the task should run in the worker itself."""


def start_keeper() -> None:
    """Fork the keeper of this process's workers-to-be; without it, where the system has no such sockets, tasks run in their workers.

    The process must have no thread yet.
    """
    global _keeper
    try:
        asks, hears = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        return
    if os.fork() == 0:
        asks.close()
        _forked(lambda: _keep(hears))
    hears.close()
    _keeper = asks


def call(key: str, function: Callable[[T], R], argument: T) -> R:
    """Run a function in the resident of a key and wait; it is started if there is none.

    Args:
        key: what the resident's tasks have in common.
        function: at the top level of its module.
        argument: picklable, as is the result.

    Raises:
        NoResident: nothing has run.
        TaskLost: the resident has died over it.

    What the function raises is raised.
    """
    for _ in range(TRIES):
        near = _connected(key)
        with near, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _send(near, (function, argument))
            if near.recv(1) == _ACCEPTED:
                return cast("R", _result(near))
    raise NoResident


def _connected(key: str) -> socket.socket:
    """A connection to the resident of a key."""
    if _keeper is None:
        raise NoResident
    near, far = socket.socketpair()
    try:
        with far:
            socket.send_fds(_keeper, [key.encode()[:_KEY_BYTES]], [far.fileno()])
    except OSError as error:
        near.close()
        raise NoResident from error
    return near


def _result(near: socket.socket) -> object:
    try:
        done, value = _received(near)
    except (EOFError, ConnectionError) as error:
        raise TaskLost("a resident process of a Spark worker died") from error
    if not done:
        raise cast("Exception", value)
    return value


def _send(line: socket.socket, value: object) -> None:
    data = pickle.dumps(value)
    line.sendall(_SIZE.pack(len(data)) + data)


def _received(line: socket.socket) -> Any:
    """What ``_send`` sent. Raises EOFError when the other end is gone."""
    (size,) = _SIZE.unpack(_exactly(line, _SIZE.size))
    return pickle.loads(_exactly(line, size))  # noqa: S301 - from this process's own forks


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = line.recv(min(size - len(data), 1 << 20))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def _forked(work: Callable[[], None]) -> NoReturn:
    """Run this in the process just forked, and end it: nothing of what the parent has to clean up is its own."""
    global _keeper
    code, _keeper = 1, None
    try:
        default_signals()
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):  # the JVM's: it waits for the end of both
            os.dup2(null, standard)
        os.close(null)
        work()
        code = 0
    finally:
        os._exit(code)


def _keep(hears: socket.socket) -> None:
    """Pass connections on to the residents of their keys until all who may ask are gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing is left of residents that have ended
    residents: dict[str, socket.socket] = {}
    while True:
        key, files, _, _ = socket.recv_fds(hears, _KEY_BYTES, 1)
        if not key:
            return
        for name in [name for name, line in residents.items() if _ended(line)]:
            residents.pop(name).close()
        name = key.decode()
        if name not in residents:
            residents[name] = _resident(hears, residents)
        with contextlib.suppress(OSError):  # it has just ended: the worker tries again
            socket.send_fds(residents[name], [b"\0"], files)
        for file in files:
            os.close(file)


def _ended(line: socket.socket) -> bool:
    return bool(select.select([line], [], [], 0)[0])  # residents send nothing: it can only be the end


def _resident(hears: socket.socket, others: dict[str, socket.socket]) -> socket.socket:
    """Fork one; returns the line to it."""
    line, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for inherited in (line, hears, *others.values()):
            inherited.close()
        _forked(lambda: _serve(mine))
    mine.close()
    return line


def _serve(line: socket.socket) -> None:
    """Run the tasks that come until there are none for a while, or the keeper is gone."""
    line.settimeout(RESIDENT_IDLE_SECONDS)
    with contextlib.suppress(TimeoutError, OSError):
        while True:
            _, files, _, _ = socket.recv_fds(line, 1, 1)
            if not files:
                return
            with socket.socket(fileno=files[0]) as task:
                _answer(task)


def _answer(task: socket.socket) -> None:
    """Run one task; ends the process when its worker is gone meanwhile."""
    try:
        function, argument = _received(task)
        task.sendall(_ACCEPTED)
    except (EOFError, ConnectionError):
        return
    over = threading.Event()
    threading.Thread(target=_leave_with, args=(task, over), daemon=True).start()
    answer: tuple[bool, object]
    try:
        answer = True, function(argument)
    except Exception as error:  # noqa: BLE001 - raised in the worker
        answer = False, error
    over.set()
    with contextlib.suppress(ConnectionError):
        _send(task, answer)
    with contextlib.suppress(OSError):
        task.shutdown(socket.SHUT_RDWR)


def _leave_with(task: socket.socket, over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        task.recv(1)
    if not over.is_set():
        os._exit(1)

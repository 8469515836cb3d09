"""Hide the output of Spark's JVM, and keep its last lines for error reports.

A child process writes to descriptors 1 and 2 directly, so a log line could land inside a progress bar or before a JSON
document. While Spark may start, both descriptors lead into a pipe; ``sys.stdout`` and ``sys.stderr`` keep their
original destinations.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

KEPT_LINES = 40


class Overheard:
    """The last lines that child processes wrote."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def listen(self, descriptor: int) -> None:
        """Read lines until the other end is closed; runs in its own thread."""
        with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                self._lines.append(line.rstrip())

    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)


@contextmanager
def children_unheard(*, wanted: bool = True) -> Iterator[Overheard]:
    """Capture the output of child processes inside the block; do nothing with ``wanted=False`` or replaced streams, as in tests."""
    heard = Overheard()
    streams = (sys.stdout, sys.stderr)
    if not wanted or not _are_own(streams):
        yield heard
        return
    reader, writer = os.pipe()
    # A JVM that outlives the block still writes into the pipe, so the thread runs until the process exits.
    threading.Thread(target=heard.listen, args=(reader,), daemon=True, name="children's output").start()
    saved = [_divert(stream, number, writer) for number, stream in enumerate(streams, 1)]
    os.close(writer)
    sys.stdout, sys.stderr = saved
    try:
        yield heard
    finally:
        sys.stdout, sys.stderr = streams
        for number, stream in ((1, saved[0]), (2, saved[1])):
            stream.flush()
            os.dup2(stream.fileno(), number)
            stream.close()


def _divert(stream: io.TextIOWrapper, number: int, writer: int) -> io.TextIOWrapper:
    stream.flush()
    copy = type(stream)(os.fdopen(os.dup(number), "wb"), stream.encoding, stream.errors, line_buffering=True)
    os.dup2(writer, number)
    return copy


def _are_own(streams: tuple[object, object]) -> TypeGuard[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    try:
        return all(isinstance(stream, io.TextIOWrapper) and stream.fileno() == number for number, stream in enumerate(streams, 1))
    except (OSError, ValueError):
        return False

"""Keeps what Spark's JVM writes away from the screen, and its last lines at hand for when something goes wrong.

A child process writes to descriptors 1 and 2 whatever Python thinks of it: a log line in the middle of a progress bar,
or in front of a JSON document. While Spark may be started those two descriptors lead into a pipe; ``sys.stdout`` and
``sys.stderr`` go on to where they led before.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

KEPT_LINES = 40


class Overheard:
    """The last lines that child processes wrote."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def listen(self, descriptor: int) -> None:
        """Read lines until nobody has the other end; for a thread of its own."""
        with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                self._lines.append(line.rstrip())

    def lines(self) -> list[str]:
        """What was heard last, oldest first."""
        return list(self._lines)


@contextmanager
def children_unheard(*, wanted: bool = True) -> Iterator[Overheard]:
    """Catch the output of child processes while inside; ``wanted=False``, or odd streams (a test's), leave all as it is."""
    heard = Overheard()
    if not (wanted and _is(sys.stdout, 1) and _is(sys.stderr, 2)):
        yield heard
        return
    reader, writer = os.pipe()
    # A JVM that outlives the block still writes into the pipe: the thread goes on as long as the process does.
    threading.Thread(target=heard.listen, args=(reader,), daemon=True, name="children's output").start()
    before = (sys.stdout, sys.stderr)
    saved = [_divert(stream, number, writer) for number, stream in ((1, sys.stdout), (2, sys.stderr))]
    os.close(writer)
    sys.stdout, sys.stderr = saved
    try:
        yield heard
    finally:
        sys.stdout, sys.stderr = before
        for number, stream in ((1, saved[0]), (2, saved[1])):
            stream.flush()
            os.dup2(stream.fileno(), number)
            stream.close()


def _divert(stream: TextIO, number: int, writer: int) -> TextIO:
    stream.flush()
    copy = os.fdopen(os.dup(number), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)
    os.dup2(writer, number)
    return copy


def _is(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (AttributeError, OSError, ValueError):
        return False

"""Opens connections in the background, a few at a time: over a long link each takes several round trips."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from mirror_pipeline.kafka.client import Connection

MOST_OPENING = 40
"""Connections that are opened at the same time: a broker lets 50 wait (``socket.listen.backlog.size``); of more some would have
to knock again after a second, then after three."""


class Dialer:
    """Calls ``open_connection`` in threads of its own; ``news`` becomes readable when something came of it, or with ``wake``."""

    def __init__(self, open_connection: Callable[[], Connection]) -> None:
        self._open_connection = open_connection
        self._lock = threading.Lock()
        self._wanted = self._opening = self._threads = 0
        self._opened: list[Connection | Exception] = []
        self._over = self._rung = False
        self.news, self._bell = socket.socketpair()
        self.news.setblocking(False)
        self._bell.setblocking(False)

    @property
    def busy(self) -> bool:
        """Whether more may come of what was wanted."""
        with self._lock:
            return bool(self._wanted or self._opening or self._opened)

    def want(self, count: int) -> None:
        """Open this many more."""
        with self._lock:
            self._wanted += max(0, count)
            fresh = min(self._wanted, MOST_OPENING - self._threads)
            self._threads += fresh
        for _ in range(fresh):
            threading.Thread(target=self._work, name="dialling", daemon=True).start()

    def opened(self) -> list[Connection | Exception]:
        """What has become of those that were wanted, since the last call."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                self.news.recv(1)
            self._rung = False
            found, self._opened = self._opened, []
            return found

    def wake(self) -> None:
        """Make ``news`` readable."""
        with self._lock:
            if not self._over:
                self._ring()

    def end(self) -> None:
        """Open nothing more. What is being opened is not waited for; it is closed as soon as it is open."""
        with self._lock:
            self._over = True
            self.news.close()
            self._bell.close()
            left, self._opened = self._opened, []
        _close(left)

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._bell.send(b"\0")

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._over or not self._wanted:
                    self._threads -= 1
                    return
                self._wanted -= 1
                self._opening += 1
            self._hand_in(self._tried())

    def _hand_in(self, found: Connection | Exception) -> None:
        with self._lock:
            self._opening -= 1
            if not self._over:
                self._opened.append(found)
                self._ring()
                return
        _close([found])

    def _tried(self) -> Connection | Exception:
        try:
            return self._open_connection()
        except Exception as error:  # noqa: BLE001 - returned by ``opened``
            return error


def _close(found: list[Connection | Exception]) -> None:
    for each in found:
        if not isinstance(each, Exception):
            each.close()

"""Threads that wait for Spark jobs and do not keep the process from ending.

The standard library's executor joins its threads when the interpreter exits: one job that never ends, because its
worker was stopped by a signal, would hold up the end of a run forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


class DaemonPool:
    """Keeps its threads: each has one of its own in Spark's JVM.

    Args:
        most: how many calls run at once; further ones wait.
        name: of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Run ``call`` in one of the threads."""
        future: Future[R] = Future()
        self._waiting.put((future, call))
        with self._lock:
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                self._threads.append(threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True))
                self._threads[-1].start()
        return future

    def _work(self) -> None:
        while True:
            future, call = self._waiting.get()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                future.set_exception(error)
            self._idle.release()

"""Run mirrors in threads while the main thread handles signals and output.

Spark must not start in the main thread: there it installs its own SIGINT handler, which cancels running jobs. Started
in another thread, it leaves signal handling to this module.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

from mirror_pipeline.cli.errors import INTERRUPTED

T = TypeVar("T")

WAKE_SECONDS = 0.2
"""How long the main thread sleeps at a time; a signal wakes it earlier."""


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """One mirror's work."""

    name: str
    work: Callable[[], T]


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The outcome of a job: a result, an error, or neither when it was stopped before it started."""

    name: str
    result: T | None = None
    error: BaseException | None = None


def run_jobs(jobs: Sequence[Job[T]], *, together: bool, stop: threading.Event) -> list[Outcome[T]]:
    """Run all ``jobs``, sequentially or concurrently, and return their outcomes in the order of ``jobs``.

    A failed job does not prevent the others from running. No further job starts once ``stop`` is set.
    """
    outcomes: dict[str, Outcome[T]] = {}
    groups = [[job] for job in jobs] if together else [list(jobs)]
    threads = [threading.Thread(target=_work, args=(group, stop, outcomes), daemon=True, name=group[0].name) for group in groups if group]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(WAKE_SECONDS)
    return [outcomes.get(job.name, Outcome(job.name)) for job in jobs]


def _work(jobs: Sequence[Job[T]], stop: threading.Event, outcomes: dict[str, Outcome[T]]) -> None:
    for job in jobs:
        if stop.is_set():
            return
        try:
            outcomes[job.name] = Outcome(job.name, result=job.work())
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which reports it
            outcomes[job.name] = Outcome(job.name, error=error)


@contextmanager
def signals_stop(stop: threading.Event, say: Callable[[str], None], leave: Callable[[int], object] = os._exit) -> Iterator[None]:
    """SIGINT, SIGTERM and the end of the terminal (SIGHUP) set ``stop``; a later SIGINT exits the process at once.

    Without a terminal SIGHUP asks a service to read its configuration again, as runs do by themselves. nohup's ignored one stays ignored.
    """
    asked, terminal = False, _has_terminal()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP and not terminal:
            say("mirror.yaml is followed: a change takes effect within seconds")
        elif not asked:
            asked = True
            try:
                say("stopping: finishing the records in progress; Ctrl-C again exits at once")
            finally:
                stop.set()
        elif number == signal.SIGINT:
            leave(INTERRUPTED)

    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, *hangup)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True

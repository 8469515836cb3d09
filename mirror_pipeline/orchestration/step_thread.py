"""A call of a mirror in its own thread, watched by the step's main thread.

Only the main thread may log Dagster events (events logged by other threads get lost), and only it receives the
interrupt when a run is terminated. So the copy runs in the worker thread, and the main thread watches it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from mirror_pipeline.orchestration.project import UP_PID_ENV
from mirror_pipeline.reports import Progress

STEP_LOOK_SECONDS = 0.5
# How long an interrupted run may take to stop cleanly: the engine waits 120 s for its last Spark jobs.
STEP_END_SECONDS = 150.0

Report = TypeVar("Report")


class SupervisorGone(Exception):
    """The ``mirror up`` that started this run has died without stopping it."""


class Worker(Generic[Report]):
    """Runs ``call(observer, stop)``. A context manager: leaving it, for any reason, stops the call cleanly."""

    def __init__(self, call: Callable[[Callable[[Progress], None], threading.Event], Report], *, name: str) -> None:
        self._call = call
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._newest: Progress | None = None
        self._last: Progress | None = None
        self._report: list[Report] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def __enter__(self) -> Worker[Report]:
        try:
            self._thread.start()
        except BaseException:  # an interrupt: nobody leaves what was not entered
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ask the call to stop and wait for it."""
        self._stop.set()
        with suppress(RuntimeError):  # not started yet: it will find that it is to stop
            self._thread.join(STEP_END_SECONDS)

    @property
    def last(self) -> Progress | None:
        """The newest progress seen so far."""
        return self._last

    def watch(self) -> Iterator[Progress]:
        """Progress as it arrives, until the call has ended.

        Raises:
            SupervisorGone: the ``mirror up`` that started this process was killed.
        """
        supervisor = _supervisor()
        while self._thread.is_alive():
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or not self._thread.is_alive(), STEP_LOOK_SECONDS)
                newest, self._newest = self._newest, None
            if newest is not None:
                yield newest
            if supervisor is not None and not alive(supervisor):
                raise SupervisorGone(f"`mirror up` (process {supervisor}) has ended")

    def report(self) -> Report:
        """The call's answer; raises what the call raised."""
        self._thread.join(STEP_END_SECONDS)
        if self._error is not None:
            raise self._error
        if not self._report:
            raise TimeoutError(f"{self._thread.name} did not end within {STEP_END_SECONDS:.0f} s")
        return self._report[0]

    def _work(self) -> None:
        try:
            self._report.append(self._call(self._observe, self._stop))
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _observe(self, progress: Progress) -> None:
        with self._changed:
            self._newest = self._last = progress
            self._changed.notify_all()


def bounded(call: Callable[[], Report], seconds: float, *, name: str) -> Report:
    """Run ``call`` in a thread and wait at most ``seconds``; a slower thread is left running.

    Raises:
        TimeoutError: no answer in time.
    """
    answers: list[Report] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return answers[0]


def bounded_alone(
    call: Callable[[], Report], seconds: float, *, name: str, at_work: set[str], who: str, busy: str
) -> Report:  # fmt: skip
    """The same, unless the last call of ``who`` has not returned: calls do not pile up on a cluster that hangs.

    Args:
        call, seconds, name: as for :func:`bounded`.
        at_work: whose calls have not returned.
        who: whose call this is.
        busy: what the TimeoutError says where that is so.
    """
    if who in at_work:
        raise TimeoutError(busy)
    at_work.add(who)

    def ended() -> Report:
        try:
            return call()
        finally:
            at_work.discard(who)

    return bounded(ended, seconds, name=name)


def alive(pid: int) -> bool:
    """Whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _supervisor() -> int | None:
    text = os.environ.get(UP_PID_ENV, "")
    return int(text) if text.isdigit() else None


def wall_clock() -> float:
    """Seconds since the epoch; tests replace it."""
    return time.time()

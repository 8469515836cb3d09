"""Model processes: real threads of which exactly one moves at a time, so that a search decides every interleaving.

A process stops wherever the code under test meets the outside world (``pause``) and can be killed there for good.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Condition = Callable[[], bool]


class Killed(BaseException):
    """Raised inside a model process that is killed; nothing may catch it."""


class Process:
    """One thread of a driver, or one Spark worker. ``lost``: its driver is told that it died, whether it did or not.

    ``frozen``: stopped by a signal until somebody lets it go on.
    """

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        self.name = name
        self.where = "start"
        self.until: Condition | None = None
        self.wake_at: float | None = None
        self.killed = self.done = self.lost = self.frozen = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._function = function
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _here.process = self
        self._go.acquire()
        try:
            if not self.killed:
                self.result = self._function()
        except Killed:
            pass
        except BaseException as problem:  # noqa: BLE001 - kept for whoever waits for this process
            self.error = problem
        self.done = True
        self._back.release()

    def step(self) -> None:
        """Let it move to its next pause, or to its end."""
        if not self.done:
            self.until = self.wake_at = None
            self._go.release()
            self._back.acquire()

    def kill(self) -> None:
        """End it where it stands: what it has handed to others stays with them."""
        if not self.done:
            self.killed = True
            self.step()
        self._thread.join(5)

    def ready(self, now: float) -> bool:
        """Whether it can move."""
        if self.done or self.frozen:
            return False
        if self.wake_at is not None and now >= self.wake_at:
            return True
        return self.until() if self.until is not None else self.wake_at is None

    def stop_here(self, where: str, until: Condition | None, wake_at: float | None) -> None:
        if not self.killed:
            self.where, self.until, self.wake_at = where, until, wake_at
            self._back.release()
            self._go.acquire()
        if self.killed:
            raise Killed


_here = threading.local()


def current() -> Process | None:
    """The model process this code runs in; None outside of the model."""
    return getattr(_here, "process", None)


def pause(where: str, *, until: Condition | None = None, wake_at: float | None = None) -> None:
    """Hand over to the search; go on when it says so, not before ``until`` holds or the clock reaches ``wake_at``."""
    process = current()
    if process is not None:
        process.stop_here(where, until, wake_at)


class Clock:
    """Stands in for the module ``time``: seconds pass when the model says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def thread_time(self) -> float:
        return 0.0  # computing takes no time here

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        pause("sleep", wake_at=self.now + seconds)


class ModelEvent:
    """Stands in for ``threading.Event``."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._set = clock, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        pause("event", until=self.is_set, wake_at=None if timeout is None else self._clock.now + timeout)
        return self._set


class Pollable(Protocol):
    """A connection to wait for."""

    def ready(self) -> bool: ...


class ModelReadable:
    """Stands in for ``readable``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, lines: Sequence[Pollable], seconds: float) -> list[Pollable]:
        pause("readable", until=lambda: any(line.ready() for line in lines), wake_at=self._clock.now + max(0.0, seconds))
        return [line for line in lines if line.ready()]


class ModelLock:
    """Stands in for ``threading.Condition``."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._depth = clock, 0
        self._owner: Process | None = None

    def __enter__(self) -> ModelLock:
        me = current()
        while self._owner is not None and self._owner is not me and not self._owner.done:
            pause("lock", until=lambda: self._owner is None or self._owner.done)
        self._owner, self._depth = me, self._depth + 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def wait(self, timeout: float = 1.0) -> None:
        depth, self._depth, self._owner = self._depth, 0, None
        pause("wait", wake_at=self._clock.now + timeout)
        self.__enter__()
        self._depth = depth

    def notify_all(self) -> None:
        """Waiters look again after their time; the model needs no more."""

    notify = notify_all

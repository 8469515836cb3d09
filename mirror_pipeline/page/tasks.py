"""Long work that was begun on the page: one at a time for each mirror, watched by whoever opens the page."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mirror_pipeline.errors import MirrorError, UsageError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LongTask:
    """``result`` is None while it runs, and where it failed with an ``error``; ``started`` is seconds since the epoch."""

    what: str
    started: float
    over: bool = False
    result: Any = None
    error: MirrorError | None = None

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.time() - self.started


class Tasks:
    """The last one of each mirror."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, LongTask] = {}

    def get(self, mirror: str) -> LongTask | None:
        """None if there was none since this process began."""
        return self._last.get(mirror)

    def start(self, mirror: str, what: str, act: Callable[[], Any]) -> None:
        """Begin. Raises UsageError while one of the mirror is at work."""
        with self._lock:
            last = self._last.get(mirror)
            if last is not None and not last.over:
                raise UsageError(f"{last.what} is at work", hint="wait for its end")
            task = self._last[mirror] = LongTask(what, time.time())
        threading.Thread(target=_run, args=(task, act), name=f"page-{mirror}", daemon=True).start()


def _run(task: LongTask, act: Callable[[], Any]) -> None:
    try:
        task.result = act()
    except MirrorError as error:
        task.error = error
    except Exception as error:
        log.exception("page_task_failed what=%s", task.what)
        task.error = MirrorError(f"internal error: {type(error).__name__}: {error}")
    finally:
        task.over = True

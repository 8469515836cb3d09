"""How a thread beside a run learns of the run's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# A run that cannot begin says why within this time.
FIRST_SECONDS = 10.0


class RunEnd(threading.Event):
    """Set when a run ends. Soon after the start it may have failed to begin: its error says why, and a thread beside it says nothing."""

    def __init__(self, first: float = FIRST_SECONDS) -> None:
        super().__init__()
        self._begun = time.monotonic() + first
        self._failed = False

    @contextmanager
    def awaited(self, thread: threading.Thread, seconds: float) -> Iterator[None]:
        """Run the thread during the block, and give it some seconds to end after it."""
        thread.start()
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            self.set()
            thread.join(seconds)

    def may_say(self) -> bool:
        """Whether to log an error; waits until the run has begun or ended."""
        early = self._begun - time.monotonic()
        return early <= 0 or not (self.wait(early) and self._failed)

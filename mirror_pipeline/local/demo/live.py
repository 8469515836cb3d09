"""Records written in the background while a demo's mirror runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.local.shapes.fill import produce_live

# A stopped producer finishes its last transaction and flushes.
LIVE_END_SECONDS = 180.0


class Live:
    """Writes to the topics in its own thread, for ``seconds`` after the first call of :meth:`count_down`."""

    def __init__(self, bootstrap: str, topics: Sequence[str], rate: float, seconds: float) -> None:
        self._arguments = (bootstrap, topics, rate)
        self._stop = threading.Event()
        self._timer = threading.Timer(seconds, self._stop.set)
        self._thread = threading.Thread(target=self._write, name="demo-live", daemon=True)
        self._began: float | None = None
        self._error: Exception | None = None
        self._written = 0

    @property
    def seconds(self) -> float:
        """Seconds since the countdown began, 0 before."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        self._stop.set()
        self._thread.join(LIVE_END_SECONDS)

    def count_down(self) -> None:
        """Start the timer: the mirror is running. Later calls have no effect."""
        if self._began is None:
            self._began = time.monotonic()
            self._timer.start()

    def _write(self) -> None:
        try:
            self._written = sum(produce_live(*self._arguments, self._stop).values())
        except Exception as error:  # noqa: BLE001 - reported to the waiting thread
            self._error = error

    def finish(self) -> int:
        """Wait until the time is over and everything is written; return how many records were committed.

        Raises:
            ProblemFound: they could not be written.
        """
        self.count_down()
        self._timer.join()
        self._thread.join(LIVE_END_SECONDS)
        if self._error is not None or self._thread.is_alive():
            raise ProblemFound(f"new records could not be written: {self._error or 'time is up'}") from self._error
        return self._written

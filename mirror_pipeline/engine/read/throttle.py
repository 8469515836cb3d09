"""A limit in bytes per second."""

from __future__ import annotations

import threading
import time


class Throttle:
    """Keeps the bytes of all threads together below a rate; no limit when the rate is None."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self.limited = bool(bytes_per_second)
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def pause(self, size: int) -> None:
        """Account for ``size`` bytes received, and wait as long as they should have taken."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)

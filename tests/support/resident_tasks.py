"""Tasks for resident processes: called by name there."""

from __future__ import annotations

import os
import time
from pathlib import Path

_calls = 0


def whose(_: object) -> tuple[int, int]:
    """The process, and how many tasks it had."""
    global _calls
    _calls += 1
    return os.getpid(), _calls


def die(code: int) -> None:
    """End the process."""
    os._exit(code)


def refuse(reason: str) -> None:
    """Raise."""
    raise ValueError(reason)


def hang(marker: str) -> None:
    """Never end; writes the process id into a file first."""
    Path(marker + ".new").write_text(str(os.getpid()))
    Path(marker + ".new").rename(marker)
    time.sleep(3600)

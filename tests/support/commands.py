"""Run the ``mirror`` command as a process of its own, to kill it at a named place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mirror_pipeline.children import default_signals
from mirror_pipeline.crash_points import CRASH

SECONDS = 120


def command(folder: Path, *words: str, crash: str = "") -> int:
    """The exit code of a ``mirror`` process that is killed at a crash point."""
    line = [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(folder / "mirror.yaml"), *words]
    environment = {**os.environ, CRASH: crash}
    return subprocess.run(line, env=environment, timeout=SECONDS, preexec_fn=default_signals, capture_output=True, check=False).returncode

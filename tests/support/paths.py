"""Which path carries the data of a test that names none: Spark's tasks, or the mirror's own process."""

from __future__ import annotations

import os
import zlib
from typing import Any

VARIABLE = "MIRROR_TEST_PATH"
"""``spark``, ``driver`` or ``both``; set by ``--path``."""
DRIVER_SHARE = 3
"""With ``both``, one test in so many runs in the mirror's own process."""
SPARK: dict[str, Any] = {"inline_bytes": 0}
DRIVER: dict[str, Any] = {}
"""The settings that users get: what tests copy is too small for Spark."""


def path_settings() -> dict[str, Any]:
    """The engine's settings for the test that is running.

    They depend on its name alone, so that it has the same path in every session and on every worker.
    """
    name = os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0]
    return SPARK if on_spark(name, os.environ.get(VARIABLE, "both")) else DRIVER


def on_spark(name: str, wish: str) -> bool:
    """Whether a test of this name runs on Spark."""
    return wish == "spark" or (wish == "both" and zlib.crc32(name.encode()) % DRIVER_SHARE != 0)

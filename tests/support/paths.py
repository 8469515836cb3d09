"""Which path carries the data of a test: Spark's tasks, or the mirror's own process.

A folder of integration tests has one (``PATHS``); a file or test that needs another one says so with ``@pytest.mark.path``.
"""

from __future__ import annotations

from typing import Any

import pytest

SPARK: dict[str, Any] = {"inline_bytes": 0}
DRIVER: dict[str, Any] = {}
"""The settings that users get: what tests copy is too small for Spark."""
SETTINGS = {"spark": SPARK, "driver": DRIVER}
PATHS = {
    "copy": "spark", "recovery": "spark", "topics": "driver", "failover": "driver", "groups": "driver", "verify": "spark",
    "dagster": "driver", "cli": "driver", "security": "spark", "kafka": "driver",
}  # fmt: skip
_now: list[dict[str, Any]] = [DRIVER]


def path_of(item: pytest.Item, wish: str) -> str:
    """``spark`` or ``driver``; ``wish``, unless it is ``both``, overrules folder and mark."""
    mark = item.get_closest_marker("path")
    return wish if wish != "both" else str(mark.args[0]) if mark else PATHS.get(item.path.parent.name, "driver")


def choose_path(item: pytest.Item, wish: str) -> None:
    """The test that runs now."""
    _now[0] = SETTINGS[path_of(item, wish)]


def path_settings() -> dict[str, Any]:
    """The engine's settings for the test that is running."""
    return _now[0]

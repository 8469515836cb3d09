"""Says in the terminal of ``mirror up`` when mirror.yaml stops loading, and when it loads again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.config import load_config
from mirror_pipeline.errors import ConfigError

STAYS = "lanes that run keep their settings, no run starts until the file loads"


class ConfigWatch:
    """Looks at a file that has loaded, whenever it has changed.

    Args:
        path: the mirror.yaml.
        say: prints a line.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._stamp = self._look()
        self._problem = ""

    def look(self) -> None:
        """Say what has changed since the last look."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp, before, self._problem = stamp, self._problem, self._load()
        if self._problem and self._problem != before:
            self._say(f"{self._problem}; {STAYS}")
        elif before and not self._problem:
            self._say(f"{self._path} loads again")

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self) -> str:
        try:
            load_config(self._path)
        except ConfigError as error:
            return str(error)
        return ""

"""Says in the terminal of ``mirror up`` when mirror.yaml stops loading, and when it loads again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.config import load_config
from mirror_pipeline.errors import ConfigError
from mirror_pipeline.files import file_stamp

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
        self._stamp = file_stamp(path)
        self._problem = ""

    def look(self) -> None:
        """Say what has changed since the last look."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp, before, self._problem = stamp, self._problem, self._load()
        if self._problem and self._problem != before:
            self._say(f"{self._problem}; {STAYS}")
        elif before and not self._problem:
            self._say(f"{self._path} loads again")

    def _load(self) -> str:
        try:
            load_config(self._path)
        except ConfigError as error:
            return str(error)
        return ""

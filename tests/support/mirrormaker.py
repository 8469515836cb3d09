"""A real MirrorMaker 2 of the tests' own: one flow between two clusters, started, stopped and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.mm2 import NEEDED, start

STOP_SECONDS = 60.0  # a clean end: it stores its offsets and leaves its Connect group


class MirrorMaker2:
    """The process of one flow; property file and logs are in ``folder``. It is killed at the end of the ``with`` block.

    Args:
        folder: of its own.
        aliases: source and target cluster; new ones have no state of an earlier flow.
        servers: bootstrap addresses of the two.
        extra: more properties; ``{a}`` and ``{b}`` are the aliases.
    """

    def __init__(self, folder: Path, aliases: tuple[str, str], servers: tuple[str, str], topics: str, **extra: str) -> None:
        self.folder, self.aliases = folder, aliases
        a, b = aliases
        needed = {key: value for key, (value, _) in NEEDED.items()}
        self.properties = {
            "clusters": f"{a},{b}", f"{a}.bootstrap.servers": servers[0], f"{b}.bootstrap.servers": servers[1],
            **{key.format(a=a, b=b): value.format(topics=topics) for key, value in {**needed, **extra}.items()},
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def file(self) -> Path:
        """Its property file."""
        return self.folder / "mm2.properties"

    def start(self) -> None:
        """Start it; it may have been stopped or killed before."""
        self._process = start(self.properties, self.folder)

    def stop(self) -> None:
        """End it as its operators do."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """``kill -9``; its session has no other process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

"""Dagster's web page for a demo: ``mirror up`` as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from mirror_pipeline.errors import ProblemFound

DEFAULT_URL = "http://127.0.0.1:3000"
ANNOUNCEMENT = "Dagster UI: "
# Three Python processes that import Dagster, on a busy machine.
PAGE_START_SECONDS = 240.0
PAGE_END_SECONDS = 90.0
PAGE_POLL_SECONDS = 0.2


class WebPage:
    """The processes of the page; they outlive this one unless they are stopped."""

    def __init__(self, config: Path, log: Path) -> None:
        self._config = config
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.url = DEFAULT_URL

    @property
    def pid(self) -> int:
        """Process id; SIGTERM to it stops everything."""
        return self._process.pid if self._process is not None else -1

    def start(self) -> str:
        """Start and wait until the page answers; returns its address.

        Raises:
            ProblemFound: it ended, or does not answer within four minutes; the hint names the log.
        """
        command = [sys.executable, "-P", "-m", "mirror_pipeline.cli", "-c", str(self._config), "up"]
        # The log contains the address with its token.
        with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + PAGE_START_SECONDS
        while (url := self._announced()) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise ProblemFound("Dagster's web page did not start", hint=f"log: {self._log}")
            time.sleep(PAGE_POLL_SECONDS)
        self.url = url
        return url

    def _announced(self) -> str | None:
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line.removeprefix(ANNOUNCEMENT) for line in lines if line.startswith(ANNOUNCEMENT)), None)

    def wait(self) -> None:
        """Wait until Ctrl-C, or until the page's processes end."""
        if self._process is not None:
            try:
                self._process.wait()
            except KeyboardInterrupt:
                return

    def end(self) -> None:
        """Stop the processes: SIGTERM, then SIGKILL."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(PAGE_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

"""Where things are written: answers on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

PIPE_WIDTH = 180
"""Columns when nobody looks: rich would cut tables at 80, and a file does not wrap."""


def answers() -> Console:
    """Console for the answer a person asked for; made anew so that a redirected stream is honoured."""
    return _console(stderr=False)


def notices() -> Console:
    """Console for progress, notes and errors."""
    return _console(stderr=True)


def print_json(document: dict[str, Any]) -> None:
    """The one JSON document of a command."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """One plain line on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)

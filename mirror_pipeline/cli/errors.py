"""Error output of the command, and its exit codes.

Every error is one line ``error: ...`` on standard error (an invalid configuration file: one line per problem), followed by
``hint: ...`` where a hint exists. With ``--json`` standard output carries ``{"error": {"message", "hint", "exit_code"}}``
as well, so that a program always finds one JSON document there.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from typer.exceptions import TyperException

from mirror_pipeline.errors import UNEXPECTED, ConfigError, MirrorError
from mirror_pipeline.host import MORE_FILES, MORE_THREADS

__all__ = ["INTERRUPTED", "OK", "PROBLEM", "UNEXPECTED", "UNREACHABLE", "USAGE", "Failure", "describe", "report", "say"]

OK, PROBLEM, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 130
"""128 + SIGINT, as in shells."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as it is shown to the user."""

    message: str
    hint: str
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        """The value of ``error`` in a JSON answer."""
        return {"message": self.message, "hint": self.hint, "exit_code": self.exit_code}


def describe(error: BaseException, command: str = "mirror") -> Failure:
    """Message, hint and exit code of any exception; ``command`` is what ``--help`` is pointed at."""
    if isinstance(error, ConfigError):  # one line for each problem of the file
        return Failure("\n".join(error.message.splitlines()), _one_line(error.hint), error.exit_code)
    if isinstance(error, MirrorError):
        return Failure(_one_line(error.message), _one_line(error.hint), error.exit_code)
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return Failure("interrupted", "", INTERRUPTED)
    if isinstance(error, TyperException):
        message = getattr(error, "format_message", lambda: str(error))()
        return Failure(_one_line(message).rstrip("."), f"{command} --help lists the options", USAGE)
    text = _one_line(str(error))
    if (limit := _of_the_host(error, text)) is not None:
        return limit
    name = type(error).__name__
    message = f"internal error: {name}: {text}" if text else f"internal error: {name}"
    return Failure(message, "run it again with --debug and report the output", UNEXPECTED)


def _of_the_host(error: BaseException, text: str) -> Failure | None:
    """What the host, not this program, is to be blamed for."""
    if "Too many open files" in text:
        return Failure("no more files or connections can be opened by this process", MORE_FILES, PROBLEM)
    if isinstance(error, RuntimeError) and "can't start new thread" in text:
        return Failure("no more threads can be started", MORE_THREADS, PROBLEM)
    if isinstance(error, MemoryError):
        return Failure("there is no more memory", "give the process more: ulimit -v, or the container's limit", PROBLEM)
    if isinstance(error, UnicodeEncodeError):
        shown = ascii(error.object[error.start : error.end])
        return Failure(f"a path or a name is no text in this locale: {shown}", "set LC_ALL=C.UTF-8 and unset PYTHONUTF8", USAGE)
    return None


def report(error: BaseException, *, as_json: bool, debug: bool, command: str = "mirror") -> int:
    """Print ``error`` and return the exit code."""
    failure = describe(error, command)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    say(failure)
    if as_json:
        print_json({"error": failure.to_json()})
    return failure.exit_code


def say(failure: Failure, prefix: str = "") -> None:
    """Print the lines on standard error; print none when the command has already shown its help page."""
    if not failure.message:
        return
    for line in failure.message.splitlines():
        note(f"error: {prefix}{line}")
    if failure.hint:
        note(f"hint: {failure.hint}")


def _one_line(text: str) -> str:
    return " ".join(text.split())


PIPE_WIDTH = 180
"""Columns when the output is not a terminal: rich would cut tables at 80, and a file does not wrap."""


def answers() -> Console:
    """Console for the answer; created on each call so that a redirected stream is honoured."""
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

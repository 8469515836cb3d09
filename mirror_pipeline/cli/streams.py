"""What the command needs of the process that starts it: three open streams, enough descriptors, and no warning that ends it.

Only a process of the command's own is changed, see :func:`prepare`; who calls ``main()`` keeps what he has.
"""

from __future__ import annotations

import io
import os
import resource
import sys
import warnings
from contextlib import suppress
from typing import TextIO

_NAMES = ("stdin", "stdout", "stderr")
# Connections to many brokers; more than a driver ever holds.
MOST_DESCRIPTORS = 65_536


class Notices(io.TextIOWrapper):
    """Standard error that nobody may read any more: a note that cannot be written must not end a copy."""

    def write(self, text: str) -> int:
        """As ever, without errors of the operating system."""
        with suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        """As ever, without errors of the operating system."""
        with suppress(OSError):
            super().flush()

    def close(self) -> None:
        """As ever, without errors of the operating system."""
        with suppress(OSError):
            super().close()


def prepare() -> None:
    """Make a process of the command's own independent of how it was started."""
    _open_streams()
    error = sys.stderr
    if isinstance(error, io.TextIOWrapper) and not isinstance(error, Notices):
        sys.stderr = Notices(error.buffer, error.encoding, "backslashreplace", line_buffering=True)  # sys.__stderr__ keeps the buffer open
    # Libraries warn their developers; $PYTHONWARNINGS would make errors of it, here and in the children.
    os.environ.pop("PYTHONWARNINGS", None)
    warnings.simplefilter("ignore")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def broken(stream: TextIO) -> OSError | None:
    """Why a stream cannot be written; None when it can. What was not written is dropped then."""
    try:
        stream.flush()
    except OSError as error:
        # Python would report it again when it flushes at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    return None


def _open_streams() -> None:
    """Lead closed streams nowhere: the next file or socket would get their number, and what a library prints would go there."""
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

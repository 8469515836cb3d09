"""Starting child processes that can be ended."""

from __future__ import annotations

import signal


def default_signals() -> None:
    """For ``preexec_fn``: the child shall obey SIGINT and SIGTERM, whatever this process inherited.

    A shell starts background jobs with SIGINT ignored, and Dagster gives SIGTERM the handler of SIGINT: a child that
    inherits both ignored could only be killed.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)

"""Waiting for one descriptor."""

from __future__ import annotations

import selectors
from typing import IO


def has_input(file: int | IO[bytes], seconds: float) -> bool:
    """Whether there is something to read, or its other end is closed, within ``seconds``.

    Any number of descriptors may be open: ``select.select`` ends at 1,023, and a session of many clients has more.
    """
    with selectors.PollSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        return bool(selector.select(seconds))

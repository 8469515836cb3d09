"""One run per lane: a kernel lock on a file of the lane's folder, released by the kernel when the holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from mirror_pipeline.buffer.store import LaneStore, explained
from mirror_pipeline.errors import LaneBusy

LOCK = "lock"
HOUSE = "house"
PATIENCE = 0.5
"""Seconds a new run waits for the lock: covers another run that is just ending."""


def _holder(text: str) -> str:
    try:
        body: dict[str, Any] = json.loads(text)
        since = datetime.fromtimestamp(body["since"], UTC).isoformat(timespec="seconds")
        return f"process {body['pid']} on {body['host']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _take(handle: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


@contextmanager
def lane_lock(store: LaneStore, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lane for the length of the block.

    Args:
        store: the lane.
        patience: seconds to wait for a holder to go away.

    Raises:
        LaneBusy: another run holds it; the message names its process id, host and start.
        UsageError: the buffer is not on a local path: no lock can be held there yet.
    """
    path = store.file(LOCK)
    with explained(store.uri):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _take(handle, patience):
            raise LaneBusy(
                f"lane {store.mirror}/{store.lane} is held by {_holder(os.pread(handle, 4096, 0).decode(errors='replace'))}",
                hint="wait for that run to end, or stop it",
            )
        with explained(store.uri):
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}).encode(), 0)
        yield
        # The file stays: removing it would let a third run lock a name that a second one is waiting for.
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


@contextmanager
def house_lock(store: LaneStore, *, patience: float = 0.0) -> Iterator[bool]:
    """Be the only one who tidies the lane's tables, beside whoever runs it: evicting, joining, removing files.

    Yields:
        Whether the house is ours; False when another process still keeps it after ``patience`` seconds.
    """
    with explained(store.uri):
        handle = os.open(store.file(HOUSE), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _take(handle, patience)
    finally:
        os.close(handle)


def house_kept(store: LaneStore) -> None:
    """Note that the house was kept now."""
    with explained(store.uri):
        os.utime(store.file(HOUSE))


def last_kept(store: LaneStore) -> float | None:
    """When the house was last kept, by whomever (seconds since the epoch); None when nobody ever did."""
    try:
        return store.file(HOUSE).stat().st_mtime
    except FileNotFoundError:
        return None

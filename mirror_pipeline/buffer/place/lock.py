"""One run per lane, one keeper per house: a kernel lock on a file of a local lane, a lease in an object store.

The kernel releases its lock when the holder dies, so a local hold cannot be lost. A lease can: see
:mod:`~mirror_pipeline.buffer.place.lease`.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from mirror_pipeline.buffer.place.bucket import Objects
from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.lease import RENEWALS, Lease, holder_of
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.errors import LaneBusy

LOCK = "lock"
HOUSE = "house"
KEPT = "house-kept"
"""Object whose time says when the house was kept last; a local one is the file ``house`` itself."""
PATIENCE = 0.5
"""Seconds a new run waits for the lock: covers another run that is just ending."""


class Hold(Protocol):
    """A lane that is held."""

    @property
    def left(self) -> float:
        """Seconds for which it surely stays so, whatever happens."""

    def check(self) -> None:
        """Raises LaneLost when another run holds it now, BufferUnusable (``retryable``) while that cannot be known."""


class KernelHold:
    """A hold that ends with the process."""

    left = math.inf

    def check(self) -> None:
        """It is still held."""


HELD: Hold = KernelHold()


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


def _lease(store: LaneStore, name: str) -> Lease:
    """Its requests must not take longer than the pause between two of them."""
    return Lease(Objects(store.uri, store.options, seconds=store.lease / RENEWALS), name, store.lease)


def _busy(store: LaneStore, holder: bytes) -> LaneBusy:
    return LaneBusy(f"lane {store.mirror}/{store.lane} is held by {holder_of(holder)}", hint="wait for that run to end, or stop it")


@contextmanager
def lane_lock(store: LaneStore, *, patience: float = PATIENCE) -> Iterator[Hold]:
    """Hold the lane for the length of the block.

    Args:
        store: the lane.
        patience: seconds to wait for a holder to go away. In an object store a holder is only known to be alive once it has
            renewed its lease: that takes up to a third of it, and a dead holder is waited for a whole one.

    Raises:
        LaneBusy: another run holds it; the message names its process id, host and start.
        BufferUnusable: the lock cannot be written.
    """
    if store.local:
        with _kernel_lock(store, patience):
            yield HELD
        return
    lease = _lease(store, LOCK)
    if not lease.take(patience):
        raise _busy(store, lease.holder)
    try:
        yield lease
    finally:
        lease.release()


@contextmanager
def buffer_lock(store: LaneStore, *, patience: float) -> Iterator[Hold]:
    """Hold the buffer that a lane lies in, for a moment; lanes that run are not held up. Raises as :func:`lane_lock`."""
    with lane_lock(replace(store, uri=store.root), patience=patience) as hold:
        yield hold


@contextmanager
def _kernel_lock(store: LaneStore, patience: float) -> Iterator[None]:
    path = store.file(LOCK)
    with explained(store.uri):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _take(handle, patience):
            raise _busy(store, os.pread(handle, 4096, 0))
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

    Whoever loses a lease in the middle does no harm: what is removed is not referred to, and Delta refuses to join what is gone.

    Yields:
        Whether the house is ours; False when another process still keeps it after ``patience`` seconds.
    """
    if not store.local:
        lease = _lease(store, HOUSE)
        ours = lease.take(patience)
        try:
            yield ours
        finally:
            lease.release()
        return
    with explained(store.uri):
        handle = os.open(store.file(HOUSE), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _take(handle, patience)
    finally:
        os.close(handle)


def found_house(store: LaneStore) -> None:
    """See that there is something whose time says when the house was kept last. Raises BufferUnusable."""
    with explained(store.uri):
        if store.local:
            os.close(os.open(store.file(HOUSE), os.O_RDWR | os.O_CREAT, 0o600))
        else:
            store.objects().create(KEPT, b"")


def house_kept(store: LaneStore) -> None:
    """Note that the house was kept now."""
    with explained(store.uri):
        if store.local:
            os.utime(store.file(HOUSE))
        else:
            store.objects().write(KEPT, b"")


def last_kept(store: LaneStore) -> float | None:
    """When the house was last kept, by whomever (seconds since the epoch); None when nobody ever did. Raises BufferUnusable."""
    with explained(store.uri):
        if not store.local:
            kept = store.objects().look(KEPT)
            return kept.modified if kept else None
        try:
            return store.file(HOUSE).stat().st_mtime
        except FileNotFoundError:
            return None

"""One run per lane, one maintenance round at a time: a kernel lock on a file of a local lane, a lease in an object store.

The kernel releases its lock when the holder dies, so a local lock cannot be lost. A lease can be; see
:mod:`~mirror_pipeline.buffer.place.lease`.
"""

from __future__ import annotations

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
from mirror_pipeline.files import try_lock

LANE_LOCK = "lock"
MAINTENANCE = "house"
# Object whose modification time is the last maintenance; in a folder that is the file ``house`` itself.
MAINTAINED = "house-kept"
# Seconds a new run waits for the lock: covers another run that is just ending.
PATIENCE = 0.5


class Hold(Protocol):
    """A lane that is held."""

    @property
    def left(self) -> float:
        """Seconds for which the hold is guaranteed, whatever happens."""

    def check(self) -> None:
        """Raises LaneLost when another run holds the lane now, BufferUnusable (``retryable``) while that is unknown."""


class KernelHold:
    """A hold that ends with the process."""

    left = math.inf

    def check(self) -> None:
        """Always still held."""


HELD: Hold = KernelHold()


def _take(handle: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        if try_lock(handle):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


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
        patience: seconds to wait for a holder to end. In an object store a holder is known to be alive only once it renews its
            lease, which takes up to a third of the lease; a dead holder is known to be dead after a whole one.

    Raises:
        LaneBusy: another run holds it; the message names its process id, host and start.
        BufferUnusable: the lock cannot be written.
    """
    if store.local:
        with _kernel_lock(store, patience):
            yield HELD
        return
    lease = _lease(store, LANE_LOCK)
    if not lease.take(patience):
        raise _busy(store, lease.holder)
    try:
        yield lease
    finally:
        lease.release()


@contextmanager
def buffer_lock(store: LaneStore, *, patience: float) -> Iterator[Hold]:
    """Hold the whole buffer for a moment; running lanes are not held up. Raises as :func:`lane_lock`."""
    with lane_lock(replace(store, uri=store.root), patience=patience) as hold:
        yield hold


@contextmanager
def _kernel_lock(store: LaneStore, patience: float) -> Iterator[None]:
    path = store.file(LANE_LOCK)
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
def maintenance_lock(store: LaneStore, *, patience: float = 0.0) -> Iterator[bool]:
    """Be the only process that maintains the lane's tables (evicts, joins, removes files), beside the run that copies.

    Losing the lease in between does no harm: removed files are no longer referred to, and Delta refuses to join files that are gone.

    Yields:
        True when the lock was acquired; False when another process still holds it after ``patience`` seconds.
    """
    if not store.local:
        lease = _lease(store, MAINTENANCE)
        acquired = lease.take(patience)
        try:
            yield acquired
        finally:
            lease.release()
        return
    with explained(store.uri):
        handle = os.open(store.file(MAINTENANCE), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _take(handle, patience)
    finally:
        os.close(handle)


def create_maintenance_mark(store: LaneStore) -> None:
    """Create the file or object that records the last maintenance, unless it exists. Raises BufferUnusable."""
    with explained(store.uri):
        if store.local:
            os.close(os.open(store.file(MAINTENANCE), os.O_RDWR | os.O_CREAT, 0o600))
        else:
            store.objects().create(MAINTAINED, b"")


def note_maintenance(store: LaneStore) -> None:
    """Record that maintenance ran now. Raises BufferUnusable."""
    with explained(store.uri):
        if store.local:
            os.utime(store.file(MAINTENANCE))
        else:
            store.objects().write(MAINTAINED, b"")


def last_maintenance(store: LaneStore) -> float | None:
    """When any process last ran maintenance (seconds since the epoch); None when it never ran. Raises BufferUnusable."""
    with explained(store.uri):
        if not store.local:
            kept = store.objects().look(MAINTAINED)
            return kept.modified if kept else None
        try:
            return store.file(MAINTENANCE).stat().st_mtime
        except FileNotFoundError:
            return None

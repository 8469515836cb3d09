"""A lock in an object store: one object, written on condition that no other process has written it since.

Three rules; clocks of two machines are never compared:

- The holder rewrites the object every third of the lease, if it still has the ETag of the previous write.
- A waiting process may take the lease over once it has *itself* seen the same ETag for a whole lease, by its own monotonic
  clock, and only by replacing that very ETag: of several that try, one succeeds.
- The holder counts its lease from the moment *before* it sent its last write, and only four fifths of it. When it could not write
  for that long it stops (:meth:`Lease.check`), before another process can have taken over. If its ETag is still there later, none
  has, and it continues; otherwise :class:`~mirror_pipeline.errors.LaneLost`.

No lease can stop a process that is suspended between reading the clock and its next action, and resumes after another run has taken
over. Two other mechanisms make that harmless. Commits of micro-batches and ledger records are numbered, and the new holder takes the
next number first (``SpanTable.fence``), so Delta refuses the late commit. Batches that are sent late carry the same producer id and
sequence numbers as the new holder's, so the target's brokers recognise them (KIP-98).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from mirror_pipeline.buffer.place.bucket import Objects
from mirror_pipeline.buffer.place.errors import explain, explained
from mirror_pipeline.errors import BufferUnusable, LaneLost

log = logging.getLogger(__name__)

# Renewals in one lease: two may fail.
RENEWALS = 3
# Share of the lease that its holder uses; the rest covers clock drift and work that began just before the end.
HELD_SHARE = 0.8
# How often a waiting process checks during one lease.
LEASE_LOOKS = 10
# Content that a holder leaves when it ends: the next one need not wait.
RELEASED = b""


def ticks() -> float:
    """A clock in seconds that also advances while the machine sleeps, where the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Sightings:
    """When this process first saw the current ETag of each object; kept over several tries."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def since(self, place: str, etag: str, now: float) -> float:
        """When ``etag`` was first seen there; ``now`` when the last one seen was different."""
        with self._lock:
            known = self._seen.get(place)
            if known is None or known[0] != etag:
                self._seen[place] = known = (etag, now)
            return known[1]


_SIGHTINGS = Sightings()


class Lease:
    """One object that one process at a time holds.

    Args:
        objects: where the object is.
        name: of the object.
        seconds: length of the lease; when holder and waiting process differ, the longer one counts.
        clock: monotonic seconds.
        sightings: what earlier tries of this process have seen.
    """

    def __init__(
        self, objects: Objects, name: str, seconds: float, *, clock: Callable[[], float] = ticks, sightings: Sightings = _SIGHTINGS
    ) -> None:
        self._objects, self._name, self._seconds = objects, name, seconds
        self._clock = clock
        self._sightings = sightings
        self._place = f"{objects.uri}/{name}"
        self._run = uuid.uuid4().hex
        self._since = time.time()
        self._count = 0
        self._etag = ""
        self._until = 0.0
        self._lost = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.holder = b""

    def _body(self) -> bytes:
        """Never the same twice: an ETag follows from the content."""
        self._count += 1
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": self._since, "lease": self._seconds}
        return json.dumps({**facts, "run": self._run, "count": self._count}).encode()

    def take(self, patience: float) -> bool:
        """Take the lease, or take it over from a holder that has not renewed it for a whole lease.

        Args:
            patience: seconds to wait for a holder that is alive. When it is more than 0, a dead holder is waited out however
                long that takes; with 0 this only checks, and remembers what it has seen for the next call.

        Returns:
            False when another process holds it; :attr:`holder` then describes that process.

        Raises:
            BufferUnusable: the store does not answer, or refuses.
        """
        deadline, alive, seen = self._clock() + patience, False, ""
        while True:
            with explained(self._objects.uri):
                again = self._try()
            if again is None:
                self._begin()
                return True
            etag, unchanged, length = again
            alive = alive or (bool(seen) and etag != seen)
            seen = etag
            now = self._clock()
            if patience <= 0 or (alive and now >= deadline):
                return False
            time.sleep(min(length / LEASE_LOOKS, max(0.01, unchanged + length - now)))

    def _try(self) -> tuple[str, float, float] | None:
        """None when acquired; else the current ETag, when it was first seen, and how long it must stay to count as abandoned."""
        sent = self._clock()
        current = self._objects.read(self._name)
        now = self._clock()
        if current is None:
            etag = self._objects.create(self._name, self._body())
        elif current.data == RELEASED:
            etag = self._objects.replace(self._name, self._body(), current.etag)
        else:
            self.holder, length = current.data, max(self._seconds, _length(current.data))
            since = self._sightings.since(self._place, current.etag, now)
            if now - since < length:
                return current.etag, since, length
            log.warning("%s: not renewed for %.1f s: taken over from %s", self._place, now - since, current.data.decode(errors="replace"))
            sent = self._clock()
            etag = self._objects.replace(self._name, self._body(), current.etag)
        if etag is None:  # another process was faster
            return "another", now, self._seconds
        self._etag, self._until = etag, sent + HELD_SHARE * self._seconds
        return None

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._renew, name=f"lease {self._name}", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        pause = self._seconds / RENEWALS
        while not self._over.wait(pause):
            try:
                if not self.renew():
                    return
                pause = self._seconds / RENEWALS
            except OSError as error:
                if pause == self._seconds / RENEWALS:
                    log.warning("%s is not renewed: %s", self._place, explain(self._place, error).message)
                pause = self._seconds / RENEWALS / LEASE_LOOKS

    def renew(self) -> bool:
        """Rewrite the object; False once another process has. Raises OSError."""
        sent = self._clock()
        etag = self._objects.replace(self._name, self._body(), self._etag)
        if etag is None:
            current = self._objects.read(self._name)
            if current is None or self._run.encode() not in current.data:
                self.holder = current.data if current else b""
                self._lost = True
                return False
            # Our own write, whose response was lost: no other process has written since.
            etag = current.etag
        self._etag, self._until = etag, sent + HELD_SHARE * self._seconds
        return True

    @property
    def left(self) -> float:
        """Seconds that are guaranteed to be left."""
        return 0.0 if self._lost else max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Make sure that the lease is still held.

        Raises:
            LaneLost: another process has taken it over.
            BufferUnusable: it could not be renewed for so long that this is uncertain; ``retryable``: a later renewal may succeed.
        """
        if self._lost:
            raise LaneLost(
                f"{self._place} was taken over by {holder_of(self.holder)}", hint="this run did not renew in time; that process continues"
            )
        if not self.left:
            unsure = BufferUnusable(f"{self._place} could not be renewed in time", hint="is the object store up, was this process stopped?")
            unsure.retryable = True
            raise unsure

    def release(self) -> None:
        """Free the lease at once; when the store does not answer it expires by itself."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._lost or not self._etag:
            return
        try:
            self._objects.replace(self._name, RELEASED, self._etag)
        except OSError as error:
            log.warning("%s is not released: %s", self._place, explain(self._place, error).message)


def _length(data: bytes) -> float:
    try:
        return float(json.loads(data)["lease"])
    except (ValueError, KeyError, TypeError):
        return 0.0


def holder_of(data: bytes) -> str:
    """The holder of a lock, in words."""
    try:
        body = json.loads(data)
        since = datetime.fromtimestamp(body["since"], UTC).isoformat(timespec="seconds")
        return f"process {body['pid']} on {body['host']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"

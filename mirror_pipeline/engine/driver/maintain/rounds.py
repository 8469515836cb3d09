"""A maintenance round: verify spans on the target, evict those that are verified, keep tables and logs small.

A round works on the tables alone, so a running lane, a command and a schedule do the same; ``maintenance_lock`` lets only one of
them run at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lock import maintenance_lock, note_maintenance
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.space import EMPTIED_SHARE, SPARE_BYTES, drop_reserved_file, lay_reserved_file
from mirror_pipeline.buffer.place.usage import free_bytes, total_bytes
from mirror_pipeline.buffer.spans.eviction import SpanKey, safe_ends
from mirror_pipeline.buffer.spans.spans import JOIN_FILES, ORPHAN_AGE, SpanTable
from mirror_pipeline.buffer.tables.upkeep import MIN_AGE, READER_GRACE, Upkeep
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.maintain.archiving import Archiving
from mirror_pipeline.errors import BufferDamaged, BufferUnusable, MirrorError, SparkGone
from mirror_pipeline.execution.runner import Runner

log = logging.getLogger(__name__)

# Verified in one piece; after each piece the verified spans may be evicted.
VERIFY_BYTES = 256 * 2**20
# When space is short evicted files are deleted at once: tasks never read them, and an open file stays readable.
NO_GRACE = 0.0


class Differing(Protocol):
    """The verdict on one record (:class:`~mirror_pipeline.verdicts.Difference`)."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def source_offset(self) -> int | None: ...


class SpanVerdict(Protocol):
    """The result of one verification (:class:`~mirror_pipeline.verify.staged.StagedVerdict`)."""

    @property
    def verified(self) -> Mapping[SpanKey, int]: ...
    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def differences(self) -> Collection[Differing]: ...
    @property
    def unreadable(self) -> Collection[str]: ...


Verify = Callable[[int], SpanVerdict]
"""Compares the oldest unverified spans with the target, about this many bytes of them, and records the verdict."""


def staged_verifier(
    compare: Callable[..., SpanVerdict],
    ledger: Ledger,
    spans: SpanTable,
    target: ClusterSettings,
    *,
    runner: Callable[[], Runner],
    timeout: float,
) -> Verify:
    """The verification of one lane's spans.

    Args:
        compare: :func:`mirror_pipeline.verify.staged.verify_staged`, handed in because the engine does not know that room.
        ledger, spans: the lane's tables.
        target: the cluster whose records are compared.
        runner: asked before each verification for the place where its tasks run.
        timeout: of requests to the target, in seconds.
    """

    def verify(budget: int) -> SpanVerdict:
        return compare(ledger=ledger, spans=spans, runner=runner(), target=target, timeout=timeout, budget_bytes=budget)

    return verify


@dataclass(frozen=True, slots=True)
class Eviction:
    """What one maintenance round did in one lane; bytes on disk.

    ``kept_bytes`` are due for eviction but not verified yet; ``note`` says why, or that another process runs maintenance now.
    ``unarchived_bytes`` left without a copy in the archive, for which the disk had no space. ``staying_bytes`` are still in the
    buffer, the oldest at least until ``stays_until`` (seconds since the epoch) by its ``retention`` in seconds.
    """

    lane: str
    micro_batches: int = 0
    freed_bytes: int = 0
    joined_files: int = 0
    removed_files: int = 0
    verified_records: int = 0
    verified_bytes: int = 0
    kept_bytes: int = 0
    differences: int = 0
    note: str = ""
    unarchived_bytes: int = 0
    staying_bytes: int = 0
    stays_until: float | None = None
    retention: float = 0.0


@dataclass(slots=True)
class Maintenance:
    """Maintenance of one lane's tables.

    Args:
        retention: seconds that spans stay after they were staged, space permitting.
        cap: bytes that the whole buffer may take.
        verify: compares with the target; if None, only spans verified before are evicted.
        differs: called with the differences that a verification found; their spans stay.
        archiving: where spans go that leave; None lets them go for good.
    """

    store: LaneStore
    spans: SpanTable
    ledger: Ledger
    retention: int
    cap: int
    verify: Verify | None = None
    differs: Callable[[Collection[Differing]], None] | None = None
    archiving: Archiving | None = None
    done: Eviction = field(init=False)

    def run_round(
        self, *, excess: int = 0, disk: int = 0, upkeep: bool = True, seconds: float = 60.0, patience: float = 0.0
    ) -> Eviction:
        """One round.

        Args:
            excess: bytes to free regardless of retention; 0 when there is space.
            disk: how many of them the disk lacks; the archive gives these first.
            upkeep: also join and clean the tables.
            seconds: time limit of verification (a piece that has begun is finished).
            patience: seconds to wait for another process that runs maintenance.

        Raises:
            BufferDamaged: the buffer's contents are not what was written.
            BufferUnusable: the buffer cannot be read or written.
        """
        with maintenance_lock(self.store, patience=patience) as ours:
            if not ours:
                return Eviction(self.store.lane, note="another process is running maintenance")
            try:
                return self._run_round(excess - self._from_archive(disk), upkeep, seconds)
            except BufferUnusable as error:
                if not (error.retryable and drop_reserved_file(self.store)):
                    raise
                log.warning("%s; deleting the reserved file", error.message)
                return self._run_round(excess, upkeep, seconds)

    def _run_round(self, excess: int, upkeep: bool, seconds: float) -> Eviction:
        self.done = Eviction(self.store.lane)
        urgent = excess > 0
        grace, orphan_age = (NO_GRACE, MIN_AGE) if urgent else (READER_GRACE, ORPHAN_AGE)
        freed = self.spans.vacuum(grace=grace, orphan_age=orphan_age)
        target = max(0, self.spans.bytes() - max(0, excess - freed)) if urgent else None
        safe = self._verified_before(target, seconds)
        crash_point("evict.before")
        gone = (self.archiving or self.spans).evict(safe, older_than=self._before, target_bytes=target)
        crash_point("evict.after")
        freed += self.spans.vacuum(grace=grace, orphan_age=orphan_age)
        total, joined = (self.ledger.maintain(), self.spans.join(safe, space=self._room())) if upkeep else (Upkeep(), 0)
        if self.archiving is not None:
            total += self.archiving.upkeep(orphan_age=orphan_age) if upkeep else Upkeep()
            self.done = replace(self.done, unarchived_bytes=self.archiving.unarchived)
        if upkeep:
            lay_reserved_file(self.store, cap=self.cap)
        note_maintenance(self.store)
        return replace(
            self.done, micro_batches=len(gone), freed_bytes=freed + total.freed,
            joined_files=joined + total.joined, removed_files=total.removed,
        )  # fmt: skip

    def _from_archive(self, disk: int) -> int:
        """Settle what a killed process had begun to archive; then the bytes that the archive gives for a full disk."""
        if self.archiving is None:
            return 0
        self.archiving.settle()
        return self.archiving.free(disk)

    def _room(self) -> int:
        """Bytes that may temporarily be stored twice."""
        return max(0, min(int(EMPTIED_SHARE * self.cap) - total_bytes([self.store]), free_bytes(self.store) - SPARE_BYTES))

    @property
    def _before(self) -> int:
        return int((time.time() - self.retention) * 1000)

    def _verified_before(self, target: int | None, seconds: float) -> set[int]:
        """Micro-batches that may be evicted, after verifying those that are due as far as time allows."""
        deadline, more = time.monotonic() + seconds, True
        produced, safe = self._standing()
        wanted = self._wanted(produced, target)  # what a running lane sends meanwhile is for the next round
        while True:
            left = wanted - safe
            self.done = replace(self.done, kept_bytes=self.spans.bytes_of(left))
            if not left or not more:
                return safe
            more = self._verify() and time.monotonic() < deadline
            safe = self._standing()[1]

    def _standing(self) -> tuple[set[int], set[int]]:
        reached = self.ledger.reached()
        safe = self.spans.produced(safe_ends(reached, self.ledger.verified()))
        return self.spans.produced(reached), safe

    def _wanted(self, produced: set[int], target: int | None) -> set[int]:
        """Micro-batches due by retention or lack of space; all of them if there are so many files that they should be joined."""
        if self.spans.live_files() > JOIN_FILES:
            return produced
        return set(self.spans.demanded(produced, older_than=self._before, target_bytes=target))

    def _verify(self) -> bool:
        """Verify one piece; False if another attempt would change nothing."""
        if self.verify is None:
            self.done = replace(self.done, note="not verified: the target was not read")
            return False
        before = self.ledger.verified()
        try:
            verdict = self.verify(VERIFY_BYTES)
        except (BufferUnusable, SparkGone):
            raise
        except MirrorError as error:
            self.done = replace(self.done, note=f"not verified: {error.message}")
            return False
        self.done = replace(
            self.done,
            verified_records=self.done.verified_records + verdict.records,
            verified_bytes=self.done.verified_bytes + verdict.bytes,
        )
        if verdict.unreadable:
            self.done = replace(self.done, note=f"not verified: {', '.join(verdict.unreadable)[:300]}")
        if verdict.differences:
            self._differ(verdict.differences)
        return self.ledger.verified() != before

    def _differ(self, differences: Collection[Differing]) -> None:
        places = sorted({f"{d.topic}[{d.partition}]" for d in differences})
        note = f"the target differs from what was staged: {', '.join(places[:5])}; see 'mirror verify'"
        self.done = replace(self.done, differences=self.done.differences + len(differences), note=note)
        log.error("lane %s: %s", self.store.lane, note)
        if self.differs is not None:
            self.differs(differences)


def damage(error: BaseException) -> bool:
    """Whether a maintenance error must end the lane: all others leave the copy as it is.

    Without Spark nothing can be verified or leave: a lane that waits for room would never notice that Spark is gone.
    """
    return isinstance(error, BufferDamaged | SparkGone)

"""The maintenance thread of a running lane: verifies, evicts, joins and cleans while both loops run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from mirror_pipeline.buffer.place.lock import create_maintenance_mark, last_maintenance
from mirror_pipeline.buffer.place.space import lay_reserved_file
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.maintain.archiving import archiving_of
from mirror_pipeline.engine.driver.maintain.rounds import Differing, Eviction, Maintenance, Verify, damage, staged_verifier
from mirror_pipeline.engine.driver.topics.deletion import Deletions
from mirror_pipeline.errors import BufferUnusable, MirrorError
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.execution.runner import OneAtATime
from mirror_pipeline.halts import Halt, copy_differs
from mirror_pipeline.model import TopicPartition

log = logging.getLogger(__name__)

# Between two rounds; the first one comes this long after the start.
MAINTENANCE_SECONDS = 60.0
# A round comes after half that time where this many part files are live: 20 micro-batches a second make 600 in half a round, and what
# is beyond spans.MAX_SPAN_FILES would be evicted instead of joined.
CROWD_FILES = 400
# Between two rounds requested because space is short: the pause grows while they free nothing.
URGENT_SECONDS = 0.5
LONGEST_URGENT_SECONDS = 5.0
URGENT_VERIFY_SECONDS = 5.0
# How long the end of a run waits for a round in progress, which can be abandoned safely at any moment.
MAINTENANCE_END_SECONDS = 30.0
# A run that ends runs one more round if the last one was this long ago, so short runs are maintained too.
OVERDUE_SECONDS = 600.0


@dataclass(slots=True)
class MaintenanceFacts:
    """What ``status`` shows of a lane's maintenance; written by its thread alone."""

    rounds: int = 0
    last: float | None = None
    seconds: float = 0.0
    error: str = ""
    freed_bytes: int = 0
    verified_records: int = 0
    verified_bytes: int = 0
    note: str = ""


@dataclass(slots=True)
class MaintenanceThread:
    """Maintains one lane until ``end`` is called; shows errors, and ends the lane only if the buffer is damaged."""

    context: LaneContext
    facts: MaintenanceFacts = field(default_factory=MaintenanceFacts)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _began: float = field(default_factory=time.time)

    def start(self) -> None:
        """Start the thread."""
        lay_reserved_file(self.context.store, cap=self.context.buffer.max_bytes)
        create_maintenance_mark(self.context.store)
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End after the round in progress; run one more if the last one was long ago."""
        self._over.set()
        self.context.room_wanted.set()
        if self._thread is not None:
            self._thread.join(MAINTENANCE_END_SECONDS)
        if (self._thread is None or not self._thread.is_alive()) and self._overdue():
            self._round(excess=0, upkeep=True)

    def delete_copies(self) -> None:
        """Delete copies of topics that were deleted on the source, as far as the mirror's settings say so."""
        try:
            Deletions(self.context).look()
        except Exception as error:  # noqa: BLE001 - as in a round
            self._failed(error)

    def last_look(self) -> None:
        """:meth:`delete_copies` after the run's other threads have ended."""
        if self._thread is None or not self._thread.is_alive():
            self.delete_copies()

    def _overdue(self) -> bool:
        try:
            kept = last_maintenance(self.context.store)
        except BufferUnusable as error:
            log.warning("maintenance: %s", error.message)
            return False
        return kept is not None and time.time() - max(kept, self.facts.last or 0.0) > OVERDUE_SECONDS

    def status(self) -> dict[str, Any]:
        """The facts, for the lane's status file."""
        return asdict(self.facts)

    def _run(self) -> None:
        try:
            self._run_rounds()
        finally:
            worker_cache.close()

    def _run_rounds(self) -> None:
        context = self.context
        last = time.monotonic()
        pause = URGENT_SECONDS
        while not self._over.is_set():
            half = last + MAINTENANCE_SECONDS / 2
            due = half if time.monotonic() < half else last + MAINTENANCE_SECONDS
            called = context.room_wanted.wait(max(0.0, due - time.monotonic()))
            context.room_wanted.clear()
            if self._over.is_set():
                return
            regular = self._is_due(time.monotonic() - last)
            if not called and not regular:
                continue
            done = self._run_round_if_needed(regular=regular)
            if regular:
                self.delete_copies()
                last = time.monotonic()
            useful = done is not None and (done.freed_bytes or done.verified_bytes)
            pause = URGENT_SECONDS if useful else min(2 * pause, LONGEST_URGENT_SECONDS)
            if called:
                self._over.wait(pause)

    def _is_due(self, passed: float) -> bool:
        """Whether a round is due this many seconds after the last one."""
        if MAINTENANCE_SECONDS / 2 <= passed < MAINTENANCE_SECONDS:
            with suppress(BufferUnusable):  # the next round says so
                return self.context.spans.live_files() > CROWD_FILES
        return passed >= MAINTENANCE_SECONDS

    def _run_round_if_needed(self, *, regular: bool) -> Eviction | None:
        try:
            room = self.context.room.measure()
        except MirrorError as error:
            self.facts.error = error.message
            return None
        return self._round(excess=room.excess, disk=room.disk_excess, upkeep=regular) if regular or room.excess else None

    def _round(self, *, excess: int, upkeep: bool, disk: int = 0) -> Eviction | None:
        facts, began = self.facts, time.monotonic()
        try:
            seconds = URGENT_VERIFY_SECONDS if excess else MAINTENANCE_SECONDS / 2
            done = self._maintenance().run_round(excess=excess, disk=disk, upkeep=upkeep, seconds=seconds)
        except Exception as error:  # noqa: BLE001 - failed maintenance must not end a working copy
            self._failed(error)
            return None
        facts.error, facts.note = "", done.note
        facts.freed_bytes += done.freed_bytes
        facts.verified_records += done.verified_records
        facts.verified_bytes += done.verified_bytes
        facts.rounds += 1
        facts.last, facts.seconds = time.time(), time.monotonic() - began
        log.debug("maintenance: %s", done)
        return done

    def _failed(self, error: Exception) -> None:
        text = error.message if isinstance(error, MirrorError) else f"{type(error).__name__}: {error}"
        if damage(error):
            self.context.fail(error)
        if text != self.facts.error:
            log.warning("maintenance of lane %s: %s", self.context.lane, text)
        self.facts.error = text

    def _maintenance(self) -> Maintenance:
        context = self.context
        buffer, verify = context.buffer, self._verifier()
        return Maintenance(
            context.store, context.spans, context.ledger, buffer.retention, buffer.max_bytes, verify=verify, differs=self._halt,
            archiving=archiving_of(context.store, context.spans, buffer),
        )  # fmt: skip

    def _verifier(self) -> Verify | None:
        """Verification of the running lane's spans, one task at a time so that the copy keeps its slots."""
        context = self.context
        if context.verify_staged is None:
            return None
        return staged_verifier(
            context.verify_staged,
            context.ledger,
            context.spans,
            context.target,
            runner=lambda: OneAtATime(context.placement.beside()),
            timeout=context.mirror.engine.request_timeout,
        )

    def _halt(self, differences: Collection[Differing]) -> None:
        """Halt topics whose copy is not what was staged; their spans stay in the buffer."""
        with self.context.state.lock:
            for topic in sorted({d.topic for d in differences}):
                self.context.state.halt(topic, halt_of(self.context.mirror.name, [d for d in differences if d.topic == topic]))


def halt_of(mirror: str, differences: Collection[Differing]) -> Halt:
    """The halt for a topic with these differences; it names the first one."""
    first = min(differences, key=lambda d: (d.partition, d.source_offset if d.source_offset is not None else -1))
    return copy_differs(mirror, TopicPartition(first.topic, first.partition), first.source_offset, first.kind, len(differences))

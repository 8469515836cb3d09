"""The ledger of a lane: what was sent where, what is missing and why, which generations of topics, under which producer id."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pipeline.buffer.ledger.offset_map import (
    AUDIT_COLUMNS,
    POSITION_COLUMNS,
    faults,
    fold_positions,
    last_positions,
    reached,
    sends_after,
    totals,
)
from mirror_pipeline.buffer.ledger.thinning import thin
from mirror_pipeline.buffer.ledger.verified import thinned, verified_ends
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.buffer.tables import rows
from mirror_pipeline.buffer.tables.columns import TIME
from mirror_pipeline.buffer.tables.delta import DeltaLog
from mirror_pipeline.buffer.tables.files import FileTotals, append_numbered, append_revision, append_rows, read_rows
from mirror_pipeline.buffer.tables.schema import GAPS, INCARNATIONS, PRODUCERS, SENDS, VERIFICATIONS
from mirror_pipeline.buffer.tables.upkeep import READER_GRACE, Upkeep, maintain_log
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import Gap, Incarnation, Position, Send, Stamp, TopicPartition, Verification

LEDGER_APP_ID = "mirror-ledger"
FIRST_COMMIT = f"{0:020d}.json"
# Verifications of the last hour stay rows of their own.
VERIFICATIONS_APART_MS = 3_600_000


class Ledger:
    """The ledger of one lane; one object per process, safe to use from several threads.

    Args:
        store: the lane.
        durable: bring commits to the disk before they count (local paths).
    """

    def __init__(self, store: LaneStore, *, durable: bool = True) -> None:
        self._store = store
        self._durable = durable
        self._sends = DeltaLog(store, SENDS, durable=durable)
        self._gaps = DeltaLog(store, GAPS, durable=durable)
        self._incarnations = DeltaLog(store, INCARNATIONS, durable=durable)
        self._producers = DeltaLog(store, PRODUCERS, durable=durable)
        self._verifications = DeltaLog(store, VERIFICATIONS, durable=durable)
        self._totals = FileTotals(self._sends, POSITION_COLUMNS, totals)
        self._lock = threading.RLock()

    @property
    def store(self) -> LaneStore:
        """The lane."""
        return self._store

    def ensure(self) -> None:
        """Create the tables if need be. Raises BufferUnusable."""
        for log in (*self._logs(), self._verifications):
            log.ensure()

    def exists(self) -> bool:
        """Whether all tables have been created; for commands that only read."""
        return all(log.exists() for log in self._logs())  # verifications came later: a ledger of before has none

    @staticmethod
    def may_know_topics(store: LaneStore) -> bool:
        """Whether a lane's ledger can have a row about a topic, at the price of listing a folder; True in an object store.

        Every lane asks every other one for its topics, and most of many lanes have none: their table has only the commit that made it.
        """
        if not store.local:
            return True
        try:
            return any(entry != FIRST_COMMIT for entry in os.listdir(f"{store.table(INCARNATIONS.name)}/_delta_log"))
        except FileNotFoundError:
            return False

    def _logs(self) -> tuple[DeltaLog, ...]:
        return (self._sends, self._gaps, self._incarnations, self._producers)

    def last_record(self) -> int:
        """Number of the newest record, -1 before the first; the next one takes a greater number."""
        return max(self._sends.transaction(LEDGER_APP_ID), self._gaps.transaction(LEDGER_APP_ID))

    def fence(self) -> None:
        """As :meth:`SpanTable.fence`, for records."""
        number = self.last_record() + 1
        for log in (self._gaps, self._sends):
            log.fence(LEDGER_APP_ID, number)

    def recorded(self, number: int) -> bool:
        """Whether the sends of that record are in the ledger, for a record whose outcome is not known. Raises BufferUnusable."""
        return self._sends.transaction(LEDGER_APP_ID) >= number

    def record(self, number: int, sends: Sequence[Send], gaps: Sequence[Gap] = ()) -> bool:
        """Write down what one micro-batch did: all its sends in one transaction.

        Gaps go first, in a transaction of their own: a crash in between leaves a gap named early, never a loss unnamed.

        Args:
            number: greater than any used before (:meth:`last_record`); the same number again changes nothing.
            sends: the stretches of the offset map that came to be.
            gaps: what was given up meanwhile; those already in the ledger are left out.

        Returns:
            True when these sends are in the ledger now, False when ``number`` was recorded before or there was nothing to do.
        """
        with self._lock:
            added = self._append_gaps(gaps, app_id=LEDGER_APP_ID, number=number)
            if not sends:
                return added
            return self._append(self._sends, rows.sends_table(self._store, sends, _now()), LEDGER_APP_ID, number)

    def add_gap(self, gap: Gap) -> bool:
        """Write down one gap; False when it is there already."""
        with self._lock:
            return self._append_gaps([gap])

    def _append_gaps(self, gaps: Iterable[Gap], *, app_id: str = "", number: int = -1) -> bool:
        wanted = {rows.gap_key(gap): gap for gap in gaps}
        if wanted:
            for known in self.gaps():
                wanted.pop(rows.gap_key(known), None)
        if not wanted:
            return False
        return self._append(self._gaps, rows.gaps_table(self._store, list(wanted.values())), app_id, number)

    def _append(self, log: DeltaLog, table: pa.Table, app_id: str = "", number: int = -1) -> bool:
        return append_rows(log, table, app_id, number, durable=self._durable)

    def _take(self, log: DeltaLog, table: pa.Table, revision: int) -> None:
        append_revision(log, table, LEDGER_APP_ID, revision, durable=self._durable, what="ledger", of="lane")

    def positions(self) -> dict[TopicPartition, Position]:
        """Where each partition of every topic's present incarnation stands, by the ledger alone (the target's log may be further)."""
        return fold_positions(self._totals.read(), self.incarnations())

    def put_there(self, generations: Iterable[Incarnation]) -> dict[int, Position]:
        """Where all that these generations of one target topic put there ends, by partition; source offsets mean nothing."""
        some = list(generations)
        return last_positions(self._totals.read(), some) if some else {}

    def reached(self) -> dict[SpanKey, int]:
        """Source offset up to which everything is on the target or named as missing, for every generation of every topic."""
        return reached(self._totals.read())

    def audit(self) -> None:
        """Check that the sends of every partition tile its source offsets. Raises BufferUnusable naming what does not."""
        found = faults(read_rows(self._sends, AUDIT_COLUMNS), self.incarnations())
        if found:
            raise BufferUnusable(f"ledger {self._store.uri}: {'; '.join(found)}", hint="the offset map cannot be trusted; report this")

    def sends_table(self, topic: str | None = None, partition: int | None = None, incarnation: str | None = None) -> pa.Table:
        """The sends as an Arrow table (columns in docs/buffer.md), ordered by topic, partition and source offset."""
        table = read_rows(self._sends)
        for name, value in (("topic", topic), ("partition", partition), ("incarnation", incarnation)):
            if value is not None:
                table = table.filter(pc.field(name) == value)
        return table.sort_by([(name, "ascending") for name in ("topic", "partition", "source_start")])

    def sends_after(self, starts: Mapping[SpanKey, int]) -> pa.Table:
        """The sends that end after a source offset, for the partitions named; read file by file, so that other rows take no memory."""
        sends = read_rows(self._sends, keep=partial(sends_after, starts=starts))
        return sends.sort_by([(name, "ascending") for name in ("topic", "partition", "source_start")])

    def sends_recorded(self, since: int) -> pa.Table:
        """Records sent since a time (milliseconds since the epoch): ``topic``, ``records``, ``recorded_at``, ``delay_ms``.

        What was adopted is left out: others sent it. Thinned rows have the time of their latest part (:func:`thin`).
        """
        floor = pa.scalar(since * 1000, pa.int64()).cast(TIME)
        wanted = (pc.field("recorded_at") >= floor) & (pc.field("records") > 0) & (pc.field("ordinal") >= 0)
        names = ["topic", "records", "ordinal", "recorded_at", "delay_ms"]
        return read_rows(self._sends, names, keep=lambda part: part.filter(wanted)).drop_columns(["ordinal"])

    def sends_since(self, known: Collection[str], topics: Collection[str]) -> tuple[pa.Table, list[str]]:
        """The sends of some topics in files that are not ``known``, and the names of all files now.

        Maintenance joins files, so rows read before may come again. Raises BufferUnusable, also when that happens during the read.
        """
        live = list(self._sends.files())
        names = pa.array(sorted(topics), pa.string())
        fresh = [path for path in live if path not in known]
        return read_rows(self._sends, paths=fresh, keep=lambda part: part.filter(pc.is_in(part["topic"], names))), live

    def sends(self, topic: str | None = None, partition: int | None = None, incarnation: str | None = None) -> list[Send]:
        """The sends, ordered by topic, partition and source offset."""
        return rows.to_sends(self.sends_table(topic, partition, incarnation))

    def gaps(self) -> list[Gap]:
        """All gaps, in order of decision."""
        return rows.to_gaps(read_rows(self._gaps))

    def incarnations(self) -> dict[str, Incarnation]:
        """The present incarnation of each topic, in its latest form; topics whose copy was deleted have none."""
        latest = rows.latest_incarnations(read_rows(self._incarnations))
        return {topic: generation for topic, generation in latest.items() if generation.target_topic}

    def generations(self) -> dict[tuple[str, str], Incarnation]:
        """Every generation of every topic, past ones too, by topic and incarnation; those of a topic oldest first."""
        return {key: each for key, each in rows.generations_of(read_rows(self._incarnations)).items() if each.target_topic}

    def add_incarnation(self, incarnation: Incarnation) -> None:
        """:meth:`add_incarnations` for one topic."""
        self.add_incarnations([incarnation])

    def add_incarnations(self, generations: Sequence[Incarnation]) -> None:
        """Bind topics to new generations, or present generations to more partitions (the latest form counts); one transaction."""
        with self._lock:
            revision = self._next_revision(self._incarnations)
            self._take(self._incarnations, rows.incarnations_table(self._store, revision, generations), revision)

    def producer(self, target_cluster_id: str) -> Stamp | None:
        """The producer id this lane holds on a target cluster."""
        return rows.latest_producer(read_rows(self._producers), target_cluster_id)

    def save_producer(self, producer: Stamp, target_cluster_id: str) -> None:
        """Record the producer id obtained from a target cluster; the latest counts."""
        with self._lock:
            revision = self._next_revision(self._producers)
            self._take(self._producers, rows.producers_table(self._store, revision, producer, target_cluster_id, _now()), revision)

    def verifications(self) -> list[Verification]:
        """Every verification, in order."""
        return [row for log in self._verification_logs() for row in rows.to_verifications(read_rows(log))]

    def verified(self) -> dict[SpanKey, int]:
        """Source offset up to which everything from the incarnation's start on is verified; absent: nothing is."""
        return verified_ends(self.verifications(), self.incarnations())

    def add_verifications(self, done: Sequence[Verification]) -> None:
        """Record what was compared, in one transaction; allowed beside a running lane."""
        if done:
            with self._lock:
                self._verifications.ensure()
                append_numbered(
                    self._verifications, LEDGER_APP_ID,
                    lambda number: rows.verifications_table(self._store, [replace(each, revision=number) for each in done]),
                    durable=self._durable,
                )  # fmt: skip

    def _verification_logs(self) -> tuple[DeltaLog, ...]:
        return (self._verifications,) if self._verifications.exists() else ()

    def producers(self) -> list[tuple[str, int]]:
        """Every target cluster id and producer id that this lane ever wrote with."""
        known = read_rows(self._producers, ["target_cluster_id", "producer_id"])
        return list(zip(known["target_cluster_id"].to_pylist(), known["producer_id"].to_pylist(), strict=True))

    def _next_revision(self, log: DeltaLog) -> int:
        known = read_rows(log, ["revision"])
        return 0 if not known.num_rows else int(pc.max(known["revision"]).as_py()) + 1

    def _thinned(self, table: pa.Table) -> pa.Table:
        kept = thinned(rows.to_verifications(table), before=_now() - VERIFICATIONS_APART_MS)
        return rows.verifications_table(self._store, kept)

    def maintain(self, *, max_files: int = 64, orphan_age: float = READER_GRACE) -> Upkeep:
        """Keep the number of files and rows bounded: join small files and old rows, write checkpoints, remove dead files.

        May run in another thread than the one that records; costs nothing when there is nothing to do.

        Args:
            max_files: join the files of a table when it has more.
            orphan_age: seconds a file that the table does not refer to is kept, for readers of versions before; at least 60.
        """
        total = Upkeep()
        for log in (*self._logs(), *self._verification_logs()):
            shrink = partial(thin, now=time.time()) if log is self._sends else self._thinned if log is self._verifications else None
            total += maintain_log(log, max_files=max_files, orphan_age=orphan_age, durable=self._durable, shrink=shrink)
        return total


def _now() -> int:
    return int(time.time() * 1000)

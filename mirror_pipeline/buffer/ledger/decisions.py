"""Decisions about halted topics, and the records that were left out of a copy: two small tables of a lane."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables import rows
from mirror_pipeline.buffer.tables.delta import DeltaLog
from mirror_pipeline.buffer.tables.files import append_numbered, read_rows
from mirror_pipeline.buffer.tables.schema import DECISIONS, QUARANTINE
from mirror_pipeline.model import Decision, DecisionKind, Incarnation, Quarantined

DECISIONS_APP_ID = "mirror-decisions"


class Decisions:
    """Decisions and quarantine of one lane; may be written beside a running lane.

    Args:
        store: the lane.
        durable: bring commits to the disk before they count (local paths).
    """

    def __init__(self, store: LaneStore, *, durable: bool = True) -> None:
        self._store = store
        self._durable = durable
        self._decisions = DeltaLog(store, DECISIONS, durable=durable)
        self._quarantine = DeltaLog(store, QUARANTINE, durable=durable)

    def add(self, decided: Sequence[Decision]) -> None:
        """Write decisions down, all or none. Raises BufferUnusable."""
        if decided:
            self._append(self._decisions, lambda number: rows.decisions_table(self._store, [replace(d, revision=number) for d in decided]))

    def all(self) -> tuple[Decision, ...]:
        """Every decision, in order."""
        return rows.to_decisions(read_rows(self._decisions)) if self._decisions.exists() else ()

    def left_out(self, generations: Mapping[str, Incarnation]) -> set[str]:
        """Those topics whose deletion on the source an operator has accepted. Raises BufferUnusable."""
        gone = {(d.topic, d.incarnation) for d in self.all() if d.kind is DecisionKind.SOURCE_GONE}
        return {topic for topic, generation in generations.items() if (topic, generation.incarnation) in gone}

    def keep(self, left_out: Sequence[Quarantined]) -> None:
        """Keep records that are left out of the copy; the same offsets again change nothing. Raises BufferUnusable."""
        if not left_out:
            return  # every micro-batch asks: the table must not be looked at for nothing
        known = self.quarantined_offsets()
        fresh = [q for q in left_out if (q.topic, q.partition, q.incarnation, q.start) not in known]
        if fresh:
            self._append(self._quarantine, lambda _: rows.quarantine_table(self._store, fresh, int(time.time() * 1000)))

    def quarantined_offsets(self) -> set[tuple[str, int, str, int]]:
        """Topic, partition, incarnation and first source offset of everything in quarantine."""
        if not self._quarantine.exists():
            return set()
        table = read_rows(self._quarantine, ["topic", "partition", "incarnation", "start_offset"])
        return set(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))

    def quarantined(self) -> list[Quarantined]:
        """Everything in quarantine, with payloads."""
        return rows.to_quarantined(read_rows(self._quarantine)) if self._quarantine.exists() else []

    def _append(self, log: DeltaLog, table_of: Callable[[int], pa.Table]) -> None:
        log.ensure()
        append_numbered(log, DECISIONS_APP_ID, table_of, durable=self._durable)

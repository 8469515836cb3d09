"""What people decided about halted topics, and the records that were left out of a copy: two small tables of a lane."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from mirror_pipeline.buffer import columns
from mirror_pipeline.buffer.delta import DeltaLog, add_action
from mirror_pipeline.buffer.files import read_rows, write_rows
from mirror_pipeline.buffer.schema import DECISIONS, QUARANTINE
from mirror_pipeline.buffer.store import LaneStore
from mirror_pipeline.model import Decision, DecisionKind, Quarantined

_DECISION = ("topic", "partition", "incarnation", "kind", "start_offset", "end_offset", "subject", "decided_by")


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
        if not decided:
            return
        texts = [[d.topic for d in decided], [d.incarnation for d in decided], [d.kind.value for d in decided]]
        table = pa.Table.from_arrays(
            [
                *self._owner(len(decided)),
                columns.strings(texts[0]),
                columns.int32s(d.partition for d in decided),
                columns.strings(texts[1]),
                columns.strings(texts[2]),
                columns.int64s(d.start for d in decided),
                columns.int64s(d.end for d in decided),
                columns.strings([d.subject for d in decided]),
                columns.strings([d.decided_by for d in decided]),
                columns.times(d.at for d in decided),
            ],
            schema=DECISIONS.schema,
        )
        self._append(self._decisions, table)

    def all(self) -> tuple[Decision, ...]:
        """Every decision, in order of time."""
        if not self._decisions.exists():
            return ()
        table = read_rows(self._decisions)
        times = [value // 1000 for value in table["decided_at"].cast(pa.int64()).to_pylist()]
        found = []
        for row, at in zip(zip(*(table[name].to_pylist() for name in _DECISION), strict=True), times, strict=True):
            topic, partition, incarnation, kind, start, end, subject, by = row
            found.append(Decision(topic, partition, incarnation, DecisionKind(kind), start, end, subject, by, at))
        return tuple(sorted(found, key=lambda d: d.at))

    def latest(self) -> float | None:
        """When the last decision was made, in seconds since the epoch."""
        found = self.all()
        return found[-1].at / 1000 if found else None

    def keep(self, left_out: Sequence[Quarantined]) -> None:
        """Keep records that are left out of the copy; the same offsets again change nothing. Raises BufferUnusable."""
        known = self.quarantined_offsets()
        fresh = [q for q in left_out if (q.topic, q.partition, q.incarnation, q.start) not in known]
        if not fresh:
            return
        now = int(time.time() * 1000)
        table = pa.Table.from_arrays(
            [
                *self._owner(len(fresh)),
                columns.strings([q.topic for q in fresh]),
                columns.int32s(q.partition for q in fresh),
                columns.strings([q.incarnation for q in fresh]),
                columns.int64s(q.start for q in fresh),
                columns.int64s(q.end for q in fresh),
                columns.strings([q.reason for q in fresh]),
                columns.times([now] * len(fresh)),
                columns.binaries([q.payload for q in fresh]),
            ],
            schema=QUARANTINE.schema,
        )
        self._append(self._quarantine, table)

    def quarantined_offsets(self) -> set[tuple[str, int, str, int]]:
        """Topic, partition, incarnation and first source offset of everything in quarantine."""
        if not self._quarantine.exists():
            return set()
        table = read_rows(self._quarantine, ["topic", "partition", "incarnation", "start_offset"])
        return set(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))

    def quarantined(self) -> list[Quarantined]:
        """Everything in quarantine, with payloads."""
        if not self._quarantine.exists():
            return []
        names = ("topic", "partition", "incarnation", "start_offset", "end_offset", "reason", "payload")
        table = read_rows(self._quarantine)
        return [Quarantined(*row) for row in zip(*(table[name].to_pylist() for name in names), strict=True)]

    def _owner(self, count: int) -> list[pa.Array]:
        return [columns.strings([self._store.mirror] * count), columns.strings([self._store.lane] * count)]

    def _append(self, log: DeltaLog, table: pa.Table) -> None:
        log.ensure()
        path, size, stats = write_rows(log, table, durable=self._durable)
        log.commit([add_action(path, size, stats, {})])

"""Ledger rows from the model's facts, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables import columns
from mirror_pipeline.buffer.tables.schema import DECISIONS, GAPS, INCARNATIONS, PRODUCERS, QUARANTINE, SENDS, VERIFICATIONS
from mirror_pipeline.model import (
    Decision,
    DecisionKind,
    Gap,
    HoleCause,
    Incarnation,
    Quarantined,
    Send,
    Stamp,
    Verdict,
    Verification,
)

GapKey = tuple[str, int, str, int, int]


def _table(schema: pa.Schema, store: LaneStore, count: int, *rest: pa.Array) -> pa.Table:
    return pa.Table.from_arrays([columns.strings([store.mirror] * count), columns.strings([store.lane] * count), *rest], schema=schema)


def _milliseconds(column: pa.ChunkedArray) -> list[int]:
    return [value // 1000 for value in column.cast(pa.int64()).to_pylist()]


def sends_table(store: LaneStore, sends: Sequence[Send], at: int) -> pa.Table:
    """Rows of the sends table; ``at`` in milliseconds since the epoch."""
    return _table(
        SENDS.schema,
        store,
        len(sends),
        columns.strings([s.topic for s in sends]),
        columns.int32s(s.partition for s in sends),
        columns.strings([s.incarnation for s in sends]),
        columns.int64s(s.source_start for s in sends),
        columns.int64s(s.source_end for s in sends),
        columns.strings([s.target_topic for s in sends]),
        columns.int64s(s.target_start for s in sends),
        columns.int64s(s.target_end for s in sends),
        columns.int64s(s.records for s in sends),
        columns.int64s(s.ordinal for s in sends),
        columns.int64s(s.micro_batch for s in sends),
        columns.strings([None if s.cause is None else s.cause.value for s in sends]),
        columns.times([at] * len(sends)),
        pa.array([s.delay_ms for s in sends], pa.int64()),
    )


_SEND = ("topic", "partition", "incarnation", "source_start", "source_end", "target_topic", "target_start", "target_end")
_SEND_REST = ("records", "ordinal", "micro_batch", "cause")


def to_sends(table: pa.Table) -> list[Send]:
    """The facts in rows of the sends table."""
    *facts, causes = (table[name].to_pylist() for name in (*_SEND, *_SEND_REST))
    meanings = [None if cause is None else HoleCause(cause) for cause in causes]
    return list(map(Send, *facts, meanings))


def gap_key(gap: Gap) -> GapKey:
    """The identity of a gap."""
    return (gap.topic, gap.partition, gap.incarnation, gap.start, gap.end)


def gaps_table(store: LaneStore, gaps: Sequence[Gap]) -> pa.Table:
    """Rows of the gaps table."""
    return _table(
        GAPS.schema,
        store,
        len(gaps),
        *_place(gaps),
        *_span(gaps),
        columns.strings([g.cause.value for g in gaps]),
        columns.strings([g.decided_by for g in gaps]),
        columns.times(g.at for g in gaps),
    )


def to_gaps(table: pa.Table) -> list[Gap]:
    """The facts in rows of the gaps table, in order of decision; a row that two runs wrote counts once."""
    names = ("mirror", "topic", "partition", "incarnation", "start_offset", "end_offset", "cause", "decided_by")
    values = zip(*(table[name].to_pylist() for name in names), _milliseconds(table["decided_at"]), strict=True)
    gaps = sorted((Gap(m, t, p, i, s, e, HoleCause(c), by, at) for m, t, p, i, s, e, c, by, at in values), key=lambda g: (g.at, gap_key(g)))
    return list({gap_key(gap): gap for gap in reversed(gaps)}.values())[::-1]


def incarnations_table(store: LaneStore, revision: int, generations: Sequence[Incarnation]) -> pa.Table:
    """Rows of the incarnations table, numbered from ``revision`` on."""
    texts = ("topic", "incarnation", "source_cluster_id", "target_cluster_id", "target_topic", "target_topic_id")
    return _table(
        INCARNATIONS.schema,
        store,
        len(generations),
        columns.int64s(range(revision, revision + len(generations))),
        *(columns.strings([getattr(generation, text) for generation in generations]) for text in texts),
        columns.offset_maps([generation.starts for generation in generations]),
        columns.offset_maps([generation.target_starts for generation in generations]),
        columns.times(generation.at for generation in generations),
        columns.offset_maps([generation.ordinals for generation in generations]),
        columns.int32s(generation.producer_epoch for generation in generations),
        columns.offset_maps([generation.kept for generation in generations]),
    )


def _generation(row: dict[str, Any], at: int) -> Incarnation:
    return Incarnation(
        topic=row["topic"],
        incarnation=row["incarnation"],
        source_cluster_id=row["source_cluster_id"],
        target_cluster_id=row["target_cluster_id"],
        target_topic=row["target_topic"],
        target_topic_id=row["target_topic_id"],
        starts=dict(row["starts"]),
        target_starts=dict(row["target_starts"]),
        at=at,
        ordinals=dict(row["ordinals"] or ()),
        producer_epoch=row["producer_epoch"] or 0,
        kept=dict(row["kept"] or ()),
    )


def latest_incarnations(table: pa.Table) -> dict[str, Incarnation]:
    """The present incarnation of each topic: the one with the greatest revision."""
    return {generation.topic: generation for generation in _in_order(table)}


def generations_of(table: pa.Table) -> dict[tuple[str, str], Incarnation]:
    """Every generation of every topic by topic and incarnation, in its latest form; those of a topic oldest first."""
    return {(generation.topic, generation.incarnation): generation for generation in _in_order(table)}


def _in_order(table: pa.Table) -> Iterator[Incarnation]:
    """By revision alone, the ledger's own counter: rows come from hosts whose clocks may differ by hours."""
    rows = zip(table.drop_columns(["bound_at"]).to_pylist(), _milliseconds(table["bound_at"]), strict=True)
    return (_generation(row, at) for row, at in sorted(rows, key=lambda each: int(each[0]["revision"])))


def producers_table(store: LaneStore, revision: int, producer: Stamp, target_cluster_id: str, at: int) -> pa.Table:
    """One row of the producers table."""
    return _table(
        PRODUCERS.schema,
        store,
        1,
        columns.int64s([revision]),
        columns.strings([target_cluster_id]),
        columns.int64s([producer.producer_id]),
        columns.int32s([producer.producer_epoch]),
        columns.times([at]),
    )


def latest_producer(table: pa.Table, target_cluster_id: str) -> Stamp | None:
    """The producer id and epoch saved last for a target cluster."""
    own = [row for row in table.drop_columns(["taken_at"]).to_pylist() if row["target_cluster_id"] == target_cluster_id]
    newest: dict[str, Any] | None = max(own, key=lambda row: int(row["revision"]), default=None)
    return None if newest is None else Stamp(newest["producer_id"], newest["producer_epoch"])


def verifications_table(store: LaneStore, done: Sequence[Verification]) -> pa.Table:
    """Rows of the verifications table."""
    numbers = ("source_start", "source_end", "leaves", "records")
    return _table(
        VERIFICATIONS.schema,
        store,
        len(done),
        columns.strings([v.topic for v in done]),
        columns.int32s(v.partition for v in done),
        columns.strings([v.incarnation for v in done]),
        *(columns.int64s([getattr(v, name) for v in done]) for name in numbers),
        columns.strings([v.root for v in done]),
        columns.strings([v.verdict.value for v in done]),
        columns.strings([v.kind for v in done]),
        columns.times(v.at for v in done),
        columns.int64s(v.revision for v in done),
    )


_VERIFICATION = ("topic", "partition", "incarnation", "source_start", "source_end", "leaves", "records", "root", "verdict", "kind")


def to_verifications(table: pa.Table) -> list[Verification]:
    """The facts in rows of the verifications table, in order."""
    *facts, verdicts, kinds = (table[name].to_pylist() for name in _VERIFICATION)
    found = map(Verification, *facts, map(Verdict, verdicts), kinds, _milliseconds(table["verified_at"]), _revisions(table))
    return sorted(found, key=lambda row: (row.revision, row.at))


def _revisions(table: pa.Table) -> list[int]:
    """Older buffers have rows without a revision: they come first, in order of time."""
    return [-1 if revision is None else revision for revision in table["revision"].to_pylist()]


def decisions_table(store: LaneStore, decided: Sequence[Decision]) -> pa.Table:
    """Rows of the decisions table."""
    return _table(
        DECISIONS.schema,
        store,
        len(decided),
        *_place(decided),
        columns.strings([d.kind.value for d in decided]),
        *_span(decided),
        columns.strings([d.subject for d in decided]),
        columns.strings([d.decided_by for d in decided]),
        columns.times(d.at for d in decided),
        columns.int64s(d.revision for d in decided),
    )


def to_decisions(table: pa.Table) -> tuple[Decision, ...]:
    """The facts in rows of the decisions table, in order."""
    place, rest = ("topic", "partition", "incarnation"), ("start_offset", "end_offset", "subject", "decided_by")
    facts, others = ([table[name].to_pylist() for name in names] for names in (place, rest))
    kinds = map(DecisionKind, table["kind"].to_pylist())
    found = map(Decision, *facts, kinds, *others, _milliseconds(table["decided_at"]), _revisions(table))
    return tuple(sorted(found, key=lambda d: (d.revision, d.at)))


def quarantine_table(store: LaneStore, left_out: Sequence[Quarantined], at: int) -> pa.Table:
    """Rows of the quarantine table; ``at`` in milliseconds since the epoch."""
    return _table(
        QUARANTINE.schema,
        store,
        len(left_out),
        *_place(left_out),
        *_span(left_out),
        columns.strings([q.reason for q in left_out]),
        columns.times([at] * len(left_out)),
        columns.binaries([q.payload for q in left_out]),
    )


def to_quarantined(table: pa.Table) -> list[Quarantined]:
    """The facts in rows of the quarantine table."""
    names = ("topic", "partition", "incarnation", "start_offset", "end_offset", "reason", "payload")
    return list(map(Quarantined, *(table[name].to_pylist() for name in names)))


def _place(facts: Sequence[Gap] | Sequence[Decision] | Sequence[Quarantined]) -> list[pa.Array]:
    """Columns topic, partition and incarnation."""
    numbers = columns.int32s(f.partition for f in facts)
    return [columns.strings([f.topic for f in facts]), numbers, columns.strings([f.incarnation for f in facts])]


def _span(facts: Sequence[Gap] | Sequence[Decision] | Sequence[Quarantined]) -> list[pa.Array]:
    """Columns of source offsets, the end exclusive."""
    return [columns.int64s(f.start for f in facts), columns.int64s(f.end for f in facts)]

"""What the rows of the sends table add up to: positions, and whether they tile their partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pipeline.buffer.tables.columns import empty
from mirror_pipeline.model import Incarnation, Position, TopicPartition

POSITION_COLUMNS = ("topic", "partition", "incarnation", "source_end", "target_end", "records", "ordinal")
AUDIT_COLUMNS = (*POSITION_COLUMNS, "source_start", "target_start", "cause")
_KEYS = ["topic", "partition", "incarnation"]


def starting_positions(incarnations: Mapping[str, Incarnation]) -> dict[TopicPartition, Position]:
    """Where each partition stands before anything was sent."""
    return {
        TopicPartition(topic, partition): Position(start, generation.target_starts.get(partition, 0), generation.ordinals.get(partition, 0))
        for topic, generation in incarnations.items()
        for partition, start in generation.starts.items()
    }


def totals(sends: pa.Table) -> pa.Table:
    """One row for each partition of each generation, in the columns ``POSITION_COLUMNS``: where its sends end.

    Totals of totals are totals: the total of a file can be kept in place of the file.
    """
    if not sends.num_rows:  # a first run: grouping imports pandas, 0.3 s before the first record
        return empty(pa.schema([sends.schema.field(name).with_nullable(True) for name in POSITION_COLUMNS]))
    put = pc.add(sends["ordinal"], sends["records"])
    ends = sends.select([*_KEYS, "source_end", "target_end"]).append_column("put", put)
    folded = ends.group_by(_KEYS).aggregate([("source_end", "max"), ("target_end", "max"), ("put", "max")])
    columns = [*(folded[name] for name in _KEYS), folded["source_end_max"], folded["target_end_max"]]
    none = pa.chunked_array([pc.subtract(folded["put_max"], folded["put_max"]).combine_chunks()])
    return pa.Table.from_arrays([*columns, none, folded["put_max"]], names=list(POSITION_COLUMNS))


def reached(sends: pa.Table) -> dict[tuple[str, int, str], int]:
    """Source offset up to which each partition of each generation, also of a past one, is on the target or named in the ledger."""
    folded = totals(sends)
    names = [*_KEYS, "source_end"]
    return {(t, p, i): end for t, p, i, end in zip(*(folded[name].to_pylist() for name in names), strict=True)}


def sends_after(sends: pa.Table, starts: Mapping[tuple[str, int, str], int]) -> pa.Table:
    """The rows of these partitions that end after the source offset given for each."""
    columns = [pa.array(column) for column in zip(*starts, strict=True)] if starts else [[], [], []]
    floors = pa.table([*columns, pa.array(list(starts.values()), pa.int64())], names=[*_KEYS, "floor"])
    floors = floors.cast(pa.schema([*(sends.schema.field(name).with_nullable(True) for name in _KEYS), ("floor", pa.int64())]))
    rows = sends.join(floors, keys=_KEYS, join_type="inner")
    return rows.filter(pc.field("source_end") > pc.field("floor")).select(sends.column_names)


def fold_positions(sends: pa.Table, incarnations: Mapping[str, Incarnation]) -> dict[TopicPartition, Position]:
    """Where each partition of the present incarnations stands.

    Along a partition source ends, target ends and ordinals never fall (:func:`faults` checks it), so the greatest of each
    belong to the same, latest, send.

    Args:
        sends: the columns ``POSITION_COLUMNS``, in any order of rows.
        incarnations: the present incarnation by topic.
    """
    positions = starting_positions(incarnations)
    folded = totals(sends)
    names = [*_KEYS, "source_end", "target_end", "ordinal"]
    for topic, partition, incarnation, source_end, target_end, ordinal in zip(*(folded[n].to_pylist() for n in names), strict=True):
        generation = incarnations.get(topic)
        if generation is not None and generation.incarnation == incarnation:
            # An adopted topic may end with records that are not in the map: the copy continues after them.
            target_next = max(target_end, generation.target_starts.get(partition, 0))
            positions[TopicPartition(topic, partition)] = Position(source_end, target_next, ordinal)
    return positions


def last_positions(sends: pa.Table, generations: Iterable[Incarnation]) -> dict[int, Position]:
    """Where the last of some generations of one target topic ends in each partition; arguments as for :func:`fold_positions`."""
    found: dict[int, Position] = {}
    for generation in generations:
        for tp, at in fold_positions(sends, {generation.topic: generation}).items():
            known = found.get(tp.partition)
            found[tp.partition] = at if known is None or known.target_next <= at.target_next else known
    return found


def _rule_breakers(rows: pa.Table) -> list[tuple[pa.Array, str]]:
    """Masks over rows sorted by partition and source offset, each with what a True means."""
    source = pc.subtract(rows["source_end"], rows["source_start"])
    target = pc.subtract(rows["target_end"], rows["target_start"])
    hole = pc.is_valid(rows["cause"])
    dense = pc.and_(pc.equal(source, rows["records"]), pc.equal(target, rows["records"]))
    empty = pc.and_(pc.equal(rows["records"], 0), pc.or_(pc.equal(target, 0), pc.equal(target, source)))
    before, after = rows.slice(0, max(rows.num_rows - 1, 0)), rows.slice(1)
    same = _all_equal(before, after)

    def pairs(mask: pa.ChunkedArray) -> pa.ChunkedArray:
        first = pa.chunked_array([pa.array([False] * min(rows.num_rows, 1), pa.bool_())])
        return pa.chunked_array([*first.chunks, *pc.and_(same, mask).chunks], pa.bool_())

    counted = pc.add(before["ordinal"], before["records"])
    return [
        (pc.less_equal(source, 0), "covers no source offset"),
        (pc.invert(pc.if_else(hole, empty, dense)), "source length, target length and records disagree"),
        (pairs(pc.less(after["source_start"], before["source_end"])), "overlaps the send before it"),
        (pairs(pc.greater(after["source_start"], before["source_end"])), "leaves a hole after the send before it"),
        (pairs(pc.less(after["target_start"], before["target_end"])), "moves backwards on the target"),
        (pairs(pc.not_equal(after["ordinal"], counted)), "has an ordinal that does not follow the send before it"),
    ]


def _all_equal(before: pa.Table, after: pa.Table) -> pa.ChunkedArray:
    same = pc.equal(before["topic"], after["topic"])
    for name in ("partition", "incarnation"):
        same = pc.and_(same, pc.equal(before[name], after[name]))
    return same


def _firsts(rows: pa.Table, incarnations: Mapping[str, Incarnation]) -> list[str]:
    """Partitions of a present incarnation whose first send is not where the incarnation started."""
    folded = rows.group_by(_KEYS).aggregate([("source_start", "min")])
    texts = []
    for topic, partition, incarnation, first in zip(*(folded[n].to_pylist() for n in [*_KEYS, "source_start_min"]), strict=True):
        generation = incarnations.get(topic)
        if generation is not None and generation.incarnation == incarnation and generation.starts.get(partition, first) != first:
            texts.append(f"{topic}[{partition}]: the first send starts at {first}, the incarnation at {generation.starts[partition]}")
    return texts


def faults(sends: pa.Table, incarnations: Mapping[str, Incarnation], *, limit: int = 20) -> list[str]:
    """Where the sends of a partition do not tile its source offsets, one line each (at most ``limit``).

    Args:
        sends: the columns ``AUDIT_COLUMNS``.
        incarnations: the present incarnation by topic.
        limit: how many lines.
    """
    rows = sends.sort_by([(name, "ascending") for name in (*_KEYS, "source_start", "source_end")]).combine_chunks()
    texts = _firsts(rows, incarnations)
    for mask, meaning in _rule_breakers(rows):
        for row in rows.filter(mask).slice(0, limit).to_pylist():
            texts.append(f"{row['topic']}[{row['partition']}]: the send of [{row['source_start']}, {row['source_end']}) {meaning}")
    return sorted(texts)[:limit]

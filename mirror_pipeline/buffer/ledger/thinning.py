"""Fewer rows for the same offset map: sends that continue each other become one. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# Columns in which neighbours must agree to be joined.
SAME = ("mirror", "lane", "topic", "partition", "incarnation", "target_topic", "cause")
# Younger rows stay as they were recorded: one for each micro-batch.
RECENT_SECONDS = 600
# Rows older than this are joined whatever their time; between the two those of one hour are.
OLD_SECONDS = 7 * 86_400
_HOUR_MICROSECONDS = 3_600_000_000
_LEAST = ("source_start", "target_start", "ordinal")
_GREATEST = ("source_end", "target_end", "micro_batch", "recorded_at", "delay_ms")


def thin(sends: pa.Table, *, now: float, recent: float = RECENT_SECONDS, old: float = OLD_SECONDS) -> pa.Table:
    """Join neighbours along a partition where source offsets, target offsets and ordinals run on without a break.

    Every source offset keeps its target offset, every hole its cause, every partition its position. A joined row has
    the latest time, the latest micro-batch and the longest known delay of its parts. Rows that overlap or leave something
    out stay as they are, for an audit to find.

    Args:
        sends: rows of the sends table, in any order.
        now: seconds since the epoch.
        recent: rows younger than this many seconds are left alone.
        old: rows older than this are joined across hours too.
    """
    if sends.num_rows < 2:
        return sends
    rows = sends.sort_by([(name, "ascending") for name in ("topic", "partition", "incarnation", "source_start", "source_end")])
    rows = rows.combine_chunks()
    begins = pa.concat_arrays([pa.array([True]), pc.invert(_continues(rows, _period(rows, now, recent, old)))])
    run = pc.cumulative_sum(begins.cast(pa.int64()))
    if pc.max(run).as_py() == rows.num_rows:
        return sends
    joined = rows.append_column("run", run).group_by("run").aggregate(
        [*((name, "min") for name in (*_LEAST, *SAME)), *((name, "max") for name in _GREATEST), ("records", "sum")]
    )  # fmt: skip
    ends = {**dict.fromkeys((*_LEAST, *SAME), "min"), **dict.fromkeys(_GREATEST, "max"), "records": "sum"}
    columns = [joined[f"{name}_{ends[name]}"].cast(sends.schema.field(name).type) for name in sends.schema.names]
    return pa.Table.from_arrays(columns, schema=sends.schema)


def _period(rows: pa.Table, now: float, recent: float, old: float) -> pa.Array:
    """A number for each row; neighbours are joined only where it is the same. Recent rows have one of their own each."""
    at = rows["recorded_at"].combine_chunks().cast(pa.int64())
    hours = pc.divide(at, _HOUR_MICROSECONDS)
    alone = pa.array(range(-rows.num_rows - 1, -1), pa.int64())
    ancient = pc.less(at, int((now - old) * 1e6))
    fresh = pc.greater(at, int((now - recent) * 1e6))
    return pc.if_else(fresh, alone, pc.if_else(ancient, -1, hours))


def _continues(rows: pa.Table, period: pa.Array) -> pa.Array:
    """For each row but the first: whether it continues where the row before it ended."""
    count = rows.num_rows - 1
    before, after = rows.slice(0, count), rows.slice(1)

    def equal(left: str, right: str) -> pa.Array:
        return pc.equal(before[left], after[right]).combine_chunks()

    same = pc.equal(period.slice(0, count), period.slice(1))
    for name in SAME:
        both = pc.and_(pc.is_null(before[name]), pc.is_null(after[name])).combine_chunks()
        same = pc.and_(same, pc.or_(pc.fill_null(equal(name, name), False), both))
    for left, right in (("source_end", "source_start"), ("target_end", "target_start")):
        same = pc.and_(same, equal(left, right))
    counted = pc.add(before["ordinal"], before["records"])
    sound = _sound(rows)
    both_sound = pc.and_(sound.slice(0, count), sound.slice(1))
    return pc.and_(pc.and_(same, both_sound), pc.equal(counted, after["ordinal"]).combine_chunks())


def _sound(rows: pa.Table) -> pa.Array:
    """Whether a row is dense, or a hole: the errors of two rows must not cancel out in their sum."""
    source = pc.subtract(rows["source_end"], rows["source_start"])
    target = pc.subtract(rows["target_end"], rows["target_start"])
    dense = pc.and_(pc.equal(source, rows["records"]), pc.equal(target, rows["records"]))
    hole = pc.and_(pc.equal(rows["records"], 0), pc.or_(pc.equal(target, 0), pc.equal(target, source)))
    return pc.if_else(pc.is_valid(rows["cause"]), hole, dense).combine_chunks()

"""What the rows of the verifications table add up to: how far each partition is verified. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.model import Incarnation, Verdict, Verification

Intervals = list[tuple[int, int]]


def verified_ends(done: Iterable[Verification], incarnations: Mapping[str, Incarnation]) -> dict[SpanKey, int]:
    """Source offset up to which everything from an incarnation's start on is verified; partitions without any are left out.

    A later verification of the same offsets replaces an earlier one. What the target's retention deleted, or what left
    the buffer before there were digests, counts as verified: it can no longer be compared.

    Args:
        done: verifications in order.
        incarnations: the present generation of each topic; an earlier generation counts from its first verification.
    """
    covered: dict[SpanKey, Intervals] = {}
    first: dict[SpanKey, int] = {}
    for row in done:
        key = (row.topic, row.partition, row.incarnation)
        first[key] = min(first.get(key, row.source_start), row.source_start)
        change = _without if row.verdict is Verdict.DIFFERENT else _with
        covered[key] = change(covered.get(key, []), row.source_start, row.source_end)
    ends = {}
    for key, intervals in covered.items():
        generation = incarnations.get(key[0])
        start = generation.starts.get(key[1], first[key]) if generation is not None and generation.incarnation == key[2] else first[key]
        end = next((high for low, high in intervals if low <= start < high), None)
        if end is not None:
            ends[key] = end
    return ends


def different_now(done: Iterable[Verification]) -> set[str]:
    """Topics of which some stretch differed when it was last compared; ``done`` in order."""
    found: dict[SpanKey, Intervals] = {}
    for row in done:
        key = (row.topic, row.partition, row.incarnation)
        change = _with if row.verdict is Verdict.DIFFERENT else _without
        found[key] = change(found.get(key, []), row.source_start, row.source_end)
    return {topic for (topic, _, _), intervals in found.items() if intervals}


def thinned(done: Iterable[Verification], *, before: int) -> list[Verification]:
    """Fewer rows that prove the same: what one partition's verifications before a time (milliseconds since the epoch) said of
    adjoining stretches, one directly after the other, becomes one row. Its root is empty: roots cannot be added.
    ``done`` in order."""
    kept: list[Verification] = []
    last: dict[SpanKey, int] = {}
    for row in done:
        key = (row.topic, row.partition, row.incarnation)
        at = last.get(key, -1)
        known = kept[at] if at >= 0 else None
        if (
            known is not None
            and row.at < before
            and (known.verdict, known.kind, known.source_end) == (row.verdict, row.kind, row.source_start)
        ):
            kept[at] = replace(
                row, source_start=known.source_start, leaves=known.leaves + row.leaves, records=known.records + row.records, root=""
            )
        else:
            last[key] = len(kept)
            kept.append(row)
    return kept


def _with(intervals: Intervals, low: int, high: int) -> Intervals:
    """Sorted intervals that do not touch each other, with ``[low, high)`` added."""
    if not intervals or intervals[-1][1] < low:
        intervals.append((low, high))
        return intervals
    if intervals[-1][0] <= low:  # nearly always: the next interval follows the last
        intervals[-1] = (intervals[-1][0], max(intervals[-1][1], high))
        return intervals
    apart = [(a, b) for a, b in intervals if b < low or a > high]
    touching = [(a, b) for a, b in intervals if not (b < low or a > high)]
    joined = (min([low, *(a for a, _ in touching)]), max([high, *(b for _, b in touching)]))
    return sorted([*apart, joined])


def _without(intervals: Intervals, low: int, high: int) -> Intervals:
    kept = [part for a, b in intervals for part in ((a, min(b, low)), (max(a, high), b))]
    return [(a, b) for a, b in kept if a < b]

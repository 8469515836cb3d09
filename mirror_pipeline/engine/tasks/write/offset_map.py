"""From spans and acknowledged records to the offset map. Pure functions.

The records of a span are consecutive on the target where the lane is its only writer:
the target offset of a record is the position's ``target_next`` plus the number of records between them.
In a shared topic other writers' records lie between them: there the broker's answers, or the log, say where each run begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from mirror_pipeline.model import HoleCause, Position, Send, SpanRef

SEQUENCE_MASK = 0x7FFFFFFF
Landed = tuple[tuple[int, int], ...]
"""Runs of records on the target, in order: first target offset and number of records."""


def append_run(runs: list[tuple[int, int]], start: int, records: int) -> None:
    """Add records that lie from target offset ``start`` on; what follows the last run directly belongs to it."""
    if runs and sum(runs[-1]) == start:
        start, before = runs.pop()
        records += before
    runs.append((start, records))


def records_before(span: SpanRef, offset: int) -> int:
    """Number of the span's records whose source offset is below ``offset``."""
    offset = min(max(offset, span.start), span.end)
    count = offset - span.start
    for hole in span.holes:
        if hole.start < offset:
            count -= min(hole.end, offset) - hole.start
    return count


def segments(span: SpanRef, start: int) -> Iterator[tuple[int, int, HoleCause | None]]:
    """The span's runs of records and holes from ``start`` on, in order: ``(first, end, cause)``, cause None for records."""
    at = max(start, span.start)
    for hole in sorted(span.holes, key=lambda h: h.start):
        if hole.end <= at:
            continue
        if hole.start > at:
            yield at, hole.start, None
        yield max(at, hole.start), hole.end, hole.cause
        at = hole.end
    if at < span.end:
        yield at, span.end, None


def advance(
    spans: Sequence[SpanRef], position: Position, records: int, *, target_topic: str
) -> tuple[list[Send], Position]:
    """Account for ``records`` records that are on the target after ``position``.

    Holes that follow the last of them are passed too: nothing has to be sent for them.

    Returns:
        The sends that describe them, merged while the map stays linear, and the new position.

    Raises:
        ValueError: the spans leave offsets out or hold fewer records: the buffer is incomplete.
    """
    sends: list[Send] = []
    left = records
    for span in spans:
        if span.end <= position.source_next:
            continue
        if span.start > position.source_next:
            raise ValueError(f"{span.source}: the buffer lacks source offsets [{position.source_next}, {span.start})")
        for first, end, cause in segments(span, position.source_next):
            if cause is None and left == 0:
                return merge(sends), position
            taken = 0 if cause else min(end - first, left)
            stop = end if cause else first + taken
            sends.append(_send(span, position, first, stop, taken, cause, target_topic))
            left -= taken
            position = Position(stop, position.target_next + taken, position.ordinal + taken)
            if stop < end:
                return merge(sends), position
    if left:
        raise ValueError(f"the target holds {left} more records than the buffer")
    return merge(sends), position


def advance_over(
    spans: Sequence[SpanRef], position: Position, landed: Iterable[tuple[int, int]], *, target_topic: str
) -> tuple[list[Send], Position]:
    """As :func:`advance`, for records that lie in several runs on the target. Raises ValueError as well."""
    sends: list[Send] = []
    for start, records in landed:
        found, position = advance(spans, replace(position, target_next=start), records, target_topic=target_topic)
        sends += found
    return merge(sends), position


def advance_to(spans: Sequence[SpanRef], position: Position, end: int, *, target_topic: str) -> tuple[list[Send], Position]:
    """Account for a target log that ends at ``end``, with the source's offsets (``offsets: exact``): holes are filled there.

    Below the first source offset of the copy there are markers only, of which the map says nothing.

    Raises:
        ValueError: the spans leave offsets out or end before ``end``: the buffer is incomplete.
    """
    sends: list[Send] = []
    position = replace(position, target_next=min(end, position.source_next))
    for span in spans:
        if span.end <= position.source_next:
            continue
        if span.start > position.source_next and end > position.source_next:
            raise ValueError(f"{span.source}: the buffer lacks source offsets [{position.source_next}, {span.start})")
        for first, stop, cause in segments(span, position.source_next):
            taken = min(stop, end) - first
            if taken <= 0:
                return merge(sends), position
            records = 0 if cause else taken
            sends.append(replace(_send(span, position, first, first + taken, records, cause, target_topic), target_end=first + taken))
            position = Position(first + taken, first + taken, position.ordinal + records)
    if position.target_next < end:
        raise ValueError(f"the target's log ends at offset {end}, the buffer at {position.source_next}")
    return merge(sends), position


def _send(
    span: SpanRef, at: Position, first: int, stop: int, records: int, cause: HoleCause | None, target_topic: str
) -> Send:
    return Send(
        topic=span.topic,
        partition=span.partition,
        incarnation=span.incarnation,
        source_start=first,
        source_end=stop,
        target_topic=target_topic,
        target_start=at.target_next,
        target_end=at.target_next + records,
        records=records,
        ordinal=at.ordinal,
        micro_batch=span.micro_batch,
        cause=cause,
    )


def merge(sends: Iterable[Send]) -> list[Send]:
    """Join neighbours of one partition that continue each other with the same cause, within a micro-batch."""
    merged: list[Send] = []
    for send in sends:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.cause is send.cause
            and last.micro_batch == send.micro_batch
            and (last.topic, last.partition, last.incarnation) == (send.topic, send.partition, send.incarnation)
            and (last.source_end, last.target_end) == (send.source_start, send.target_start)
        ):
            merged[-1] = replace(
                last, source_end=send.source_end, target_end=send.target_end, records=last.records + send.records
            )
        else:
            merged.append(send)
    return merged


def with_delays(sends: Sequence[Send], spans: Iterable[SpanRef], now: float) -> list[Send]:
    """Sends of one partition with the delay of the oldest record in their spans; ``now`` is the time (seconds) of their confirmation."""
    oldest: dict[int, int] = {}
    end = max((send.source_end for send in sends), default=-1)
    for span in takewhile(lambda span: span.start < end, spans):  # during an outage many thousands wait behind them
        if span.records and span.min_timestamp > 0:
            oldest[span.micro_batch] = min(span.min_timestamp, oldest.get(span.micro_batch, span.min_timestamp))
    return [
        replace(send, delay_ms=max(0, int(now * 1000) - oldest[send.micro_batch])) if send.records and send.micro_batch in oldest else send
        for send in sends
    ]


def trailing_holes_only(spans: Sequence[SpanRef], position: Position) -> bool:
    """Whether the spans hold nothing but holes after ``position``."""
    return all(span.records == records_before(span, position.source_next) for span in spans)

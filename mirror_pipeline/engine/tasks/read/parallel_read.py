"""Reads over a long link: takes over the segments that parallel fetch delivers in offset order."""

from __future__ import annotations

import math
from collections.abc import Callable

from mirror_pipeline.engine.tasks.longlink.read_ahead import ReadAhead
from mirror_pipeline.engine.tasks.longlink.segments import Segment
from mirror_pipeline.engine.tasks.read.answer_handler import AnswerHandler
from mirror_pipeline.engine.tasks.read.range_outcomes import RangeOutcomes
from mirror_pipeline.errors import ConnectionLost, MirrorError
from mirror_pipeline.halts import internal
from mirror_pipeline.model import ESTIMATE_SLACK


def read_parallel(
    read_ahead: ReadAhead, handler: AnswerHandler, outcomes: RangeOutcomes, *,
    count: int, ahead: bool, pause: Callable[[int], None], patience: Callable[[int], float], deadline: float,
) -> None:  # fmt: skip
    """Read all open ranges over many connections.

    Args:
        read_ahead: delivers their segments.
        handler: takes answers and errors.
        outcomes: which ranges can still be read.
        count: connections to each broker.
        ahead: read on after the ranges, for the next task.
        pause: called with the number of bytes received; may wait.
        patience: seconds after which a broker counts as silent.
        deadline: monotonic seconds; the first segment is waited for beyond it, so that a slow link makes progress.
    """
    ranges = [outcomes.ranges[source].builder.rules.range for source in outcomes.open()]
    for state in outcomes.ranges.values():
        state.builder.most_bytes = math.inf  # a segment is taken over whole: the rest of it would be read again
    until = None
    read_ahead.share(ranges, count=count, ahead=ahead, pause=pause)
    while (segment := read_ahead.next(until, patience=patience)) is not None:
        take_segment(segment, handler, outcomes)
        read_ahead.taken(segment)
        builder = outcomes.ranges[segment.source].builder
        if builder.bytes_read >= ESTIMATE_SLACK * builder.rules.range.max_bytes:
            read_ahead.enough(segment.source, builder.next)
        until = deadline
    for source in read_ahead.unheld:
        outcomes.ranges[source].error = f"no cluster gives {source} now"
    for node in read_ahead.silent:
        sources = [source for source in outcomes.open() if read_ahead.leader(source) == node]
        handler.lost(node, sources, ConnectionLost(f"broker {node} does not respond", timed_out=True))


def take_segment(segment: Segment, handler: AnswerHandler, outcomes: RangeOutcomes) -> None:
    """Take over a segment, or record why nothing came of it."""
    source, state = segment.source, outcomes.ranges[segment.source]
    builder = state.builder
    if segment.fault is not None:
        state.halt = state.halt or internal(source, segment.fault)
    if segment.error is not None and not isinstance(segment.error, MirrorError):
        raise segment.error
    if segment.error is not None:
        state.error = state.error or str(segment.error)
    if not segment.answers or state.error or state.halt or builder.next < segment.start:
        return  # an earlier segment is missing: the next micro-batch reads on from there
    of_source, size = (builder.mark, builder.first_epoch, state.end), builder.bytes_read
    for place, answer in enumerate(segment.answers):
        handler.take(source, answer, -1 if place else segment.start)
    if segment.alias:  # a copy has leaders, checksums and an end of its own
        builder.mark, builder.first_epoch, state.end = of_source
        outcomes.copied[segment.alias] = outcomes.copied.get(segment.alias, 0) + builder.bytes_read - size
    segment.answers = []
    handler.flush_when_full()

"""Topics that were deleted on the source and whose copy is kept: what was never read of them is recorded as a gap."""

from __future__ import annotations

import time

from mirror_pipeline.engine.context import LaneContext
from mirror_pipeline.halts import ENDED
from mirror_pipeline.model import Gap, HoleCause

DECIDED_BY = "topics.on_source_delete: keep"


def record_unread(context: LaneContext) -> None:
    """Record, at the end of a run, the offsets that the source last had and that were never read, where all that was read is delivered.

    Repeating it changes nothing. What the source had is known from this run, else from the last one. Raises BufferUnusable.
    """
    with context.state.lock:
        over = [run for run in context.state.topics.values() if run.halted is not None and run.halted.code == ENDED and not run.left_out]
        over = [run for run in over if not any(part.pending for part in run.partitions.values())]
    for run in over:
        for number, part in sorted(run.partitions.items()):
            at, end = part.position.source_next, part.seen_end
            if end > at:
                now = int(time.time() * 1000)
                gap = Gap(context.mirror.name, run.topic, number, run.incarnation, at, end, HoleCause.RETENTION, DECIDED_BY, now)
                context.ledger.add_gap(gap)

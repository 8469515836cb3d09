"""Where a run takes up a topic again, and what it writes down of what it did."""

from __future__ import annotations

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.driver.write.ledger_writer import LOSS_CAUSES, LedgerWriter
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import HoleCause
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context, send, stage

__all__ = ["context"]


def test_a_topic_goes_on_behind_its_ledger_and_its_buffer(context: LaneContext) -> None:
    stage(context, 0, 10, 20, "now")
    stage(context, 1, 20, 30, "now")
    context.ledger.record(0, [send(10, 20)])
    part = resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})["t"].partitions[0]
    at = part.writing.position
    assert (at.source_next, at.ordinal, part.staged, part.writing.outcome_unknown) == (20, 10, 30, True)
    assert [(span.start, span.end) for span in part.pending] == [(20, 30)]


def test_spans_of_another_life_of_the_topic_are_not_sent(context: LaneContext) -> None:
    stage(context, 0, 10, 20, "before")
    part = resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})["t"].partitions[0]
    assert (list(part.pending), part.staged) == ([], 10)


@pytest.mark.parametrize("cause", list(HoleCause))
def test_every_loss_gets_a_gap_and_nothing_else_does(context: LaneContext, cause: HoleCause) -> None:
    book = LedgerWriter(context)
    book.add([send(10, 12, cause)])
    assert book.write()
    assert [(gap.start, gap.end, gap.cause) for gap in context.ledger.gaps()] == ([(10, 12, cause)] if cause in LOSS_CAUSES else [])
    assert [s.cause for s in context.ledger.sends()] == [cause]


def test_causes_are_losses_or_known_not_to_be() -> None:
    assert set(HoleCause) - set(LOSS_CAUSES) == {HoleCause.MARKER, HoleCause.ABORTED, HoleCause.COMPACTION, HoleCause.NO_RECORD}


def test_of_two_runs_that_write_one_number_the_second_ends(context: LaneContext) -> None:
    first, second = LedgerWriter(context), LedgerWriter(context)
    for book in (first, second):
        book.add([send(10, 12)])
    assert first.write()
    with pytest.raises(BufferUnusable, match="already written by another run"):
        second.write()

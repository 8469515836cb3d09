"""Where a run takes up a topic again, and what it writes down of what it did."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import BufferConfig, ClusterSettings, MirrorConfig, TopicSelection
from mirror_pipeline.engine.context import LaneContext
from mirror_pipeline.engine.topics.join import resumed_runs
from mirror_pipeline.engine.write.ledger_writer import LOSSES, Book
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.execution.placement import Runners
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.model import HoleCause, Incarnation, Send
from mirror_pipeline.topics.lanes import LaneTopic

LIFE = Incarnation("t", "now", "east-id", "west-id", "east.t", "target-id", {0: 10}, {0: 0}, 1)


@pytest.fixture
def context(tmp_path: Path) -> LaneContext:
    buffer = BufferConfig(str(tmp_path / "buffer"), durable=False)
    store = open_lane(buffer, "m", "lane-0")
    made = LaneContext(
        mirror=MirrorConfig("m", "east", "west", TopicSelection(("t",))),
        lane="lane-0",
        source=ClusterSettings("east", ("a:1",)),
        target=ClusterSettings("west", ("b:1",)),
        buffer=buffer,
        store=store,
        spans=SpanTable(store, durable=False),
        ledger=Ledger(store, durable=False),
        cases=Decisions(store, durable=False),
        runners=Runners.only(InlineRunner()),
        once=True,
        stop=threading.Event(),
    )
    made.spans.ensure()
    made.ledger.ensure()
    made.ledger.add_incarnation(LIFE)
    return made


def stage(context: LaneContext, micro_batch: int, start: int, end: int, incarnation: str) -> None:
    writer = PartFileWriter(context.store, micro_batch, 0, durable=False)
    writer.add(SpanDraft("t", 0, incarnation, start, end, end - start, 1, 0, 0), b"payload")
    part = writer.close()
    assert part is not None
    assert context.spans.commit(micro_batch, [part])


def send(start: int, end: int, cause: HoleCause | None = None) -> Send:
    records = 0 if cause else end - start
    return Send("t", 0, "now", start, end, "east.t", start - 10, start - 10 + records, records, start - 10, 0, cause)


def test_a_topic_goes_on_behind_its_ledger_and_its_buffer(context: LaneContext) -> None:
    stage(context, 0, 10, 20, "now")
    stage(context, 1, 20, 30, "now")
    context.ledger.record(0, [send(10, 20)])
    part = resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})["t"].partitions[0]
    assert (part.position.source_next, part.position.ordinal, part.staged, part.uncertain) == (20, 10, 30, True)
    assert [(span.start, span.end) for span in part.pending] == [(20, 30)]


def test_spans_of_another_life_of_the_topic_are_not_sent(context: LaneContext) -> None:
    stage(context, 0, 10, 20, "before")
    part = resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})["t"].partitions[0]
    assert (list(part.pending), part.staged) == ([], 10)


@pytest.mark.parametrize("cause", list(HoleCause))
def test_every_loss_gets_a_gap_and_nothing_else_does(context: LaneContext, cause: HoleCause) -> None:
    book = Book(context)
    book.add([send(10, 12, cause)])
    assert book.write()
    assert [(gap.start, gap.end, gap.cause) for gap in context.ledger.gaps()] == ([(10, 12, cause)] if cause in LOSSES else [])
    assert [s.cause for s in context.ledger.sends()] == [cause]


def test_causes_are_losses_or_known_not_to_be() -> None:
    assert set(HoleCause) - set(LOSSES) == {HoleCause.MARKER, HoleCause.ABORTED, HoleCause.COMPACTION}


def test_of_two_runs_that_write_one_number_the_second_ends(context: LaneContext) -> None:
    first, second = Book(context), Book(context)
    for book in (first, second):
        book.add([send(10, 12)])
    assert first.write()
    with pytest.raises(BufferUnusable, match="already written by another run"):
        second.write()

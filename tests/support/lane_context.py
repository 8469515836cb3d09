"""The context of a lane on a temporary buffer."""

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
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.permits import Permits
from mirror_pipeline.execution.placement import Placement
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.model import HoleCause, Incarnation, Send

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
        permits=Permits(Decisions(store, durable=False)),
        placement=Placement.only(InlineRunner()),
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

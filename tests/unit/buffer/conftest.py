"""A lane on a temporary folder, and short ways to fill it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.model import PartFile
from tests.support.buffer_samples import Settings

Stage = Callable[..., PartFile]


@pytest.fixture
def store(tmp_path: Path) -> LaneStore:
    return open_lane(Settings(str(tmp_path / "buffer")), "east-to-west", "lane-0")


@pytest.fixture
def spans(store: LaneStore) -> SpanTable:
    table = SpanTable(store, durable=False)
    table.ensure()
    return table


@pytest.fixture
def ledger(store: LaneStore) -> Ledger:
    book = Ledger(store, durable=False)
    book.ensure()
    return book


@pytest.fixture
def stage(store: LaneStore) -> Stage:
    def write(micro_batch: int, drafts: Sequence[SpanDraft], task: int = 0, payload: bytes = b"payload") -> PartFile:
        writer = PartFileWriter(store, micro_batch, task, durable=False)
        for each in drafts:
            writer.add(each, payload)
        part = writer.close()
        assert part is not None
        return part

    return write

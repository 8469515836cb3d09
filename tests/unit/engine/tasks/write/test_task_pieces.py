"""Spans that arrive in stretches are sent as the same batches, with the same sequence numbers, as spans that arrive at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.engine.tasks.write.task import whole_batches
from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.header import HEADER_BYTES
from mirror_pipeline.kafka.records.records import OpenRecord, seal
from mirror_pipeline.kafka.records.restamp import assign_sequences
from mirror_pipeline.model import SpanRef, Stamp

STAMP = Stamp(7, 0)


def payload(sizes: list[int]) -> tuple[bytes, int]:
    """Batches of one record of each of these sizes, and of two where the size is odd."""
    out, offset = b"", 0
    for size in sizes:
        records = [OpenRecord(offset + n, 1_000, b"v" * size) for n in range(1 + size % 2)]
        out += seal(records, codec=0)
        offset += len(records)
    return out, offset


def span(data: bytes, records: int) -> SpanRef:
    return SpanRef("t", 0, "life", 0, 0, records, records, 1, len(data), 0, 0, (), "part", 0)


def cut(data: bytes, most: int) -> Iterator[memoryview]:
    for start in range(0, len(data), most):
        yield memoryview(data[start : start + most])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 400))
def test_every_cut_gives_the_same_batches(sizes: list[int], most: int) -> None:
    data, records = payload(sizes)
    whole = list(assign_sequences(memoryview(data), STAMP, 5))
    sequence, found, counted = 5, [], 0
    for piece, there in whole_batches(cut(data, most), span(data, records)):
        found += list(assign_sequences(piece, STAMP, sequence))
        sequence, counted = sequence + there, counted + there
    assert found == whole
    assert counted == records


def test_a_span_that_comes_at_once_is_not_copied() -> None:
    data, records = payload([10, 20])
    view = memoryview(data)
    ((piece, there),) = whole_batches(iter([view]), span(data, records))
    assert piece is view
    assert there == records


@pytest.mark.parametrize("damage", ["short", "length"])
def test_what_cannot_be_cut_is_left_for_the_stamp_to_refuse(damage: str) -> None:
    data, records = payload([10, 20, 30])
    broken = data[:-3] if damage == "short" else data[:8] + b"\xff\xff\xff\xff" + data[12:]
    pieces = list(whole_batches(cut(broken, HEADER_BYTES), span(data, records)))
    with pytest.raises(CorruptBatch):
        for piece, _ in pieces:
            list(assign_sequences(piece, STAMP, 0))

"""Parquet footers, read and written again."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.buffer.spans.parquet_footer import MOST_PIECES, WRITE_BYTES, fields_of, struct_of, write_all


def footer_of(table: pa.Table, *, row_group: int, keep_schema: bool) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=row_group, store_schema=keep_schema, write_page_index=keep_schema)
    data = file.getvalue()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(), st.lists(st.booleans())), min_size=1), st.integers(1, 5), st.booleans()
)  # fmt: skip
def test_a_footer_read_and_written_is_the_same(rows: list[tuple[int, str, list[bool]]], row_group: int, keep_schema: bool) -> None:
    numbers, texts, flags = zip(*rows, strict=True)
    columns = {f"number {n}": pa.array(numbers, pa.int64()) for n in range(20)}
    table = pa.table({**columns, "text": list(texts), "flags": pa.array(flags, pa.list_(pa.bool_())), "half": [0.5] * len(rows)})
    footer = footer_of(table, row_group=row_group, keep_schema=keep_schema)
    assert struct_of(fields_of(footer)) == footer


@pytest.mark.parametrize("cut", [1, 100])
def test_what_is_no_footer_is_refused(cut: int) -> None:
    footer = footer_of(pa.table({"a": [1]}), row_group=1, keep_schema=False)
    with pytest.raises((ValueError, IndexError)):
        fields_of(footer[:-cut])
    with pytest.raises(ValueError, match="after a struct"):
        fields_of(footer + b"x")


def test_many_pieces_are_written_in_order_however_the_system_cuts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [os.urandom(n % 7) for n in range(3 * MOST_PIECES)]
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda handle, views: real(handle, [b"".join(views)[:1000]]))
    with open(tmp_path / "file", "wb", buffering=0) as file:
        write_all(file.fileno(), pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_large_pieces_are_written_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [os.urandom(size) for size in (3 * WRITE_BYTES + 1, 10, WRITE_BYTES - 1, WRITE_BYTES, 0, 5)]
    real, sizes = os.writev, []

    def writev(handle: int, views: list[memoryview]) -> int:
        sizes.append(sum(map(len, views)))
        return real(handle, views)

    monkeypatch.setattr(os, "writev", writev)
    with open(tmp_path / "file", "wb", buffering=0) as file:
        write_all(file.fileno(), pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert max(sizes) == WRITE_BYTES
    assert sizes[:-1] == [WRITE_BYTES] * (len(sizes) - 1), "no call is wasted on less"

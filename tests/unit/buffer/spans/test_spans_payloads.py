from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans import part_writer
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.errors import BufferUnusable, UsageError
from mirror_pipeline.model import PartFile
from tests.support.buffer_samples import draft

Stage = Callable[..., PartFile]


payloads = st.binary(max_size=300) | st.lists(st.binary(max_size=50), max_size=5)


@settings(deadline=None, max_examples=25)
@given(st.lists(payloads, min_size=1, max_size=6), st.sampled_from([1, 100, 2**30]))
def test_payloads_come_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes | list[bytes]], together_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_writer, "TOGETHER_BYTES", together_bytes)
        _write_and_read(tmp_path_factory, rows)


def _write_and_read(tmp_path_factory: pytest.TempPathFactory, rows: list[bytes | list[bytes]]) -> None:
    store = LaneStore(str(tmp_path_factory.mktemp("lane")))
    Path(store.table("spans")).mkdir()
    writer = PartFileWriter(store, 3, 1, durable=False)
    for index, row in enumerate(rows):
        writer.add(draft(index, index + 1), row if isinstance(row, bytes) else [memoryview(piece) for piece in row])
    part = writer.close()
    assert part is not None
    assert part.size == Path(store.table("spans"), part.path).stat().st_size
    wanted = [row if isinstance(row, bytes) else b"".join(row) for row in rows]
    with SpanReader(store) as reader:
        assert [bytes(reader.payload(ref)) for ref in part.spans] == wanted
    assert [ref.bytes for ref in part.spans] == [len(row) for row in wanted]
    read = pq.read_table(Path(store.table("spans"), part.path), columns=["bytes", "payload"])  # any Parquet reader sees the same
    assert (read["payload"].to_pylist(), read["bytes"].to_pylist()) == (wanted, [len(row) for row in wanted])
    dataset = ds.dataset(str(Path(store.table("spans"), part.path))).to_table(columns=["start_offset", "payload"])
    assert dict(zip(dataset["start_offset"].to_pylist(), dataset["payload"].to_pylist(), strict=True)) == dict(enumerate(wanted))
    metadata = pq.read_metadata(Path(store.table("spans"), part.path))
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = [group.column(number) for number in range(group.num_columns)]
        assert group.total_byte_size == sum(column.total_uncompressed_size for column in columns)
        assert columns[-1].total_compressed_size >= len(wanted[index])


def test_a_file_has_one_plain_row_group_per_span(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    part = stage(0, [draft(0, 10), draft(10, 20)], payload=b"p" * 1000)
    metadata = pq.read_metadata(Path(store.table("spans"), part.path))
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [1, 1]
    payload = metadata.row_group(0).column(metadata.row_group(0).num_columns - 1)
    assert (payload.path_in_schema, payload.compression, payload.has_dictionary_page, payload.is_stats_set) == (
        "payload",
        "UNCOMPRESSED",
        False,
        False,
    )


def test_reading_does_not_copy(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    part = stage(0, [draft(0, 10)], payload=b"abc" * 100)
    reader = SpanReader(store)
    view = reader.payload(part.spans[0])
    assert isinstance(view.obj, mmap.mmap)
    reader.close()
    Path(store.table("spans"), part.path).unlink()
    assert bytes(view) == b"abc" * 100


def test_a_note_of_where_the_payload_lies_is_not_believed_blindly(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    part = stage(0, [draft(0, 10), draft(10, 20)], payload=b"p" * 500)
    first, second = part.spans
    with SpanReader(store) as reader:
        for wrong in (0, 3, first.at + 1, first.at + 500, 2**40):
            assert bytes(reader.payload(replace(second, at=wrong))) == b"p" * 500


def test_what_its_writer_noted_is_sent_without_reading_the_footer(
    store: LaneStore, spans: SpanTable, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = stage(0, [draft(0, 10), draft(10, 20)], payload=b"p" * 500)
    monkeypatch.setattr("mirror_pipeline.buffer.spans.span_reader.pq.ParquetFile", None)
    with SpanReader(store) as reader:
        assert [bytes(reader.payload(ref)) for ref in part.spans] == [b"p" * 500] * 2


def test_a_reader_keeps_few_files_open(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    parts = [stage(number, [draft(number, number + 1)], payload=b"%d" % number) for number in range(5)]
    with SpanReader(store, open_files=2) as reader:
        for part in (*parts, *parts):
            assert bytes(reader.payload(part.spans[0])) == b"%d" % part.micro_batch
        assert len(reader._open) == 2


def test_a_lost_or_damaged_file_is_named(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    part = stage(0, [draft(0, 10)], payload=b"p" * 500)
    path = Path(store.table("spans"), part.path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(BufferUnusable, match=part.path):
        SpanReader(store).payload(replace(part.spans[0], at=-1))
    assert bytes(SpanReader(store).payload(part.spans[0])) == b"p" * 500, "without the footer, its writer's note tells where it is"
    path.write_bytes(whole[: part.spans[0].at + 499])
    with pytest.raises(BufferUnusable, match=part.path):
        SpanReader(store).payload(part.spans[0])
    with pytest.raises(BufferUnusable, match=r"bytes, \d+ were written"):
        spans.commit(0, [part])
    path.unlink()
    with pytest.raises(BufferUnusable, match=part.path):
        SpanReader(store).payload(part.spans[0])
    assert spans.last_micro_batch() == -1


def test_nothing_added_is_no_file(store: LaneStore, spans: SpanTable) -> None:
    assert PartFileWriter(store, 0, 0).close() is None
    aborted = PartFileWriter(store, 0, 0)
    aborted.add(draft(0, 1), b"x")
    aborted.abort()
    assert not list(Path(store.table("spans")).glob("*.parquet"))
    assert spans.commit(0, []) is False


def test_a_payload_that_no_row_can_hold_is_refused(store: LaneStore, spans: SpanTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirror_pipeline.buffer.spans.part_writer.MAX_PAYLOAD", 10)
    writer = PartFileWriter(store, 0, 0)
    writer.add(draft(0, 1), b"x" * 10)
    with pytest.raises(UsageError, match="11 bytes"):
        writer.add(draft(1, 2), b"x" * 11)
    writer.abort()


def test_tasks_import_neither_pandas_nor_deltalake(store: LaneStore, spans: SpanTable) -> None:
    program = """
import sys
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.model import Hole, HoleCause
store = LaneStore(sys.argv[1])
writer = PartFileWriter(store, 0, 0)
writer.add(SpanDraft("t", 0, "i", 0, 9, 8, 1, 1, 2, (Hole(3, 4, HoleCause.MARKER),)), [b"ab", memoryview(b"c")])
print(bytes(SpanReader(store).payload(writer.close().spans[0])), sorted({"pandas", "deltalake"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program, store.uri], capture_output=True, text=True, check=True)
    assert done.stdout == "b'abc' []\n"


@pytest.mark.parametrize("durable", [True, False])
def test_a_commit_reaches_the_disk_after_what_it_names(store: LaneStore, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    table = SpanTable(store, durable=durable)
    table.ensure()
    synced: list[str] = []
    really = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}").partition("#")[0])  # an entry has its name only after the flush
        really(handle)

    monkeypatch.setattr(os, "fsync", noted)
    writer = PartFileWriter(store, 0, 0, durable=durable)
    writer.add(draft(0, 1), b"x")
    part = writer.close()
    assert part is not None
    assert table.commit(0, [part])
    folder = store.table("spans")
    log = f"{folder}/_delta_log"
    assert synced == ([f"{folder}/{part.path}", folder, f"{log}/{1:020d}.json", log] if durable else [])


def test_a_large_file_goes_to_the_disk_while_it_is_written(store: LaneStore, spans: SpanTable, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, may_end, really = threading.Event(), threading.Event(), os.fsync
    sizes: list[int] = []

    def slow(handle: int) -> None:
        sizes.append(os.fstat(handle).st_size)
        if threading.current_thread() is not threading.main_thread():
            beside.set()
            assert may_end.wait(30)
        really(handle)

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(part_writer, "FLUSHED_BYTES", 100_000)
    writer = PartFileWriter(store, 0, 0)
    for number in range(4):  # the first is on its way to the disk: the writer waits for it at the end alone
        writer.add(draft(number, number + 1), bytes(120_000))
    assert beside.wait(30)
    may_end.set()
    part = writer.close()
    assert part is not None and len(sizes) == 3 and 120_000 < sizes[0] < sizes[1] == part.size  # then the folder
    with SpanReader(store) as reader:
        assert [len(reader.payload(ref)) for ref in part.spans] == [120_000] * 4


@pytest.mark.parametrize("again", [True, False])
def test_a_failure_to_bring_a_file_to_the_disk_is_told_though_it_is_named_once(
    store: LaneStore, spans: SpanTable, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    failed = threading.Event()

    def once(handle: int) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", once)
    monkeypatch.setattr(part_writer, "FLUSHED_BYTES", 100_000)
    writer = PartFileWriter(store, 0, 0)
    writer.add(draft(0, 1), bytes(120_000))
    assert failed.wait(30)
    with pytest.raises(BufferUnusable, match="Input/output error"):
        while again:
            writer.add(draft(1, 2), bytes(120_000))
        writer.close()
    writer.abort()
    assert not os.path.exists(writer.path)


def test_a_file_that_somebody_removed_while_it_was_written_is_no_part(store: LaneStore, spans: SpanTable) -> None:
    writer = PartFileWriter(store, 0, 0, durable=False)
    writer.add(draft(0, 1), b"x")
    Path(writer.path).unlink()
    with pytest.raises(BufferUnusable, match="vanished"):
        writer.close()


def resident(path: Path) -> float:
    """The share of a file's pages that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
        pages = (len(view) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        flags, first = (ctypes.c_ubyte * pages)(), ctypes.c_char.from_buffer(view)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(view)), flags) == 0
        del first
    return sum(flag & 1 for flag in flags) / pages


def drops_pages(folder: Path) -> bool:
    """Whether the file system does what fadvise asks for; one in memory cannot."""
    path = folder / "probe"
    with open(path, "wb") as handle:
        handle.write(b"x" * (1 << 20))
        handle.flush()
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return resident(path) < 0.1


def test_what_was_sent_leaves_the_page_cache_and_nothing_else_does(store: LaneStore, spans: SpanTable) -> None:
    if not hasattr(os, "posix_fadvise") or not drops_pages(Path(store.uri)):
        pytest.skip("this file system keeps pages whatever fadvise says")
    spans.ensure()
    writer = PartFileWriter(store, 0, 0)
    for first in (0, 10):
        writer.add(draft(first, first + 10), os.urandom(4 << 20))
    part = writer.close()
    assert part is not None
    path = Path(store.table("spans"), part.path)
    reader = SpanReader(store)
    one, other = (reader.payload(ref) for ref in part.spans)
    before = bytes(one), bytes(other)
    assert resident(path) == 1
    reader.release(part.spans[:1])
    assert 0.4 < resident(path) < 0.6, "also while the file is mapped"
    assert (bytes(one), bytes(other)) == before, "a view stays valid"

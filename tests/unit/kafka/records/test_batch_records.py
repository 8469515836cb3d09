"""open, seal, split and decode: each pair gives back what went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records import compression
from mirror_pipeline.kafka.records.batch import (
    ControlType,
    OpenRecord,
    Record,
    RecordTooLarge,
    check,
    content,
    control_type,
    decode,
    headers,
    open_batch,
    seal,
    seal_runs,
    tail_of,
)
from mirror_pipeline.kafka.records.varint import read_varint, read_varlong, varint
from tests.support.batch_samples import CODECS, changed, contents, opened

codecs = st.sampled_from(CODECS)
gap_lists = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=3))
def test_varint_round_trip(value: int, behind: bytes) -> None:
    encoded = varint(value)
    assert len(encoded) <= 5
    assert read_varint(encoded + behind, 0) == read_varlong(encoded + behind, 0) == (value, len(encoded))


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=3))
def test_varlong_round_trip(value: int, behind: bytes) -> None:
    encoded = varint(value)
    assert len(encoded) <= 10
    assert read_varlong(encoded + behind, 0) == (value, len(encoded))


def test_varints_that_do_not_end() -> None:
    for read, size in ((read_varint, 5), (read_varlong, 10)):
        with pytest.raises(CorruptBatch, match="does not end"):
            read(b"\xff" * (size + 1), 0)


@given(codecs, st.binary(max_size=200), st.integers(1, 3000))
def test_codec_round_trip(codec: int, data: bytes, times: int) -> None:
    packed = compression.compress(codec, data * times)
    assert compression.decompress(codec, packed) == data * times
    assert compression.compress(codec, data * times) == packed, "the same input must give the same bytes"


@given(contents(), codecs, st.integers(0, 1 << 50), st.integers(0, 255))
def test_seal_and_open(rows: list[tuple], codec: int, base: int, attributes: int) -> None:
    records = opened(rows, base, attributes=attributes)
    batch = seal(records, codec=codec)
    ((position, header),) = headers(batch)
    check(batch, position, header)
    assert open_batch(memoryview(batch)) == records
    assert (header.base_offset, header.last_offset, header.codec) == (base, base + len(rows) - 1, codec)
    assert header.attributes == codec, "sealed batches are CreateTime, not transactional"
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.leader_epoch) == (-1, -1, -1, -1)
    assert (header.base_timestamp, header.max_timestamp) == (rows[0][0], max(row[0] for row in rows))
    assert decode(batch) == [Record(base + index, *row) for index, row in enumerate(rows)]


@given(contents(), st.integers(0, 1 << 50))
def test_tail_and_content(rows: list[tuple], offset: int) -> None:
    for timestamp, key, value, pairs in rows:
        record = OpenRecord(offset, timestamp, tail_of(key, value, pairs))
        assert content(record) == Record(offset, timestamp, key, value, pairs)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5))
def test_any_pair_of_times_survives(times: list[int]) -> None:
    records = opened([(time, None, b"v", ()) for time in times])
    assert [record.timestamp for record in open_batch(seal(records, codec=0))] == times


@given(contents(), codecs, gap_lists, st.integers(0, 1000), st.integers(0, 1000))
def test_seal_is_dense_from_base_offset(rows: list[tuple], codec: int, gaps: list[int], base: int, start: int) -> None:
    batch = seal(opened(rows, base, gaps), codec=codec, base_offset=start)
    assert [record.offset for record in open_batch(batch)] == list(range(start, start + len(rows)))


def test_log_append_time_becomes_the_records_time() -> None:
    batch = changed(seal(opened([(5, b"a", b"b", ()), (9, b"c", b"d", ())]), codec=1), attributes=0x09, max_timestamp=777)
    assert [record.timestamp for record in open_batch(batch)] == [777, 777]
    again = seal(open_batch(batch), codec=1)
    assert [(header.attributes, header.base_timestamp, header.max_timestamp) for _, header in headers(again)] == [(1, 777, 777)]


def test_batch_emptied_by_compaction_opens_to_nothing() -> None:
    whole = seal(opened([(5, b"a", b"b", ())]), codec=0)
    emptied = changed(whole[:8] + (49).to_bytes(4, "big") + whole[12:61], records=0, base_timestamp=-1)
    assert open_batch(emptied) == decode(emptied) == []


@given(contents(max_size=30), codecs, gap_lists, st.integers(600, 2000))
def test_seal_runs_keeps_offsets_and_fits(rows: list[tuple], codec: int, gaps: list[int], max_bytes: int) -> None:
    records = opened(rows, 100, gaps)
    batches = seal_runs(records, codec=codec, max_bytes=max_bytes)
    assert [record for batch in batches for record in open_batch(batch)] == records
    for batch in batches:
        assert len(batch) <= max_bytes
        ((_, header),) = headers(batch)
        assert header.dense
    if max_bytes == 2000 and codec == 0 and not any(gaps) and sum(len(r.tail) + 21 for r in records) < 1900:
        assert len(batches) == 1


def test_seal_runs_fills_batches() -> None:
    records = opened([(1, None, b"x" * 100, ())] * 100)
    assert [len(open_batch(batch)) for batch in seal_runs(records, codec=0, max_bytes=61 + 127 * 50)] == [50, 50]
    assert len(seal_runs(records, codec=4, max_bytes=2000)) == 1, "compressed size counts, not the open one"
    assert seal_runs([], codec=0, max_bytes=100) == []


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_fits_no_batch(codec: int) -> None:
    noise = bytes((index * index * 7919 >> 3) & 0xFF ^ index * 31 & 0xFF for index in range(4000))
    records = opened([(1, None, b"small", ()), (1, None, noise, ()), (1, None, b"small", ())], base=40)
    with pytest.raises(RecordTooLarge) as caught:
        seal_runs(records, codec=codec, max_bytes=300)
    assert (caught.value.offset, caught.value.limit) == (41, 300)
    assert caught.value.size == len(seal(records[1:2], codec=codec))



def _with_holes(records: list[OpenRecord], codec: int) -> bytes:
    """A batch with holes as log compaction leaves them, by hand: offsets count from 50."""
    body = b""
    for record in records:
        rest = b"\x00" + varint(record.timestamp - records[0].timestamp) + varint(record.offset - 50) + record.tail
        body += varint(len(rest)) + rest
    start = seal(records[:1], codec=codec, base_offset=50)[:61]
    packed = compression.compress(codec, body)
    batch = start[:8] + (49 + len(packed)).to_bytes(4, "big") + start[12:] + packed
    latest = max(record.timestamp for record in records)
    return changed(batch, records=len(records), last_offset_delta=records[-1].offset - 50, max_timestamp=latest)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (b"\0\0\0\0", ControlType.ABORT),
        (b"\0\0\0\1", ControlType.COMMIT),
        (b"\0\0\0\2", ControlType.UNKNOWN),
        (b"\0\1\0\1tail of a later version", ControlType.COMMIT),
    ],
)
def test_control_types(key: bytes, kind: ControlType) -> None:
    batch = changed(seal(opened([(5, key, b"\0\0\0\0\0\7", ())]), codec=0), attributes=0x30)
    assert control_type(batch) is kind


def test_control_types_of_odd_batches() -> None:
    data = seal(opened([(5, b"\0\0\0\1", b"", ())]), codec=0)
    with pytest.raises(CorruptBatch, match="not a control batch"):
        control_type(data)
    for key in (None, b"\0\0", b"\xff\xff\0\1"):
        with pytest.raises(CorruptBatch, match="control record"):
            control_type(changed(seal(opened([(5, key, b"", ())]), codec=0), attributes=0x20))
    emptied = changed(data[:8] + (49).to_bytes(4, "big") + data[12:61], records=0, attributes=0x30)
    assert control_type(emptied) is ControlType.UNKNOWN

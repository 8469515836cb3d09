"""Magic 0 and 1: single messages and compressed wrappers."""

from __future__ import annotations

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.batch import Record, decode, headers, open_batch, seal
from mirror_pipeline.kafka.records.compression import compress
from tests.support.batch_samples import message, with_right_crc

fields = st.none() | st.binary(max_size=60)
rows = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 1 << 42), fields, fields), min_size=1, max_size=8)
old_codecs = st.sampled_from([1, 2, 3])


def wrapper(inner: bytes, magic: int, codec: int, offset: int, *, timestamp: int = -1, bits: int = 0) -> bytes:
    return message(offset, magic, None, compress(codec, inner), timestamp=timestamp, attributes=codec | bits)


def read_by_aiokafka(raw: bytes, magic: int) -> list[Record]:
    """Its None for "no timestamp" is our -1."""
    batch = LegacyRecordBatch(bytearray(raw), magic)
    return [Record(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value, ()) for r in batch]


@given(st.integers(0, 1 << 50), st.sampled_from([0, 1]), st.integers(0, 1 << 42), fields, fields)
def test_single_message(offset: int, magic: int, timestamp: int, key: bytes | None, value: bytes | None) -> None:
    raw = message(offset, magic, key, value, timestamp=timestamp)
    ((_, header),) = headers(raw)
    assert (header.base_offset, header.next_offset, header.size, header.records) == (offset, offset + 1, len(raw), 1)
    expected = [Record(offset, timestamp if magic else -1, key, value, ())]
    assert decode(raw) == expected
    assert decode(seal(open_batch(raw), codec=0)) == expected


@given(rows, old_codecs, st.booleans(), st.integers(0, 1 << 50))
def test_wrapper_of_magic_1_has_relative_offsets(rows: list[tuple], codec: int, append_time: bool, base: int) -> None:
    inner, relative, expected = b"", -1, []
    for gap, timestamp, key, value in rows:
        relative += 1 + gap  # compaction leaves holes inside wrappers, too
        inner += message(relative, 1, key, value, timestamp=timestamp)
        expected.append(Record(base + relative, 777 if append_time else timestamp, key, value, ()))
    raw = wrapper(inner, 1, codec, base + relative, timestamp=777, bits=0x08 if append_time else 0)
    ((_, header),) = headers(raw)
    assert (header.last_offset, header.records, header.log_append_time) == (base + relative, -1, append_time)
    assert decode(raw) == expected
    if base:
        assert read_by_aiokafka(raw, 1) == expected
    assert decode(seal(open_batch(raw)[:1], codec=codec)) == expected[:1]


@given(rows, st.sampled_from([1, 2]), st.integers(0, 1 << 50))
def test_wrapper_of_magic_0_has_absolute_offsets_and_no_time(rows: list[tuple], codec: int, base: int) -> None:
    inner, offset, expected = b"", base - 1, []
    for gap, _, key, value in rows:
        offset += 1 + gap
        inner += message(offset, 0, key, value)
        expected.append(Record(offset, -1, key, value, ()))
    raw = wrapper(inner, 0, codec, offset)
    assert decode(raw) == expected
    assert read_by_aiokafka(raw, 0) == expected


def test_no_timestamp_survives_in_v2() -> None:
    inner = message(3, 0, b"a", None) + message(4, 0, None, b"")
    batch = seal(open_batch(wrapper(inner, 0, 1, 4)), codec=1)
    ((_, header),) = headers(batch)
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    assert decode(batch) == [Record(3, -1, b"a", None, ()), Record(4, -1, None, b"", ())]
    mixed = open_batch(batch) + open_batch(message(5, 1, b"k", b"v", timestamp=1_700_000_000_000))
    assert [record.timestamp for record in open_batch(seal(mixed, codec=0))] == [-1, -1, 1_700_000_000_000]


def test_wrapper_offset_zero_counts_from_zero() -> None:
    inner = message(0, 1, None, b"a", timestamp=1) + message(1, 1, None, b"b", timestamp=2)
    assert [record.offset for record in decode(wrapper(inner, 1, 1, 0))] == [0, 1]


GOOD = message(0, 1, None, b"value", timestamp=1)


@pytest.mark.parametrize(
    "inner",
    [
        b"",
        GOOD[:-1],
        GOOD[:20],
        GOOD + b"\0",
        GOOD[:-1] + b"X",
        message(0, 0, None, b"value"),
        message(0, 1, None, b"value", timestamp=1, attributes=1),
        GOOD + GOOD,
        message(50, 1, None, b"value", timestamp=1),
        with_right_crc(GOOD[:26] + (99).to_bytes(4, "big") + GOOD[30:]),
        with_right_crc(GOOD[:26] + (-2).to_bytes(4, "big", signed=True) + GOOD[30:]),
        with_right_crc(GOOD[:30] + (4).to_bytes(4, "big") + GOOD[34:]),
        GOOD[:8] + (-5).to_bytes(4, "big", signed=True) + GOOD[12:],
    ],
    ids=[
        "empty",
        "cut",
        "cut-header",
        "trailing",
        "checksum",
        "magic",
        "compressed-twice",
        "same-offset",
        "above-wrapper",
        "key-too-long",
        "key-negative",
        "value-too-short",
        "length-negative",
    ],
)
def test_malformed_wrappers(inner: bytes) -> None:
    with pytest.raises(CorruptBatch):
        open_batch(wrapper(inner, 1, 1, 7))


def test_wrapper_without_value_and_with_a_codec_it_cannot_have() -> None:
    with pytest.raises(CorruptBatch, match="no value"):
        open_batch(message(3, 1, None, None, attributes=1))
    with pytest.raises(CorruptBatch, match="zstd"):
        open_batch(wrapper(GOOD, 1, 4, 3))
    with pytest.raises(CorruptBatch, match="codec 7"):
        open_batch(message(3, 1, None, b"x", attributes=7))

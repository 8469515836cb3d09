"""headers, check and restamp."""

from __future__ import annotations

import pickle

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.batch import BatchHeader, RecordTooLarge, check, decode, headers, restamp, seal
from mirror_pipeline.model import Stamp
from tests.support.batch_samples import CODECS, changed, contents, message, opened

ONE = seal(opened([(1000, b"k", b"v" * 30, ((b"h", None),)), (900, None, b"", ())], base=70), codec=0)
STAMP = Stamp(producer_id=4711, producer_epoch=3)


def head(batch: bytes) -> BatchHeader:
    return next(iter(headers(batch)))[1]


def test_fields_are_read_where_kafka_writes_them() -> None:
    batch = changed(ONE, producer_id=99, attributes=0x58)
    header = head(batch)
    assert (header.base_offset, header.last_offset, header.next_offset, header.size) == (70, 71, 72, len(batch))
    assert (header.leader_epoch, header.magic, header.records, header.producer_id) == (-1, 2, 2, 99)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1000)
    assert header.is_transactional and header.log_append_time and header.dense and not header.is_control
    assert pickle.loads(pickle.dumps(header)) == header  # noqa: S301 - own bytes


@given(st.lists(st.sampled_from([ONE, message(5, 0, None, b"x"), message(6, 1, b"k", None, timestamp=8)]), max_size=6), st.data())
def test_walk_stops_in_front_of_an_incomplete_batch(batches: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(batches)
    cut = data.draw(st.integers(0, len(whole)))
    found, complete, position = list(headers(memoryview(whole)[:cut])), 0, 0
    for batch in batches:
        position += len(batch)
        complete += position <= cut
    assert [header.size for _, header in found] == [len(batch) for batch in batches[:complete]]
    for start, header in found:
        check(whole, start, header)


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 13, 48])
@pytest.mark.parametrize("behind", [b"", ONE])
def test_impossible_length_is_corrupt(length: int, behind: bytes) -> None:
    bad = ONE[:8] + length.to_bytes(4, "big", signed=True) + ONE[12:]
    with pytest.raises(CorruptBatch, match="has length"):
        list(headers(ONE + bad + behind))


def test_negative_length_is_corrupt_even_at_the_cut() -> None:
    with pytest.raises(CorruptBatch, match="has length"):
        list(headers(ONE[:8] + b"\xff\xff\xff\xff"))


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_magic_is_corrupt(magic: int) -> None:
    with pytest.raises(CorruptBatch, match="magic"):
        list(headers(ONE[:16] + bytes((magic,)) + ONE[17:]))


@given(st.integers(16, len(ONE) - 1), st.integers(0, 7))
def test_check_finds_every_single_flipped_bit(position: int, bit: int) -> None:
    bad = bytearray(ONE)
    bad[position] ^= 1 << bit
    with pytest.raises(CorruptBatch):
        for start, header in headers(bad):
            check(bad, start, header)


@given(st.integers(12, 40), st.integers(0, 7))
def test_check_finds_every_single_flipped_bit_of_old_messages(position: int, bit: int) -> None:
    bad = bytearray(message(5, 1, b"key", b"value", timestamp=8))
    bad[position] ^= 1 << bit
    with pytest.raises(CorruptBatch):
        for start, header in headers(bad):
            check(bad, start, header)


def test_holes_are_fine_and_surplus_records_are_not() -> None:
    holes = changed(ONE, last_offset_delta=9)
    check(holes, 0, head(holes))
    assert not head(holes).dense
    emptied = changed(ONE, records=0)
    check(emptied, 0, head(emptied))
    for fields in ({"records": 3}, {"records": -1}, {"last_offset_delta": -1, "records": 0}):
        bad = changed(ONE, **fields)
        with pytest.raises(CorruptBatch, match="announces"):
            check(bad, 0, head(bad))


def test_check_does_not_read_past_the_buffer() -> None:
    with pytest.raises(CorruptBatch, match="cut off"):
        check(ONE[:-1], 0, head(ONE))
    with pytest.raises(CorruptBatch, match="cut off"):
        check(ONE, 1, head(ONE))


@given(contents(), st.sampled_from(CODECS), st.sampled_from([0, 0x10, 0x40, 0x50, 0x08]), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_restamp_changes_the_stamp_and_nothing_else(rows: list[tuple], codec: int, bits: int, base: int, sequence: int) -> None:
    batch = changed(seal(opened(rows, base), codec=codec), attributes=codec | bits)
    header = head(batch)
    stamped = restamp(header, memoryview(batch), STAMP, sequence) + batch[61:]
    after = head(stamped)
    assert len(stamped) == len(batch)
    check(stamped, 0, after)
    assert after.crc == crc32c(stamped[21:])
    assert after == header._replace(
        base_offset=0,
        leader_epoch=-1,
        crc=after.crc,
        attributes=codec | bits & 0x08,
        producer_id=4711,
        producer_epoch=3,
        base_sequence=sequence % (1 << 31),
    )
    assert [record[1:] for record in decode(stamped)] == [record[1:] for record in decode(batch)]


@pytest.mark.parametrize(
    ("sequence", "written"), [(0, 0), ((1 << 31) - 1, 2147483647), (1 << 31, 0), ((1 << 31) + 1, 1), (5 * (1 << 31) + 7, 7)]
)
def test_sequence_wraps_as_kafka_does(sequence: int, written: int) -> None:
    assert head(restamp(head(ONE), memoryview(ONE), STAMP, sequence) + ONE[61:]).base_sequence == written


@pytest.mark.parametrize("fields", [{"attributes": 0x20}, {"attributes": 0x30}, {"last_offset_delta": 5}, {"records": 0}])
def test_what_a_broker_refuses_is_not_restamped(fields: dict[str, int]) -> None:
    batch = changed(ONE, **fields)
    with pytest.raises(CorruptBatch, match="cannot be produced"):
        restamp(head(batch), memoryview(batch), STAMP, 0)


def test_old_magic_is_not_restamped() -> None:
    old = message(5, 1, b"k", b"v", timestamp=8)
    with pytest.raises(CorruptBatch, match="magic 1"):
        restamp(head(old), memoryview(old), STAMP, 0)


def test_errors_cross_process_borders() -> None:
    error = pickle.loads(pickle.dumps(RecordTooLarge(7, 100, 50)))  # noqa: S301 - own bytes
    assert (type(error), error.offset, error.size, error.limit) == (RecordTooLarge, 7, 100, 50)

"""Whatever the bytes are: the same content, or CorruptBatch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records import compression
from mirror_pipeline.kafka.records.batch import OpenRecord, content, control_type, decode, headers, open_batch, seal
from mirror_pipeline.kafka.records.varint import varint
from tests.support.batch_samples import CODECS, changed, contents, message, opened, with_right_crc

LIMIT = 1 << 20
codecs = st.sampled_from(CODECS)
pairs = st.lists(st.tuples(st.none() | st.binary(max_size=30), st.binary(max_size=30)), min_size=1, max_size=4)
edits = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4)


@pytest.fixture(autouse=True, scope="module")
def low_limit() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "MAX_OPENED_BYTES", LIMIT)
        yield


def edited(batch: bytes, edits: list[tuple[int, int]], first: int = 0) -> bytes:
    out = bytearray(batch)
    for place, value in edits:
        out[first + place % (len(out) - first)] = value
    return bytes(out)


@given(contents(), codecs, edits)
def test_an_edited_batch_decodes_to_the_same_or_is_corrupt(rows: list[tuple], codec: int, edits: list[tuple[int, int]]) -> None:
    batch = seal(opened(rows, 9), codec=codec)
    mutant = edited(batch, edits)
    try:
        found = decode(mutant)
    except CorruptBatch:
        return
    # offset and leader epoch are the broker's to change: no checksum covers them
    base = int.from_bytes(mutant[:8], "big", signed=True)
    assert found == [record._replace(offset=record.offset - 9 + base) for record in decode(batch)]


@settings(max_examples=600)
@given(contents(), codecs, edits, st.booleans())
def test_malformed_inside_a_right_checksum(rows: list[tuple], codec: int, edits: list[tuple[int, int]], body_only: bool) -> None:
    mutant = with_right_crc(edited(seal(opened(rows, 9), codec=codec), edits, 61 if body_only else 17))
    use_everything(mutant)


@settings(max_examples=300)
@given(pairs, st.sampled_from([1, 2, 3]), edits)
def test_malformed_old_messages(rows: list[tuple], codec: int, edits: list[tuple[int, int]]) -> None:
    for magic in (0, 1):
        inner = b"".join(message(n, magic, key, value) for n, (key, value) in enumerate(rows))
        whole = message(9, magic, None, compression.compress(codec, inner), attributes=codec)
        for raw in (message(9, magic, *rows[0]), whole):
            use_everything(with_right_crc(edited(raw, edits, 17)))
        inner = with_right_crc(edited(inner[: 12 + int.from_bytes(inner[8:12], "big")], edits, 17))
        use_everything(message(9, magic, None, compression.compress(codec, inner), attributes=codec))


@given(st.binary(max_size=200))
@example(b"\x00" * 200)
@example(b"\xff" * 200)
def test_random_bytes(data: bytes) -> None:
    use_everything(data)
    for codec in range(8):
        try:
            compression.decompress(codec, data)
        except CorruptBatch:
            continue
    try:
        content(OpenRecord(0, 0, data))
    except CorruptBatch:
        return


def use_everything(data: bytes) -> None:
    """No call may end in anything but a result or CorruptBatch, and what was opened must seal to the same."""
    for call in (lambda: list(headers(data)), lambda: decode(data), lambda: control_type(data)):
        try:
            call()
        except CorruptBatch:
            continue
    try:
        records = open_batch(data)
    except CorruptBatch:
        return
    if records and [record.offset - records[0].offset for record in records] == list(range(len(records))):
        assert open_batch(seal(records, codec=0)) == records


def bomb(codec: int) -> bytes:
    """A small batch of the right checksum that opens to more than the limit."""
    body = compression.compress(codec, bytes(40 * LIMIT))
    start = seal(opened([(1, None, b"v", ())]), codec=codec)[:61]
    return with_right_crc(start[:8] + (49 + len(body)).to_bytes(4, "big") + start[12:] + body)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompression_bombs(codec: int) -> None:
    with pytest.raises(CorruptBatch, match="opens to more than"):
        open_batch(bomb(codec))


def test_lying_snappy_lengths() -> None:
    xerial = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2
    for data in (b"\xff\xff\x3f\0", xerial + b"\0\0\0\4\xff\xff\x3f\0", xerial + b"\xff\xff\xff\xff\0", xerial + b"\0\0"):
        with pytest.raises(CorruptBatch):
            compression.decompress(compression.SNAPPY, data)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_output_larger_than_the_first_guess(codec: int) -> None:
    data = bytes(LIMIT)
    assert compression.decompress(codec, compression.compress(codec, data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_of_the_records_is_corrupt(codec: int) -> None:
    batch = seal(opened([(1, b"k", b"v" * 9, ((b"h", None),)), (2, None, None, ())]), codec=codec)
    for size in range(61, len(batch)):
        with pytest.raises(CorruptBatch):
            open_batch(with_right_crc(batch[:8] + (size - 12).to_bytes(4, "big") + batch[12:size]))


def test_bytes_behind_the_batch_are_corrupt() -> None:
    batch = seal(opened([(1, b"k", b"v", ())]), codec=0)
    for data in (b"", batch + b"\0", batch + batch, batch[:-1]):
        with pytest.raises(CorruptBatch, match="exactly one"):
            open_batch(data)


@pytest.mark.parametrize("deltas", [(0, 1), (0, 0), (1, 0), (-1, 0), (0, 2)])
def test_offsets_must_rise_inside_the_batch(deltas: tuple[int, int]) -> None:
    body = b"".join(varint(6) + b"\0\0" + varint(delta) + varint(-1) + varint(-1) + b"\0" for delta in deltas)
    start = seal(opened([(1, None, None, ())]), codec=0)[:61]
    batch = start[:8] + (49 + len(body)).to_bytes(4, "big") + start[12:] + body
    if deltas == (0, 1):
        assert [record.offset for record in open_batch(changed(batch, records=2, last_offset_delta=1))] == [0, 1]
        return
    with pytest.raises(CorruptBatch, match="offset delta"):
        open_batch(changed(batch, records=2, last_offset_delta=1))

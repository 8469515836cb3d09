"""Merged batches hold the same records at the same offsets and times."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records import merge as merge_module
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, Buffer, OpenRecord, check, headers, open_batch, seal, tail_of
from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS
from mirror_pipeline.kafka.records.header import CHECKED_FIELDS, HEAD, LOG_APPEND_TIME
from mirror_pipeline.kafka.records.merge import MERGED_BATCH_BYTES, MERGED_RECORDS, merge, worth_merging
from mirror_pipeline.kafka.records.merge_native import join

TIMES = st.one_of(st.integers(-1, 2**42), st.sampled_from([-1, 0, 2**62, 2**63 - 1]))
TAILS = st.builds(tail_of, st.one_of(st.none(), st.binary(max_size=20)), st.one_of(st.none(), st.binary(max_size=200)))


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[OpenRecord], bytes]:
    """Records and the tiny batches they lie in."""
    start = draw(st.integers(0, 2**50))
    records, data = [], b""
    for _ in range(draw(st.integers(1, 12))):
        batch = [OpenRecord(start + n, draw(TIMES), draw(TAILS), draw(st.integers(0, 3))) for n in range(draw(st.integers(1, 4)))]
        start += len(batch)
        data += seal(batch, codec=draw(st.sampled_from([0, 0, 0, 1, 3, 4])))
        records += batch
    return records, data


@pytest.fixture(params=["loop", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(merge_module, "MANY_RECORDS", 0 if request.param == "compiled" else 1 << 30)
    return str(request.param)


def opened(batches: Sequence[Buffer]) -> list[OpenRecord]:
    return [record for batch in batches for record in open_batch(batch)]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs(), st.integers(600, 100_000))
def test_records_offsets_and_times_stay(way: str, run: tuple[list[OpenRecord], bytes], limit: int) -> None:
    records, data = run
    limit = max(limit, max(header.size for _, header in headers(data)))
    merged = merge(memoryview(data), records=len(records), max_bytes=limit)
    assert opened(merged) == records
    for batch in merged:
        (_, header), = headers(batch)
        check(batch, 0, header)
        mine = open_batch(batch)
        assert header.max_timestamp == max(record.timestamp for record in mine)
        assert header.base_timestamp == mine[0].timestamp
        assert header.dense
        assert header.producer_id == -1
        assert len(batch) <= limit


@pytest.mark.parametrize("many", [1, 16])
def test_hundreds_become_few_within_the_limits(way: str, many: int) -> None:
    records = [OpenRecord(n, 1000 + n, tail_of(b"k", b"v" * 90)) for n in range(20_000)]
    data = b"".join(seal(records[n : n + many], codec=0) for n in range(0, len(records), many))
    merged = merge(memoryview(data), records=len(records), max_bytes=1_000_000)
    assert len(merged) < 20
    assert all(len(batch) <= MERGED_BATCH_BYTES for batch in merged)
    assert all(header.records <= MERGED_RECORDS for batch in merged for _, header in headers(batch))
    assert opened(merged) == records


def test_no_batch_becomes_larger_than_the_target_takes(way: str) -> None:
    """Deltas get longer: the batches' own are all 0, those to the first batch of the run take five bytes."""
    records = [OpenRecord(n, n // 24 * 10**9, tail_of(b"k", b"v" * 20)) for n in range(192)]
    data = memoryview(b"".join(seal(records[n : n + 24], codec=0) for n in range(0, 192, 24)))
    least = max(header.size for _, header in headers(data))
    for limit in range(least, 8 * least, 7):
        merged = merge(data, records=len(records), max_bytes=limit)
        assert max(map(len, merged)) <= limit
        assert opened(merged) == records


@pytest.mark.parametrize("codec", [0, 3])
def test_a_batch_that_finds_no_neighbour_stays_as_it_is(way: str, codec: int) -> None:
    data = b"".join(seal([OpenRecord(n, 9, tail_of(None, b"x" * 500))], codec=codec) for n in (LEAF_OFFSETS - 1, LEAF_OFFSETS))
    assert b"".join(map(bytes, merge(memoryview(data), records=2, max_bytes=10_000))) == data


@pytest.mark.parametrize("size", [10, 60, 62, 63, 64, 3000, 8180, 8190, 9000, 70_000, 2_200_000])
def test_lengths_of_every_size(way: str, size: int) -> None:
    """A length takes one byte up to 63, two up to 8191, then three and four; batches of one run differ in it."""
    sizes = [size - 1, size, size + 1, 7, size]
    records = [OpenRecord(n, n, tail_of(None, b"v" * sizes[n % 5])) for n in range(23)]
    data = b"".join(seal(records[n : n + 1 + n % 3], codec=0) for n in _starts(len(records)))
    merged = merge(memoryview(data), records=len(records), max_bytes=16_000_000)
    assert opened(merged) == records


def _starts(count: int) -> list[int]:
    starts = [0]
    while starts[-1] + 1 + starts[-1] % 3 < count:
        starts.append(starts[-1] + 1 + starts[-1] % 3)
    return starts


@pytest.mark.parametrize("span", [300, 9000, 10**7, 2**62, 2**63])
def test_both_ways_make_the_same_batches(monkeypatch: pytest.MonkeyPatch, span: int) -> None:
    """Also of times so far apart that they overflow, as they would in Java."""
    chance = random.Random(5)
    records = [OpenRecord(n, chance.randrange(-min(span, 90), span), tail_of(None, b"v" * chance.randrange(300))) for n in range(3000)]
    data = memoryview(b"".join(seal(records[n : n + 16], codec=0) for n in range(0, len(records), 16)))
    compiled = merge(data, records=len(records), max_bytes=1 << 24)
    assert opened(compiled) == records
    monkeypatch.setattr(merge_module, "MANY_RECORDS", 1 << 30)
    assert [bytes(batch) for batch in compiled] == [bytes(batch) for batch in merge(data, records=len(records), max_bytes=1 << 24)]


def _damaged(change: Callable[[bytearray], None]) -> memoryview:
    """Two batches of 16 records, the first one changed behind its header, with the checksum that fits."""
    records = [OpenRecord(n, n, tail_of(b"k", b"v" * 100)) for n in range(32)]
    batches = [bytearray(seal(records[n : n + 16], codec=0)) for n in (0, 16)]
    change(batches[0])
    batches[0][17:21] = crc32c(bytes(batches[0][21:])).to_bytes(4, "big")
    return memoryview(b"".join(batches))


def _set(at: int, *values: int) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[at : at + len(values)] = bytes(values)

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_set(HEADER_BYTES, 0xFF, 0x7F), id="a length that leads beyond the end"),
        pytest.param(_set(HEADER_BYTES, *[0xFF] * 12), id="a number that does not end"),
        pytest.param(_set(HEADER_BYTES, 0, 0), id="a record of no bytes"),
        pytest.param(_set(HEADER_BYTES, 0x81), id="a negative length"),
        pytest.param(_set(HEADER_BYTES + 4, 2), id="an offset delta that is not its place"),
        pytest.param(_set(57, 0, 0, 0, 17), id="fewer records than the header says"),
        pytest.param(_set(57, 0, 0, 0, 15), id="more records than the header says"),
    ],
)
def test_what_is_framed_wrong_is_refused_by_the_reader_that_can_say_why(way: str, change: Callable[[bytearray], None]) -> None:
    data = _damaged(change)
    assert join(data, records=32, max_bytes=1_000_000, max_records=100) is None
    with pytest.raises(CorruptBatch):
        merge(data, records=32, max_bytes=1_000_000)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_set(57, 0, 0, 0, 0), id="no records, as compaction leaves it"),
        pytest.param(_set(57, 0x7F, 0xFF, 0xFF, 0xFF), id="more records than there can be"),
        pytest.param(_set(57, 0xFF, 0xFF, 0xFF, 0xFF), id="a negative number of records"),
        pytest.param(_set(8, 0x7F, 0xFF, 0xFF, 0xFF), id="longer than the run"),
        pytest.param(_set(8, 0, 0, 0, 48), id="shorter than a header"),
        pytest.param(_set(8, 0xFF, 0xFF, 0xFF, 0), id="a negative length"),
    ],
)
def test_machine_code_leaves_headers_that_lie_to_others(change: Callable[[bytearray], None]) -> None:
    assert join(_damaged(change), records=32, max_bytes=1_000_000, max_records=100) is None


_FUZZ = """
import random, sys
import numpy as np
from mirror_pipeline.kafka.records import merge_native as ours
from mirror_pipeline.kafka.records.batch import OpenRecord, seal, tail_of
from mirror_pipeline.kafka.records.merge_native import join
from mirror_pipeline.kafka.records.merge_kernel import join_records
held = []  # arrays have bounds, the pointers of the code that is kept have none
ours._address = lambda data: held.append(np.frombuffer(data, np.uint8)) or len(held) - 1
ours._code = lambda data, size, out, *limits: join_records(held[data], size, held[out], *limits)
chance = random.Random(int(sys.argv[1]))
records = [OpenRecord(n, n * 1000, tail_of(b"k", b"v" * (n % 70))) for n in range(64)]
whole = b"".join(seal(records[n : n + 4], codec=0) for n in range(0, 64, 4))
assert join(memoryview(whole), records=64, max_bytes=900, max_records=50)
longer = [OpenRecord(n, n // 24 * 10**9, b"") for n in range(480)]  # their deltas need more bytes than headers save
longer = memoryview(b"".join(seal(longer[n : n + 24], codec=0) for n in range(0, 480, 24)))
assert join(longer, records=480, max_bytes=9000, max_records=500) and join(longer, records=0, max_bytes=9000, max_records=500) is None
refused = 0
for _ in range(20000):
    data = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
    for _ in range(chance.randrange(1, 4)):
        if data:
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    held.clear()
    refused += join(memoryview(data), records=chance.choice([0, 64]), max_bytes=900, max_records=50) is None
assert 5000 < refused < 20000, refused
"""


@pytest.mark.long
def test_machine_code_never_leaves_its_arrays() -> None:
    """Whatever bytes it is given. The kernel compiled with numba's own bounds checks, which raise IndexError."""
    surroundings = {**os.environ, "NUMBA_BOUNDSCHECK": "1"}
    subprocess.run([sys.executable, "-c", _FUZZ, "7"], env=surroundings, check=True, timeout=200)


def test_batches_with_append_times_are_not_merged(way: str) -> None:
    batch = bytearray(seal([OpenRecord(0, 5, tail_of(None, b"x"))], codec=0))
    batch[22] |= LOG_APPEND_TIME
    with pytest.raises(CorruptBatch, match="append times"):
        merge(memoryview(batch), records=1, max_bytes=10_000)


def test_codecs_are_kept_apart(way: str) -> None:
    codecs = [0, 0, 3, 3, 3, 0, 4]
    data = b"".join(seal([OpenRecord(n, 5, tail_of(None, b"x"))], codec=codec) for n, codec in enumerate(codecs))
    merged = merge(memoryview(data), records=len(codecs), max_bytes=1_000_000)
    assert [header.codec for batch in merged for _, header in headers(batch)] == [0, 3, 0, 4]
    assert [record.offset for record in opened(merged)] == list(range(7))


def test_a_base_time_that_is_not_the_records_own(way: str) -> None:
    """Allowed by the format, and what compaction's delete horizon leads to (KIP-534)."""
    record = seal([OpenRecord(7, 1000, tail_of(None, b"x")), OpenRecord(8, 1500, tail_of(None, b"y"))], codec=0)
    header = next(headers(record))[1]
    body = record[HEADER_BYTES:]
    second = body[1 + body[0] // 2 :]
    fields = CHECKED_FIELDS.pack(0, 0, header.base_timestamp, 1500, -1, -1, -1, 1)
    alone = HEAD.pack(8, 49 + len(second), -1, 2, crc32c(second, crc32c(fields))) + fields + second
    merged = merge(memoryview(alone + seal([OpenRecord(9, 9, tail_of(None, b"z"))], codec=0)), records=2, max_bytes=10_000)
    assert [(r.offset, r.timestamp) for r in opened(merged)] == [(8, 1500), (9, 9)]


def test_what_is_worth_it() -> None:
    assert worth_merging(100, 100, 10_000, packed=True)
    assert worth_merging(100, 400, 10_000, packed=True)
    assert not worth_merging(100, 500, 10_000, packed=True)
    assert worth_merging(100, 1600, 1_600_000, packed=False)
    assert worth_merging(8, 128, 128_000, packed=False)
    assert not worth_merging(7, 112, 112_000, packed=False)
    assert worth_merging(2, 8, 8_000, packed=False)
    assert not worth_merging(100, 16_000, 1_600_000, packed=False)
    assert worth_merging(100, 100, 1_000_000, packed=False)
    assert not worth_merging(100, 100, 1_000_000, packed=True)
    assert not worth_merging(100, 100, 10_000_000, packed=False)
    assert not worth_merging(1, 1, 100, packed=False)

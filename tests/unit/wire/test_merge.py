"""Merged batches hold the same records at the same offsets and times."""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.wire.batch import HEADER_BYTES, OpenRecord, check, headers, open_batch, seal, tail_of
from mirror_pipeline.wire.header import HEAD, STAMPED
from mirror_pipeline.wire.merge import MERGED_BYTES, MERGED_RECORDS, merge, worth_merging

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


def opened(batches: list[bytes]) -> list[OpenRecord]:
    return [record for batch in batches for record in open_batch(batch)]


@settings(max_examples=60)
@given(runs(), st.integers(600, 100_000))
def test_records_offsets_and_times_stay(run: tuple[list[OpenRecord], bytes], limit: int) -> None:
    records, data = run
    merged = merge(memoryview(data), max_bytes=max(limit, max(header.size for _, header in headers(data))))
    assert opened(merged) == records
    for batch in merged:
        (_, header), = headers(batch)
        check(batch, 0, header)
        mine = open_batch(batch)
        assert header.max_timestamp == max(record.timestamp for record in mine)
        assert header.base_timestamp == mine[0].timestamp
        assert header.dense
        assert header.producer_id == -1


def test_hundreds_become_few_within_the_limits() -> None:
    records = [OpenRecord(n, 1000 + n, tail_of(b"k", b"v" * 50)) for n in range(20_000)]
    data = b"".join(seal([record], codec=0) for record in records)
    merged = merge(memoryview(data), max_bytes=1_000_000)
    assert len(merged) < 40
    assert all(len(batch) <= MERGED_BYTES for batch in merged)
    assert all(header.records <= MERGED_RECORDS for batch in merged for _, header in headers(batch))
    assert opened(merged) == records


def test_codecs_are_kept_apart() -> None:
    codecs = [0, 0, 3, 3, 3, 0, 4]
    data = b"".join(seal([OpenRecord(n, 5, tail_of(None, b"x"))], codec=codec) for n, codec in enumerate(codecs))
    merged = merge(memoryview(data), max_bytes=1_000_000)
    assert [header.codec for batch in merged for _, header in headers(batch)] == [0, 3, 0, 4]
    assert [record.offset for record in opened(merged)] == list(range(7))


def test_a_base_time_that_is_not_the_records_own() -> None:
    """Allowed by the format, and what compaction's delete horizon leads to (KIP-534)."""
    record = seal([OpenRecord(7, 1000, tail_of(None, b"x")), OpenRecord(8, 1500, tail_of(None, b"y"))], codec=0)
    header = next(headers(record))[1]
    body = record[HEADER_BYTES:]
    second = body[1 + body[0] // 2 :]
    stamped = STAMPED.pack(0, 0, header.base_timestamp, 1500, -1, -1, -1, 1)
    alone = HEAD.pack(8, 49 + len(second), -1, 2, crc32c(second, crc32c(stamped))) + stamped + second
    merged = merge(memoryview(alone + seal([OpenRecord(9, 9, tail_of(None, b"z"))], codec=0)), max_bytes=10_000)
    assert [(r.offset, r.timestamp) for r in opened(merged)] == [(8, 1500), (9, 9)]


def test_what_is_worth_it() -> None:
    assert worth_merging(100, 100, 10_000, packed=True)
    assert worth_merging(100, 400, 10_000, packed=True)
    assert not worth_merging(100, 500, 10_000, packed=False)
    assert worth_merging(100, 100, 1_000_000, packed=False)
    assert not worth_merging(100, 100, 1_000_000, packed=True)
    assert not worth_merging(100, 100, 10_000_000, packed=False)
    assert not worth_merging(1, 1, 100, packed=False)

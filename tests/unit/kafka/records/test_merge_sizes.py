"""Merging runs in which some batches are far larger than others: single records, bursts, more records than a merged batch holds."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirror_pipeline.kafka.records import merge as merge_module
from mirror_pipeline.kafka.records.batch import OpenRecord, check, headers, open_batch, seal, tail_of
from mirror_pipeline.kafka.records.merge import MERGED_RECORDS, are_small, merge, worth_merging
from tests.support.source_batches import Taken

NONE, GZIP, LZ4, ZSTD = 0, 1, 3, 4
SIZES = st.one_of(st.integers(1, 3), st.integers(1, 3), st.integers(4, 300), st.sampled_from([4095, 4096, 4097, 5000, 9000]))


@pytest.fixture(params=["loop", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(merge_module, "MANY_RECORDS", 0 if request.param == "compiled" else 1 << 30)
    return str(request.param)


def run_of(sizes: list[int], codecs: list[int], first: int = 0) -> tuple[list[OpenRecord], bytes]:
    """Records with times out of order, in batches of so many."""
    order = random.Random(len(sizes))
    records, data = [], []
    for place, size in enumerate(sizes):
        start = first + len(records)
        batch = [OpenRecord(start + n, order.randrange(2**41), tail_of(None, b"%d" % (start + n))) for n in range(size)]
        data.append(seal(batch, codec=codecs[place % len(codecs)]))
        records += batch
    return records, b"".join(data)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(SIZES, min_size=1, max_size=6),
    st.sampled_from([[NONE], [GZIP], [LZ4], [ZSTD], [NONE, LZ4], [LZ4, LZ4, ZSTD]]),
    st.sampled_from([0, 7, 2**40]),
)
def test_batches_of_any_sizes_keep_their_records(way: str, sizes: list[int], codecs: list[int], first: int) -> None:
    records, data = run_of(sizes, codecs, first)
    largest = max(header.size for _, header in headers(data))
    merged = merge(memoryview(data), records=len(records), max_bytes=max(largest, 100_000))
    assert [record for batch in merged for record in open_batch(batch)] == records
    for batch in merged:
        ((_, header),) = headers(batch)
        check(batch, 0, header)
        assert header.records <= MERGED_RECORDS or bytes(batch) in data, "a batch above the limit was written anew"


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4, ZSTD])
@pytest.mark.parametrize("place", [0, 700, 1500])
def test_a_burst_among_single_records_is_copied(codec: int, place: int) -> None:
    sizes = [1] * 1500
    sizes.insert(place, 4200)
    records, data = run_of(sizes, [codec])
    assert are_small(len(sizes), len(records), len(data), packed=codec != NONE)
    assert worth_merging(len(sizes), len(records), len(data), packed=codec != NONE)
    taken = Taken(0, len(records)).take(data)
    assert taken.opened == records
    assert (taken.holes, taken.reader.next) == ([], len(records))

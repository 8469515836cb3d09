"""A batch is opened a part at a time, so that its records never lie in memory all at once."""

from __future__ import annotations

import tracemalloc

import pytest

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.batch import OpenRecord, open_batch, seal, tail_of
from mirror_pipeline.kafka.records.records import OPENED_RECORDS, open_parts
from tests.support.batch_samples import with_right_crc
from tests.support.source_batches import Taken, marked


def records(count: int) -> list[OpenRecord]:
    return [OpenRecord(n, 1000 + n, tail_of(None, b"%d" % n)) for n in range(count)]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("most", [1, 3, 9, 10, 11])
def test_parts_together_are_the_batch(codec: int, most: int) -> None:
    batch = seal(records(10), codec=codec)
    parts = list(open_parts(batch, most=most))
    assert [record for part in parts for record in part] == open_batch(batch) == records(10)
    assert all(0 < len(part) <= most for part in parts)


def test_what_is_left_behind_the_last_record_is_damage() -> None:
    batch = bytearray(seal(records(10), codec=0) + b"x")
    batch[8:12] = (len(batch) - 12).to_bytes(4)
    with pytest.raises(CorruptBatch, match="left after"):
        list(open_parts(with_right_crc(bytes(batch)), most=4))


@pytest.mark.long
def test_a_batch_of_very_many_records_is_taken_within_bounds() -> None:
    count = 10 * OPENED_RECORDS + 7
    batch = marked(seal([OpenRecord(n, 1000, tail_of(None, None)) for n in range(count)], codec=4), 0x08, 0)
    taken = Taken(0, count)
    tracemalloc.start()
    try:
        taken.take(batch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (taken.reader.next, taken.reader.records, taken.holes) == (count, count, [])
    assert peak < 40 * 2**20, f"{peak / 2**20:.0f} MB"

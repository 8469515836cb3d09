"""Messages of magic 0 and 1: a compressed wrapper stands in the log at its last record's offset."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirror_pipeline.model import HoleCause
from tests.support.old_log import FIRST_TIME, GZIP, LZ4, NONE, SNAPPY, old_batch
from tests.support.source_batches import Taken, batch

FORMATS = [(0, NONE), (0, GZIP), (0, SNAPPY), (0, LZ4), (1, NONE), (1, GZIP), (1, SNAPPY), (1, LZ4)]


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_every_record_of_old_batches_is_taken(magic: int, codec: int, compacted: bool, gaps: bool) -> None:
    data = [old_batch(range(start, start + 10), magic, codec) for start in (100, 110, 120)]
    taken = Taken(100, 140, compacted=compacted, gaps=gaps).take(*data, batch(130, 10))
    assert taken.offsets == list(range(100, 140))
    assert taken.holes == []
    times = {record.timestamp for record in taken.opened[:30]}
    assert times == ({-1} if magic == 0 else {FIRST_TIME + offset for offset in range(100, 130)})


@pytest.mark.parametrize("start", range(100, 111))
@pytest.mark.parametrize("end", [111, 113, 119, 120])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_a_range_may_begin_and_end_inside_an_old_wrapper(magic: int, codec: int, start: int, end: int) -> None:
    data = [old_batch(range(first, first + 10), magic, codec) for first in (100, 110, 120)]
    taken = Taken(start, end, hard_end=True).take(*data)
    assert taken.offsets == list(range(start, end))
    assert (taken.reader.next, taken.reader.done, taken.holes) == (end, True, [])


def test_a_range_that_ends_before_the_wrapper_takes_nothing_of_it() -> None:
    taken = Taken(100, 110, hard_end=True).take(old_batch(range(100, 110), 1, GZIP), old_batch(range(110, 120), 1, GZIP))
    assert taken.offsets == list(range(100, 110))


def test_a_soft_end_inside_an_old_wrapper_leaves_it_whole() -> None:
    taken = Taken(100, 113).take(old_batch(range(100, 110), 0, GZIP), old_batch(range(110, 120), 0, GZIP))
    assert taken.offsets == list(range(100, 120))


@pytest.mark.parametrize(("kept", "holes"), [
    ([100, 103, 109], [(101, 103), (104, 109)]),
    ([102, 103, 107], [(100, 102), (104, 107), (108, 110)]),
    ([109], [(100, 109)]),
])  # fmt: skip
@pytest.mark.parametrize(("magic", "codec"), [(0, GZIP), (1, GZIP), (1, LZ4)])
def test_a_cleaned_old_wrapper_keeps_its_offsets(magic: int, codec: int, kept: Sequence[int], holes: list[tuple[int, int]]) -> None:
    taken = Taken(100, 120, compacted=True).take(old_batch(kept, magic, codec), old_batch(range(110, 120), magic, codec))
    assert taken.offsets == [*kept, *range(110, 120)]
    assert taken.holes == [(start, end, HoleCause.COMPACTION) for start, end in holes]


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_the_brokers_append_time_of_an_old_wrapper_is_every_records_time(codec: int) -> None:
    taken = Taken(100, 110).take(old_batch(range(100, 110), 1, codec, append_time=77))
    assert [(record.offset, record.timestamp) for record in taken.opened] == [(offset, 77) for offset in range(100, 110)]

from __future__ import annotations

import random

import pytest

from mirror_pipeline.errors import TopicHalted
from mirror_pipeline.kafka.records.batch import BatchHeader, OpenRecord, headers, open_batch, restamp, seal, tail_of
from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS
from mirror_pipeline.model import HoleCause, Stamp
from tests.support.source_batches import TAIL, Taken, batch, control, marked


def test_dense_batches_are_taken_byte_for_byte() -> None:
    data = batch(5, 3) + batch(8, 4, codec=4)
    taken = Taken(5, 12).take(data)
    assert taken.payload == data
    assert (taken.reader.next, taken.reader.done) == (12, True)
    assert [(s.start, s.end, s.records, s.batches, s.holes) for s in taken.spans] == [(5, 12, 7, 2, ())]


def single(offset: int, size: int, *, codec: int = 0) -> bytes:
    """A batch of one record whose value is so long."""
    value = random.Random(offset).randbytes(size)
    return seal([OpenRecord(offset, 1000 + offset, tail_of(None, value))], codec=codec)


@pytest.mark.parametrize(("size", "codec", "batches"), [(100, 0, 1), (100, 3, 1), (10_000, 0, 2), (10_000, 3, 40), (40_000, 0, 40)])
def test_small_batches_of_few_records_are_merged_unless_that_means_much_unpacking(size: int, codec: int, batches: int) -> None:
    data = [single(offset, size, codec=codec) for offset in range(40)]
    taken = Taken(0, 40).take(*data)
    assert taken.spans[0].batches == len(taken.heads) == batches
    assert taken.reader.batches == 40
    assert taken.opened == [record for one in data for record in open_batch(one)]


def test_one_compressed_batch_among_others_is_not_unpacked() -> None:
    data = [single(offset, 10_000, codec=3 if offset == 7 else 0) for offset in range(40)]
    assert Taken(0, 40).take(*data).payload == b"".join(data)


def test_what_lies_before_the_range_is_left_out_and_a_straddling_batch_is_cut() -> None:
    taken = Taken(7, 12).take(batch(0, 5), batch(5, 4), batch(9, 3))
    assert taken.offsets == [7, 8, 9, 10, 11]
    assert taken.spans[0].start == 7


def test_a_hard_end_cuts_the_last_batch_and_a_soft_end_does_not() -> None:
    assert Taken(0, 6, hard_end=True).take(batch(0, 4), batch(4, 4)).offsets == [0, 1, 2, 3, 4, 5]
    assert Taken(0, 6).take(batch(0, 4), batch(4, 4)).offsets == list(range(8))


def test_markers_and_aborted_batches_become_holes_and_their_producer_goes_on() -> None:
    data = [
        marked(batch(0, 2), 0x10, 7), control(2, 7, abort=True), marked(batch(3, 2), 0x10, 7), control(5, 7, abort=False), batch(6, 1),
    ]  # fmt: skip
    taken = Taken(0, 7).take(*data, aborted=[(7, 0)])
    assert taken.holes == [(0, 2, HoleCause.ABORTED), (2, 3, HoleCause.MARKER), (5, 6, HoleCause.MARKER)]
    assert taken.offsets == [3, 4, 6]
    assert (taken.reader.batches, taken.reader.bytes_read) == (5, sum(map(len, data)))


def test_every_batch_of_an_aborted_transaction_becomes_a_hole() -> None:
    data = [marked(batch(first, 2), 0x10, 7) for first in (0, 2, 4)]
    taken = Taken(0, 8).take(*data, control(6, 7, abort=True), batch(7, 1), aborted=[(7, 0)])
    assert taken.holes == [(0, 6, HoleCause.ABORTED), (6, 7, HoleCause.MARKER)]
    assert taken.offsets == [7]


@pytest.mark.parametrize("start", [1, 2, 3, 4, 5, 6, 7, 9])
def test_an_answer_that_begins_before_what_was_taken_ends_its_transactions(start: int) -> None:
    """An aborted transaction, a committed one, an aborted one, all of one producer; the answer begins at the first again."""
    data = [
        marked(batch(0, 2), 0x10, 7), control(2, 7, abort=True),
        marked(batch(3, 2), 0x10, 7), control(5, 7, abort=False),
        marked(batch(6, 2), 0x10, 7), control(8, 7, abort=True), marked(batch(9, 1), 0x10, 7),
    ]  # fmt: skip
    taken = Taken(start, 10).take(*data, aborted=[(7, 0), (7, 6)])
    assert taken.offsets == [offset for offset in (3, 4, 9) if offset >= start]


def test_another_producers_batch_inside_an_aborted_transaction_is_kept() -> None:
    data = [marked(batch(0, 1), 0x10, 7), marked(batch(1, 1), 0x10, 8), control(2, 7, abort=True), control(3, 8, abort=False)]
    assert Taken(0, 4).take(*data, aborted=[(7, 0)]).offsets == [1]


def test_holes_between_batches_of_a_compacted_topic() -> None:
    taken = Taken(0, 10, compacted=True).take(batch(2, 2), batch(7, 3))
    assert taken.holes == [(0, 2, HoleCause.COMPACTION), (4, 7, HoleCause.COMPACTION)]
    assert taken.offsets == [2, 3, 7, 8, 9]


def test_missing_offsets_of_another_topic_halt_or_are_recorded() -> None:
    with pytest.raises(TopicHalted, match=r"\[2, 5\)"):
        Taken(0, 8).take(batch(0, 2), batch(5, 3))
    assert Taken(0, 8, gaps=True).take(batch(0, 2), batch(5, 3)).holes == [(2, 5, HoleCause.UNEXPLAINED)]


def test_a_trimmed_log_halts_or_is_recorded() -> None:
    with pytest.raises(TopicHalted, match=r"deleted offsets \[3, 9\)"):
        Taken(3, 20).reader.skip_trimmed(9)
    taken = Taken(3, 20, gaps=True)
    taken.reader.skip_trimmed(9)
    taken.take(batch(9, 11))
    assert taken.holes == [(3, 9, HoleCause.RETENTION)]
    assert taken.offsets == list(range(9, 20))


def test_log_append_time_becomes_the_records_own_time() -> None:
    stamped = marked(batch(0, 3), 0x08, 2**63 - 1)
    taken = Taken(0, 3).take(stamped)
    assert not any(header.attributes & 0x08 for header in taken.heads)
    assert {record.timestamp for record in open_batch(taken.payload)} == {headers_of(stamped).max_timestamp}


def headers_of(data: bytes) -> BatchHeader:
    return next(header for _, header in headers(memoryview(data)))


def test_a_batch_larger_than_the_target_takes_is_split() -> None:
    taken = Taken(0, 200, limit=500).take(batch(0, 200))
    assert len(taken.heads) > 1
    assert all(header.size <= 500 for header in taken.heads)
    assert taken.offsets == list(range(200))


def test_a_record_larger_than_the_target_takes() -> None:
    large = OpenRecord(1, 1000, b"\x01" + b"\xd0\x0f" + b"x" * 1000 + b"\x00")
    data = seal([OpenRecord(0, 1000, TAIL), large, OpenRecord(2, 1000, TAIL)], codec=0, base_offset=0)
    with pytest.raises(TopicHalted, match="larger than the target"):
        Taken(0, 3, limit=300).take(data)
    taken = Taken(0, 3, limit=300, gaps=True).take(data)
    assert taken.holes == [(1, 2, HoleCause.QUARANTINED)]
    assert taken.offsets == [0, 2]
    (kept,) = taken.reader.quarantined
    (record,) = open_batch(memoryview(kept.payload))
    assert (kept.start, record.offset, record.tail) == (1, 1, large.tail)


def test_a_flipped_bit_is_found() -> None:
    data = bytearray(batch(0, 3))
    data[-3] ^= 1
    with pytest.raises(TopicHalted) as halt:
        Taken(0, 3).take(bytes(data))
    assert (halt.value.halt.code, halt.value.halt.span) == ("corrupt", (0, 3))


def test_a_flipped_bit_is_found_in_a_batch_that_is_opened() -> None:
    data = bytearray(marked(batch(0, 3), 0x08, 0))  # log append time: opened and sealed anew
    data[-3] ^= 1
    with pytest.raises(TopicHalted) as halt:
        Taken(0, 3).take(bytes(data))
    assert (halt.value.halt.code, halt.value.halt.span) == ("corrupt", (0, 3))


def test_digests_and_counts_do_not_depend_on_how_a_log_was_answered() -> None:
    first = LEAF_OFFSETS - 7
    log = [batch(first + 5 * n, 5) for n in range(6)] + [batch(first + 30 + n, 1) for n in range(9)] + [batch(first + 39, 40)]
    whole = Taken(first, first + 79).take(*log)
    assert sum(span.records for span in whole.spans) == 79
    assert {leaf.leaf for leaf in whole.spans[0].digests} == {0, 1}
    for cut in range(1, len(log)):
        parts = Taken(first, first + 79).take(*log[:cut]).take(*log[cut:])
        assert parts.offsets == whole.offsets
        assert sum(span.batches for span in parts.spans) == len(parts.heads)
        assert (parts.reader.records, parts.reader.mark) == (79, whole.reader.mark)


def test_a_damaged_batch_that_was_accepted_goes_to_quarantine() -> None:
    data = bytearray(batch(0, 3))
    data[-3] ^= 1
    taken = Taken(0, 6, approved=((0, 3),)).take(bytes(data) + batch(3, 3))
    assert taken.holes == [(0, 3, HoleCause.QUARANTINED)]
    assert taken.offsets == [3, 4, 5]
    (kept,) = taken.reader.quarantined
    assert (kept.start, kept.end, kept.payload) == (0, 3, bytes(data))


def test_only_what_was_accepted_may_be_missing() -> None:
    taken = Taken(0, 9, approved=((2, 4),)).take(batch(0, 2) + batch(4, 2))
    assert taken.holes == [(2, 4, HoleCause.UNEXPLAINED)]
    with pytest.raises(TopicHalted) as halt:
        Taken(0, 9, approved=((2, 4),)).take(batch(0, 2) + batch(5, 2))
    assert (halt.value.halt.code, halt.value.halt.span) == ("unexplained_hole", (2, 5))


def test_a_trimmed_log_goes_on_where_that_was_accepted() -> None:
    taken = Taken(0, 9, approved=((0, 4),))
    taken.reader.skip_trimmed(4)
    taken.take(batch(4, 5))
    assert taken.holes == [(0, 4, HoleCause.RETENTION)]
    with pytest.raises(TopicHalted) as halt:
        Taken(0, 9, approved=((0, 3),)).reader.skip_trimmed(4)
    assert (halt.value.halt.code, halt.value.halt.span) == ("trimmed", (0, 4))


def test_a_range_ends_after_its_bytes() -> None:
    reader = Taken(0, 1000, size=10).take(batch(0, 2)).reader
    assert (reader.done, reader.next) == (True, 2)


def test_what_is_answered_twice_counts_once() -> None:
    """Stretches of a wide read overlap by the batches at their edges."""
    one, two = batch(0, 2), batch(2, 2)
    taken = Taken(0, 1000, size=len(one) + len(two) + 1).take(one).take(one, two)
    assert (taken.reader.bytes_read, taken.reader.done) == (len(one) + len(two), False)


def test_everything_taken_can_be_stamped() -> None:
    taken = Taken(0, 9, compacted=True).take(marked(batch(0, 2), 0x10, 7), control(2, 7, abort=False), batch(5, 4, codec=2))
    for header, at in ((header, at) for at, header in headers(memoryview(taken.payload))):
        head = restamp(header, memoryview(taken.payload)[at : at + header.size], Stamp(99, 0), 2**31 - 1)
        assert not head[22] & 0x10

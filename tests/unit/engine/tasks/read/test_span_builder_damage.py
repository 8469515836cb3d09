"""One batch of a log is damaged: what is healthy is copied or named, and nothing is believed that a damaged header says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from mirror_pipeline.errors import TopicHalted
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, OpenRecord, content, seal, tail_of
from mirror_pipeline.model import HoleCause
from tests.support.old_log import GZIP, old_batch
from tests.support.source_batches import Taken, control, marked

END = 100
DENSE = tuple(range(0, END, 10))
DAMAGED = 3


@dataclass
class Log:
    """A partition on a broker that finds batches by their true offsets, and sends at most ``limit`` bytes and one whole batch.

    An answer ends where a segment does, of so many batches.
    """

    batches: list[tuple[int, int, bytes]]
    limit: int = 1 << 20
    segment: int = 1 << 20

    @classmethod
    def of(cls, firsts: Sequence[int], *, codec: int = 0, end: int = END) -> Log:
        """Batches of ten records, or fewer where the next begins sooner."""
        stops = [min(first + 10, follower) for first, follower in zip(firsts, [*firsts[1:], end], strict=True)]
        made = [seal([record(at) for at in range(first, stop)], codec=codec) for first, stop in zip(firsts, stops, strict=True)]
        return cls([(first, stop, data) for first, stop, data in zip(firsts, stops, made, strict=True)])

    def flipped(self, bit: int, batch: int = DAMAGED) -> Log:
        first, stop, data = self.batches[batch]
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        return replace(self, batches=[*self.batches[:batch], (first, stop, bytes(changed)), *self.batches[batch + 1 :]])

    def answer(self, offset: int) -> FetchedPartition:
        return self.whole(offset, self.limit)

    def whole(self, offset: int, limit: int = 1 << 20) -> FetchedPartition:
        place = next((place for place, (_, stop, _) in enumerate(self.batches) if stop > offset), len(self.batches))
        rest = [data for _, _, data in self.batches[place : (place // self.segment + 1) * self.segment]]
        data = b"".join(rest)[: max(limit, len(rest[0]) if rest else 0)]
        return FetchedPartition(0, END, END, 0, [], memoryview(data))

    @property
    def offsets(self) -> set[int]:
        return {offset for first, stop, _ in self.batches for offset in range(first, stop)}


def record(offset: int) -> OpenRecord:
    return OpenRecord(offset, 1000 + offset, tail_of(None, b"%d" % offset))


def read(taken: Taken, log: Log, ask: Callable[[int], FetchedPartition] | None = None) -> Taken:
    """Fetch and take until the end is there; a reader that stands still is broken."""
    while not taken.reader.done:
        before = taken.reader.next
        taken.reader.take(log.answer(before), asked=before, ask=ask or log.whole)
        assert taken.reader.next > before, f"stands at {before}"
    taken.reader.flush()
    return taken


def assert_nothing_vanished(taken: Taken, log: Log, said: str) -> set[int]:
    """What was copied is right, and in order; returns what was left out, all of it as damage."""
    values = [int(content(record).value or b"") for record in taken.opened]
    assert values == sorted(set(values)), said
    assert taken.offsets == sorted(set(taken.offsets)), said
    assert taken.reader.next <= END, said
    left_out = {offset for start, end, cause in taken.holes if cause is HoleCause.QUARANTINED for offset in range(start, end)}
    assert log.offsets - set(values) <= left_out, f"{said}: {sorted(log.offsets - set(values) - left_out)} vanished"
    return left_out & log.offsets


BITS = range(HEADER_BYTES * 8)
HOLES = (0, 12, 20, 35, 45, 58, 70, 81, 90)
LOGS = {"dense": DENSE, "holes": HOLES}


@pytest.mark.parametrize("segment", [1, 2, 100])
@pytest.mark.parametrize("limit", [1 << 20, 200])
@pytest.mark.parametrize("compacted", [False, True])
def test_no_flipped_bit_of_a_header_makes_records_vanish(compacted: bool, limit: int, segment: int) -> None:
    healthy = replace(Log.of(DENSE), limit=limit, segment=segment)
    for bit in BITS:
        log = healthy.flipped(bit)
        left_out = assert_nothing_vanished(read(Taken(0, END, gaps=True, compacted=compacted), log), log, f"bit {bit}")
        assert left_out in (set(), set(range(30, 40))), f"bit {bit}"
        assert bool(left_out) is not (12 * 8 <= bit < 16 * 8), f"bit {bit}: only the leader epoch is not part of what was written"


@pytest.mark.parametrize("damaged", range(len(HOLES)))
def test_no_flipped_bit_makes_records_vanish_where_compaction_left_holes(damaged: int) -> None:
    healthy = Log.of(HOLES)
    for bit in BITS:
        log = healthy.flipped(bit, damaged)
        assert_nothing_vanished(read(Taken(0, END, gaps=True, compacted=True), log), log, f"batch {damaged}, bit {bit}")


@pytest.mark.parametrize("compacted", [False, True])
def test_damage_halts_and_goes_on_once_it_is_accepted(compacted: bool) -> None:
    healthy = Log.of(DENSE)
    for bit in BITS:
        log = healthy.flipped(bit)
        taken = Taken(0, END, compacted=compacted)
        if 12 * 8 <= bit < 16 * 8:
            assert read(taken, log).offsets == list(range(END))
            continue
        with pytest.raises(TopicHalted) as halt:
            read(taken, log)
        taken.reader.flush()
        assert (halt.value.halt.code, halt.value.halt.span, taken.offsets) == ("corrupt", (30, 40), list(range(30))), f"bit {bit}"
        again = read(Taken(30, END, compacted=compacted, approved=((30, 40),)), log)
        assert assert_nothing_vanished(again, Log(log.batches[DAMAGED:]), f"bit {bit}") == set(range(30, 40))
        assert again.offsets == list(range(40, END)), f"bit {bit}"


@pytest.mark.parametrize("compacted", [False, True])
def test_damage_on_the_way_is_no_damage(compacted: bool) -> None:
    healthy = Log.of(DENSE)
    for bit in BITS:
        taken = read(Taken(0, END, compacted=compacted), healthy.flipped(bit), healthy.answer)
        assert (taken.offsets, taken.holes) == (list(range(END)), []), f"bit {bit}"


def test_damage_in_the_last_batch_of_the_log_ends_where_the_log_ends() -> None:
    healthy = Log.of(DENSE)
    for bit in BITS:
        log = healthy.flipped(bit, batch=9)
        left_out = assert_nothing_vanished(read(Taken(0, END, gaps=True), log), log, f"bit {bit}")
        assert left_out in (set(), set(range(90, 100))), f"bit {bit}"


def test_two_damaged_batches_are_one_stretch() -> None:
    log = Log.of(DENSE).flipped(600).flipped(600, batch=4)
    taken = read(Taken(0, END, gaps=True), log)
    assert taken.holes == [(30, 50, HoleCause.QUARANTINED)]
    assert assert_nothing_vanished(taken, log, "two") == set(range(30, 50))


def test_a_lost_abort_marker_does_not_take_the_next_transaction_with_it() -> None:
    """The reader believes the broker's list of aborted transactions; the marker that ends one is damaged."""
    def data(*numbers: int) -> bytes:
        return marked(seal([record(number) for number in numbers], codec=0), 0x10, 7)

    marker = bytearray(control(2, 7, abort=True))
    marker[-1] ^= 1
    parts = [(0, 2, data(0, 1)), (2, 3, bytes(marker)), (3, 5, data(3, 4)), (5, 6, control(5, 7, abort=False))]

    class Aborting(Log):
        def answer(self, offset: int) -> FetchedPartition:
            told = super().answer(offset)
            return FetchedPartition(0, 6, 6, 0, [(7, 0)] if offset <= 2 else [], told.records)

    taken = read(Taken(0, 6, gaps=True), Aborting(parts))
    assert taken.offsets == [3, 4]
    assert taken.holes == [(0, 2, HoleCause.ABORTED), (2, 3, HoleCause.QUARANTINED), (5, 6, HoleCause.MARKER)]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_damaged_old_wrapper_is_left_out_alone(magic: int) -> None:
    parts = [(first, first + 10, old_batch(range(first, first + 10), magic, GZIP)) for first in range(0, END, 10)]
    log = Log(parts).flipped(8 * 60)
    taken = read(Taken(0, END, gaps=True), log)
    assert taken.offsets == [*range(30), *range(40, END)]
    assert taken.holes == [(30, 40, HoleCause.QUARANTINED)]
    with pytest.raises(TopicHalted) as halt:
        read(Taken(0, END, compacted=True), log)
    assert (halt.value.halt.code, halt.value.halt.span) == ("corrupt", (30, 40))


def test_a_batch_inside_a_record_is_not_taken_for_one_of_the_log() -> None:
    """The damaged batch is whole by its length, so the next one is known to begin behind it."""
    inner = seal([record(at) for at in range(33, 36)], codec=0)
    outer = seal([OpenRecord(30 + n, 1, tail_of(None, inner)) for n in range(10)], codec=0)
    log = Log.of(DENSE)
    log.batches[3] = (30, 40, outer)
    taken = read(Taken(0, END, gaps=True), log.flipped(8 * 17))
    assert taken.holes == [(30, 40, HoleCause.QUARANTINED)]
    assert taken.offsets == [*range(30), *range(40, END)]

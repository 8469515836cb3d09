"""Comparing two streams of batches: each single change is found and called by its name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from crc32c import crc32c

from mirror_pipeline.kafka.records.batch import OpenRecord, Record, headers, seal, tail_of
from mirror_pipeline.kafka.records.header import CHECKED_FIELDS, HEAD
from mirror_pipeline.verify.align import find_anchor
from mirror_pipeline.verify.pieces import Piece, difference_text, digest
from tests.support.verify_samples import Found, found_between

END = 1 << 40


def record(index: int, **changes: object) -> Record:
    fields: dict[str, object] = {
        "offset": index,
        "timestamp": 1_700_000_000_000 + index,
        "key": b"key-%d" % (index % 7),
        "value": b"value-%d" % index,
        "headers": ((b"a", b"1"), (b"b", None)),
    }
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def stream(records: Sequence[Record], *, per_batch: int = 10, codec: int = 0, low: int = 0, high: int = END) -> list[Piece]:
    """Batches with dense offsets, as the target of a mirror has them."""
    pieces = []
    for start in range(0, len(records), per_batch):
        some = records[start : start + per_batch]
        opened = [OpenRecord(0, r.timestamp, tail_of(r.key, r.value, r.headers)) for r in some]
        batch = memoryview(seal(opened, codec=codec, base_offset=start))
        pieces += [Piece(header, batch, low, high) for _, header in headers(batch)]
    return pieces


def compare(source: Iterable[Piece], target: Iterable[Piece], limit: int = 20) -> Found:
    return found_between(list(source), list(target), limit=limit)


def kinds(found: Found) -> list[tuple[str, int | None, int | None]]:
    return [(d.kind, d.source_offset, d.target_offset) for d in found.differences]


SOURCE = [record(i) for i in range(100)]


@pytest.mark.parametrize(("per_batch", "codec"), [(10, 0), (100, 0), (1, 0), (10, 4), (7, 2)])
def test_equal_records_are_identical_however_they_are_batched(per_batch: int, codec: int) -> None:
    found = compare(stream(SOURCE), stream(SOURCE, per_batch=per_batch, codec=codec))
    assert (found.records, found.differences) == (100, ())


ALTERATIONS = {
    "value byte": {"value": b"value-5O"},
    "value null": {"value": None},
    "value empty": {"value": b""},
    "key byte": {"key": b"key-9"},
    "key null": {"key": None},
    "timestamp": {"timestamp": 1_700_000_000_051},
    "header order": {"headers": ((b"b", None), (b"a", b"1"))},
    "header null became empty": {"headers": ((b"a", b"1"), (b"b", b""))},
    "header doubled": {"headers": ((b"a", b"1"), (b"a", b"1"), (b"b", None))},
    "header key": {"headers": ((b"\xff", b"1"), (b"b", None))},
    "headers lost": {"headers": ()},
}


@pytest.mark.parametrize("change", ALTERATIONS.values(), ids=ALTERATIONS.keys())
@pytest.mark.parametrize("at", [0, 50, 99])
def test_one_altered_record_is_found(change: dict[str, object], at: int) -> None:
    target = list(SOURCE)
    target[at] = record(at, **{**change, "value": change.get("value", b"value-%d" % at)})
    found = compare(stream(SOURCE), stream(target))
    assert kinds(found) == [("altered", at, at)]
    assert found.differences[0].detail


def lose(records: list[Record]) -> None:
    del records[40]


def lose_first_and_last(records: list[Record]) -> None:
    del records[99], records[0]


def lose_batch(records: list[Record]) -> None:
    del records[30:40]


def add(records: list[Record]) -> None:
    records.insert(40, record(5_000))


def double(records: list[Record]) -> None:
    records.insert(41, records[40])


def double_batch(records: list[Record]) -> None:
    records[20:20] = records[10:20]


def double_far_away(records: list[Record]) -> None:
    records.append(records[2])


def swap(records: list[Record]) -> None:
    records[40], records[41] = records[41], records[40]


def swap_far(records: list[Record]) -> None:
    records[10], records[80] = records[80], records[10]


def swap_batches(records: list[Record]) -> None:
    records[10:30] = records[20:30] + records[10:20]


CHANGES: dict[Callable[[list[Record]], None], set[str]] = {
    lose: {"missing"},
    lose_first_and_last: {"missing"},
    lose_batch: {"missing"},
    add: {"extra"},
    double: {"duplicate"},
    double_batch: {"duplicate"},
    double_far_away: {"duplicate"},
    swap: {"order"},
    swap_far: {"order"},
    swap_batches: {"order"},
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.items(), ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("per_batch", [10, 33])
def test_one_change_is_called_by_its_name(change: Callable[[list[Record]], None], expected: set[str], per_batch: int) -> None:
    target = list(SOURCE)
    change(target)
    assert {d.kind for d in compare(stream(SOURCE), stream(target, per_batch=per_batch)).differences} == expected


def test_offsets_of_both_sides_are_told() -> None:
    target = [*SOURCE[:40], *SOURCE[41:60], record(60, key=b"other"), *SOURCE[61:], record(777)]
    assert kinds(compare(stream(SOURCE), stream(target))) == [("missing", 40, None), ("altered", 60, 59), ("extra", None, 99)]


def test_records_between_every_two_are_extra_and_nothing_else() -> None:
    target = [r for i in range(100) for r in (record(i), record(1_000 + i))]
    assert {d.kind for d in compare(stream(SOURCE), stream(target), limit=500).differences} == {"extra"}
    assert {d.kind for d in compare(stream(target), stream(SOURCE), limit=500).differences} == {"missing"}


def test_equal_records_on_the_source_must_stay_as_many() -> None:
    twins = [record(0)] * 10
    assert not compare(stream(twins), stream(twins)).differences
    assert {d.kind for d in compare(stream(twins), stream(twins[:-1])).differences} == {"missing"}
    assert {d.kind for d in compare(stream(twins), stream([*twins, record(0)])).differences} == {"duplicate"}


def test_an_empty_target_misses_everything_and_an_empty_source_nothing() -> None:
    assert [d.kind for d in compare(stream(SOURCE), [], limit=20).differences] == ["missing"] * 20
    assert [d.kind for d in compare([], stream(SOURCE), limit=20).differences] == ["extra"] * 20
    assert compare([], []) == Found(0, 0, ())


def test_base_timestamp_lies_in_front_of_the_compared_bytes_and_is_looked_at() -> None:
    later = [record(i, timestamp=1_700_000_000_001 + i) for i in range(100)]
    one, other = stream(SOURCE)[0], stream(later)[0]
    assert bytes(one.batch[61:]) == bytes(other.batch[61:])
    assert {d.kind for d in compare(stream(SOURCE), stream(later), limit=500).differences} == {"altered"}


def test_records_outside_the_asked_offsets_do_not_count() -> None:
    assert not compare(stream(SOURCE, low=35, high=72), stream(SOURCE[35:72])).differences
    assert kinds(compare(stream(SOURCE, low=35, high=72), stream(SOURCE[35:71]))) == [("missing", 71, None)]


def test_append_time_is_the_time_that_counts() -> None:
    batch = bytearray(stream(SOURCE)[0].batch)
    fields = CHECKED_FIELDS.pack(8, 9, 1_700_000_000_000, 42, -1, -1, -1, 10)
    batch[:61] = HEAD.pack(0, len(batch) - 12, -1, 2, crc32c(bytes(batch[61:]), crc32c(fields))) + fields
    view = memoryview(bytes(batch))
    source = [Piece(header, view, 0, END) for _, header in headers(view)]
    assert not compare(source, stream([record(i, timestamp=42) for i in range(10)])).differences
    assert {d.kind for d in compare(source, stream(SOURCE[:10])).differences} == {"altered"}


@pytest.mark.parametrize("seed", range(30))
def test_random_damage_is_never_overlooked(seed: int) -> None:
    chance = random.Random(seed)
    source = [record(i, value=b"%d" % chance.randrange(30), timestamp=5, key=None, headers=()) for i in range(300)]
    target = list(source)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(target))
        damage = chance.randrange(3)
        if damage == 0:
            target.pop(at)
        else:
            target.insert(at, target[-at] if damage == 1 else record(1000 + at))
    same = [r[1:] for r in source] == [r[1:] for r in target]
    found = compare(stream(source), stream(target, per_batch=chance.choice([3, 10, 50])))
    assert bool(found.differences) is not same


def test_what_differs_is_said_without_contents() -> None:
    text = difference_text(record(1, value=b"secret-1"), record(1, value=b"secret-2", key=None, timestamp=7))
    assert text == "timestamp 1700000000001 became 7; key 5 bytes became null; value differs at byte 7 (8 bytes became 8 bytes)"


def test_digest_tells_null_from_empty_and_borders_apart() -> None:
    odd = [
        record(1, key=None, value=b"", headers=()),
        record(1, key=b"", value=None, headers=()),
        record(1, key=b"", value=b"", headers=()),
        record(1, key=b"ab", value=b"c", headers=()),
        record(1, key=b"a", value=b"bc", headers=()),
        record(1, key=b"", value=b"", headers=((b"", None),)),
        record(1, key=b"", value=b"", headers=((b"", b""),)),
    ]
    assert len({digest(r) for r in odd}) == len(odd)


def test_an_anchor_needs_two_records_unless_the_stream_ends() -> None:
    a, b, c, d = ((i, None, None, ()) for i in range(4))
    assert find_anchor([a, b, c, d], [b, a, c, d], final=False) == (2, 2)
    assert find_anchor([a, b], [b], final=False) is None
    assert find_anchor([a, b], [b], final=True) == (1, 0)

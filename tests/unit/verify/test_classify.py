"""Random edits of a record list: each is called by its name, and nothing else is named."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.kafka.records.batch import OpenRecord, content, headers, seal
from mirror_pipeline.verify.align import align, find_digests
from mirror_pipeline.verify.classify import classify
from mirror_pipeline.verify.pieces import Candidate, Piece, Trace, trace
from mirror_pipeline.verify.positional import compare_latest
from tests.support.verify_samples import END, found_between, opened, pieces

COUNT = 400
KINDS = ("missing", "altered", "duplicate", "order", "extra")


def record(number: int) -> OpenRecord:
    return opened(number, b"value %d" % number, b"key %d" % (number % 7))


def log(records: list[OpenRecord], per_batch: int) -> list[Piece]:
    made = []
    for first in range(0, len(records), per_batch):
        batch = memoryview(seal(records[first : first + per_batch], codec=0, base_offset=first))
        made += [Piece(header, batch, 0, END) for _, header in headers(batch)]
    return made


def edited(edits: dict[int, str]) -> list[OpenRecord]:
    target: list[OpenRecord] = []
    skip = -1
    for number in range(COUNT):
        kind = edits.get(number)
        if number == skip or kind == "missing":
            continue
        if kind == "order":
            target += [record(number + 1), record(number)]
            skip = number + 1
            continue
        target.append(opened(number, b"other", b"key %d" % (number % 7)) if kind == "altered" else record(number))
        if kind == "duplicate":
            target.append(record(number))
        if kind == "extra":
            target.append(opened(9_000_000 + number, b"foreign %d" % number, b"stranger"))
    return target


@settings(max_examples=60)
@given(st.dictionaries(st.integers(0, COUNT // 10 - 2), st.sampled_from(KINDS), max_size=12), st.sampled_from([1, 7, 40, 400]))
def test_single_edits_are_all_found_and_nothing_else(places: dict[int, str], per_batch: int) -> None:
    edits = {place * 10 + 3: kind for place, kind in places.items()}
    source, target = log([record(n) for n in range(COUNT)], 40), log(edited(edits), per_batch)
    found = found_between(source, target, limit=1000)
    assert Counter(d.kind for d in found.differences) == Counter(edits.values())
    named = {d.source_offset for d in found.differences if d.kind in ("missing", "altered")}
    assert named == {at for at, kind in edits.items() if kind in ("missing", "altered")}
    assert (found.records, found.more) == (COUNT, False)


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 8))
def test_a_pause_at_any_border_changes_nothing(budget: int, per_batch: int, lost: int) -> None:
    ours = [record(n) for n in range(60)]
    source, target = log(ours, per_batch), log([r for r in ours if r.offset != lost * 7], per_batch)
    candidates, records, at = [], 0, (0, 0)
    while True:
        left = [p for p in source if p.header.base_offset >= at[0]]
        right = [p for p in target if p.header.base_offset >= at[1]]
        part = align(left, right, limit=50, budget=budget)
        candidates += part.candidates
        records += part.records
        if part.resume is None:
            break
        at = part.resume
    assert [(f.kind, f.source_offset) for f in classify(candidates, ())] == [("missing", lost * 7)]
    assert records == 60


def mark(text: str, offset: int) -> Trace:
    return Trace(offset, 0, text.encode())


def test_of_equal_records_only_the_surplus_is_a_duplicate_and_only_the_lack_is_missing() -> None:
    """Three equal ones lost, two surplus: two moved and one is missing. The other way round one is a duplicate."""
    lost = [Candidate(mark("x", n), None) for n in range(3)]
    more = [Candidate(None, mark("x", 100 + n)) for n in range(2)]
    found = [(f.kind, f.source_offset, f.target_offset) for f in classify([*lost, *more], {b"x"})]
    assert found == [("order", 0, 100), ("order", 1, 101), ("missing", 2, None)]
    found = [(f.kind, f.source_offset, f.target_offset) for f in classify([*lost[:1], *more], {b"x"})]
    assert found == [("order", 0, 100), ("duplicate", None, 101)]


def test_an_altered_pair_is_two_differences_when_the_new_record_is_known() -> None:
    pair = [Candidate(mark("a", 5), mark("b", 6), "value")]
    assert [f.kind for f in classify(pair, ())] == ["altered"]
    assert [f.kind for f in classify(pair, {b"b"})] == ["missing", "duplicate"]


def test_a_record_older_than_its_batch_is_found_among_samples_and_after_disorder_was_seen() -> None:
    """A batch's header tells its first and its newest time, not its oldest."""
    backwards = [opened(n, b"v%d" % n, timestamp=2_000_000_000_000 - n) for n in range(400)]
    stream = log(backwards, 10)
    wanted = [trace(content(backwards[n])) for n in (5, 399)]
    assert find_digests(stream, wanted) == {w.digest for w in wanted}
    assert find_digests(stream, [trace(content(opened(1, b"never")))]) == set()


def test_compacted_logs_without_a_map_are_compared_by_the_last_record_of_each_key() -> None:
    source = [opened(0, b"a", b"1"), opened(1, b"b", b"2"), opened(2, b"c", b"1"), opened(3, None, b"3"), opened(4, b"d", b"4")]
    target = [source[1], source[2], opened(9, b"D", b"4", source[4].timestamp), opened(10, b"e", b"5")]
    found = compare_latest(pieces(source), pieces(target), limit=10)
    assert [(c.source and c.source.offset, c.target and c.target.offset) for c in found.candidates] == [(4, 9), (None, 10)]
    assert compare_latest(pieces(source), pieces(source[1:]), limit=10).candidates == []

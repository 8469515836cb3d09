"""Comparing place by place through the offset map: compaction is no difference, everything else is."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.offset_runs import Runs
from mirror_pipeline.kafka.records.batch import OpenRecord, content
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.classify import classify
from mirror_pipeline.verify.pieces import key_digest, trace
from mirror_pipeline.verify.positional import Joined, join, keys_seen, last_seen
from mirror_pipeline.verify.record_tasks import LookResult
from tests.support.verify_samples import opened, pieces

SHIFT = 1000
KEYS = 5


def copy_of(records: Sequence[OpenRecord]) -> list[OpenRecord]:
    return [record._replace(offset=record.offset + SHIFT) for record in records]


def compare(source: Sequence[OpenRecord], target: Sequence[OpenRecord], *, thin_source: bool = True, thin_target: bool = True) -> Joined:
    runs = Runs()
    runs.add(0, SHIFT, 100)
    return join(pieces(source), pieces(target), runs, thin_source=thin_source, thin_target=thin_target, limit=500)


def kinds(joined: Joined) -> list[tuple[str, int | None, int | None]]:
    return [(f.kind, f.source_offset, f.target_offset) for f in classify(joined.alignment.candidates, ())]


LOG = [opened(n, b"value %d" % n, b"key %d" % (n % KEYS)) for n in range(100)]


def clean(records: Sequence[OpenRecord], gone: set[int]) -> list[OpenRecord]:
    """What a cleaner may leave: of the records at ``gone`` those that are the last of their key stay."""
    return [record for record in records if record.offset not in gone or record.offset >= 100 - KEYS]


@given(st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)))
def test_whatever_compaction_took_on_either_side_is_no_difference(here: set[int], there: set[int]) -> None:
    joined = compare(clean(LOG, here), copy_of(clean(LOG, there)))
    assert (kinds(joined), joined.unsettled) == ([], [])


@given(st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)), st.integers(100 - KEYS, 99))
def test_a_changed_survivor_is_found_among_compacted_ones(here: set[int], there: set[int], at: int) -> None:
    damaged = [r._replace(tail=r.tail[:-2] + b"!" + r.tail[-1:]) if r.offset == at else r for r in clean(LOG, there)]
    assert kinds(compare(clean(LOG, here), copy_of(damaged))) == [("altered", at, SHIFT + at)]


def test_the_last_record_of_a_key_may_not_be_gone_on_the_target() -> None:
    joined = compare(LOG, copy_of([r for r in LOG if r.offset != 99]))
    assert (kinds(joined), [trace.offset for trace in joined.unsettled]) == ([], [99])
    later = [opened(2000, b"newer", b"key %d" % (99 % KEYS))]
    assert keys_seen(pieces(later), [joined.unsettled[0].key]) == {joined.unsettled[0].key}
    assert keys_seen(pieces(later), [b"another key's digest"]) == set()


def test_a_tombstone_may_be_gone_on_the_target() -> None:
    log = [*LOG[:99], opened(99, None, b"key 4")]
    joined = compare(log, copy_of(log[:99]))
    assert (kinds(joined), joined.unsettled) == ([], [])


def test_a_tombstone_that_is_gone_took_the_records_before_it_along() -> None:
    log = [*LOG[:99], opened(99, None, b"key 4")]
    joined = compare(log, copy_of([record for record in log if record.offset % KEYS != 4]))
    assert (kinds(joined), joined.unsettled) == ([], [])


def test_where_a_key_occurs_last() -> None:
    keys = [key_digest(b"key %d" % number) for number in (0, 4)]
    assert last_seen(pieces(LOG), [*keys, b"another key's digest"]) == {keys[0]: 95, keys[1]: 99}


def test_a_later_record_of_the_key_excuses_one_that_is_gone() -> None:
    seen, later, other = (trace(content(opened(50, b"x", key))) for key in (b"on the target", b"later on the source", b"nowhere"))
    look = LookResult(TopicPartition("t", 0), frozenset(), frozenset([seen.key]), {later.key: 51, other.key: 50})
    assert [look.excuses(record) for record in (seen, later, other)] == [True, True, False]


def test_a_side_that_is_not_compacted_must_have_everything() -> None:
    thinner = [r for r in LOG if r.offset != 50]
    assert kinds(compare(LOG, copy_of(thinner), thin_target=False)) == [("missing", 50, None)]
    assert kinds(compare(thinner, copy_of(LOG), thin_source=False)) == [("extra", None, SHIFT + 50)]


def test_foreign_records_and_exchanged_ones_are_told_apart() -> None:
    foreign = [*copy_of(LOG), opened(5000, b"foreign")]
    assert kinds(compare(LOG, foreign)) == [("extra", None, 5000)]
    a, b = LOG[40], LOG[41]
    exchanged = [*LOG[:40], b._replace(offset=40), a._replace(offset=41), *LOG[42:]]
    assert {kind for kind, _, _ in kinds(compare(LOG, copy_of(exchanged)))} == {"order"}


def test_keyless_records_are_never_compacted_away() -> None:
    log = [opened(0, b"a", None), opened(1, b"b", None)]
    assert kinds(compare(log, copy_of(log[1:]))) == [("missing", 0, None)]

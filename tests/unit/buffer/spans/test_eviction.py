"""Properties of the pure choices: what is evicted, what is removed, positions, tiling."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.offset_map import faults, fold_positions
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.eviction import StagedBatch, choose, produced_batches
from mirror_pipeline.buffer.tables import columns
from mirror_pipeline.buffer.tables.files import FoundFile, removable_files
from mirror_pipeline.buffer.tables.rows import sends_table, to_sends
from mirror_pipeline.model import HoleCause, Position, Send, SpanRef, TopicPartition
from tests.support.buffer_samples import LIFE, life

pure = settings(deadline=None)
STORE = LaneStore("/nowhere", "m", "lane-0")
batch = st.builds(StagedBatch, st.integers(0, 50), st.integers(0, 1000), st.integers(0, 100), st.integers(1, 9))
batches = st.lists(batch, unique_by=lambda batch: batch.micro_batch, max_size=20)


limits = st.none() | st.integers(0, 5000)


@pure
@given(batches, st.sets(st.integers(0, 50)), st.none() | st.integers(0, 101), limits, st.none() | st.integers(0, 40))
def test_eviction_takes_what_it_may_and_no_more(
    staged: list[StagedBatch], done: set[int], older: int | None, room: int | None, most: int | None
) -> None:
    def crowded(batches: list[StagedBatch]) -> bool:
        too_big = room is not None and sum(batch.size for batch in batches) > room
        return too_big or (most is not None and sum(batch.files for batch in batches) > most)

    chosen = choose(staged, done, older_than=older, target_bytes=room, target_files=most)
    kept = [batch for batch in staged if batch.micro_batch not in chosen]
    assert set(chosen) <= done
    assert chosen == sorted(chosen)
    for batch in kept:
        if batch.micro_batch in done:  # it could have gone: it is young, and there is room
            assert older is None or batch.staged_at >= older
            assert not crowded(kept)
    fresh = [batch for batch in staged if batch.micro_batch in chosen and (older is None or batch.staged_at >= older)]
    if fresh:  # taken for room: without the last of them there would not have been enough
        last = max(fresh, key=lambda batch: batch.micro_batch)
        assert crowded([*kept, *(b for b in staged if b.micro_batch in chosen and b.micro_batch >= last.micro_batch)])


def ref(micro_batch: int, partition: int, end: int, incarnation: str = LIFE) -> SpanRef:
    return SpanRef("orders", partition, incarnation, micro_batch, 0, end, end, 1, 1, 0, 0, (), "p", 0)


@pure
@given(
    st.lists(st.builds(ref, st.integers(0, 5), st.integers(0, 2), st.integers(0, 10), st.sampled_from(["a", "b"]))),
    st.dictionaries(st.tuples(st.just("orders"), st.integers(0, 2), st.sampled_from(["a", "b"])), st.integers(0, 10)),
)
def test_a_micro_batch_is_produced_when_every_span_is(spans: list[SpanRef], produced: dict[tuple[str, int, str], int]) -> None:
    done = produced_batches(spans, produced)
    for number in {span.micro_batch for span in spans}:
        safe = all(s.end <= produced.get((s.topic, s.partition, s.incarnation), -1) for s in spans if s.micro_batch == number)
        assert (number in done) == safe


names = st.sampled_from("abcdef")


@pure
@given(
    st.dictionaries(names, st.integers(0, 100)),
    st.sets(names),
    st.dictionaries(names, st.integers(0, 100)),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_live_and_young_files_stay(found: dict[str, float], live: set[str], evicted: dict[str, float], orphan: float, grace: float) -> None:
    files = [FoundFile(path, 1, modified) for path, modified in found.items()]
    gone = {file.path for file in removable_files(files, live, now=lambda: 100, orphan_age=orphan, evicted=evicted, grace=grace)}
    assert not gone & live
    for path in found.keys() - live:
        waited = evicted[path] if path in evicted else 100 - found[path]
        assert (path in gone) == (waited >= (grace if path in evicted else orphan))


@st.composite
def histories(draw: st.DrawFn) -> list[Send]:
    """Sends that tile two partitions the way a lane writes them."""
    sends: list[Send] = []
    for partition in range(draw(st.integers(1, 2))):
        source, target, ordinal = draw(st.integers(0, 5)), draw(st.integers(0, 5)), 0
        for length, dense, jump in draw(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 2)), min_size=1, max_size=8)):
            target += jump
            records = length if dense else 0
            cause = None if dense else HoleCause.COMPACTION
            facts = (source, source + length, "east.orders", target, target + records, records, ordinal, 0, cause)
            sends.append(Send("orders", partition, LIFE, *facts))
            source, target, ordinal = source + length, target + records, ordinal + records
    return sends


def starts(sends: list[Send]) -> dict[int, int]:
    return {s.partition: min(x.source_start for x in sends if x.partition == s.partition) for s in sends}


@pure
@given(histories(), st.randoms(use_true_random=False))
def test_positions_are_those_of_the_last_send(sends: list[Send], random: object) -> None:
    order = sorted(sends, key=lambda _: random.random())  # type: ignore[attr-defined]
    bound = replace(life({**starts(sends), 7: 3}), target_starts=dict.fromkeys(starts(sends), 0) | {7: 3})
    positions = fold_positions(sends_table(STORE, order, 0), {"orders": bound})
    expected = {TopicPartition("orders", s.partition): Position(s.source_end, s.target_end, s.ordinal + s.records) for s in sends}
    assert positions == {**expected, TopicPartition("orders", 7): Position(3, 3, 0)}


@pure
@given(histories())
def test_sends_of_another_life_do_not_count(sends: list[Send]) -> None:
    other = life({0: 4}, incarnation="other")
    assert fold_positions(sends_table(STORE, sends, 0), {"orders": other}) == {TopicPartition("orders", 0): Position(4, 4, 0)}
    assert fold_positions(sends_table(STORE, sends, 0), {}) == {}


@pure
@given(histories(), st.randoms(use_true_random=False))
def test_a_lanes_history_tiles(sends: list[Send], random: object) -> None:
    order = sorted(sends, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert faults(sends_table(STORE, order, 0), {"orders": life(starts(sends))}) == []


@pure
@given(histories(), st.data())
def test_any_single_change_of_a_history_is_found(sends: list[Send], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(sends) - 1))
    victim = sends[index]
    alone = sum(1 for s in sends if s.partition == victim.partition) == 1
    last = not alone and victim == [s for s in sends if s.partition == victim.partition][-1]
    changes = {
        "twice": [*sends, victim],
        "longer": [*sends[:index], replace(victim, source_end=victim.source_end + 1), *sends[index + 1 :]],
        "counted wrong": [*sends[:index], replace(victim, records=victim.records + 1), *sends[index + 1 :]],
        "earlier": [*sends[:index], replace(victim, source_start=victim.source_start - 1), *sends[index + 1 :]],
    }
    if not alone and not last:
        changes["lost"] = [*sends[:index], *sends[index + 1 :]]
    if victim.cause is not None and (last or alone):  # a hole may have any length: only its borders can be wrong
        del changes["longer"]
    changed = changes[data.draw(st.sampled_from(sorted(changes)))]
    assert faults(sends_table(STORE, changed, 0), {"orders": life(starts(sends))})


def test_faults_name_the_place() -> None:
    def put(start: int, end: int) -> Send:
        return Send("orders", 3, LIFE, start, end, "t", start, end, end - start, start, 0)

    assert faults(sends_table(STORE, [put(0, 5), put(6, 9)], 0), {})[0].startswith("orders[3]: the send of [6, 9) ")
    found = faults(sends_table(STORE, [put(0, 5), put(4, 9)], 0), {})
    assert "orders[3]: the send of [4, 9) overlaps the send before it" in found
    assert faults(sends_table(STORE, [], 0), {}) == []
    assert "starts at 0, the incarnation at 2" in faults(sends_table(STORE, [put(0, 5)], 0), {"orders": life({3: 2})})[0]


@pure
@given(histories())
def test_sends_survive_the_table(sends: list[Send]) -> None:
    assert to_sends(sends_table(STORE, sends, 5)) == sends


@pure
@given(
    st.lists(st.none() | st.text(max_size=5), max_size=20),
    st.lists(st.dictionaries(st.integers(0, 9), st.integers(-1, 9))),
)
def test_columns_built_from_buffers_say_what_arrow_says(
    texts: list[str | None], maps: list[dict[int, int]]
) -> None:
    words = columns.strings(texts)
    words.validate(full=True)
    assert words.equals(pa.array(texts, pa.string()))
    offsets = columns.offset_maps(maps)
    offsets.validate(full=True)
    assert [dict(row) for row in offsets.to_pylist()] == maps
    assert columns.times([1, 2]).equals(pa.array([1000, 2000], columns.TIME))

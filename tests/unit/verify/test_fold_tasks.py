"""The offset map as runs, and how stretches are cut for tasks."""

from __future__ import annotations

import pickle
import random

from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.offset_runs import Runs
from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.fold_tasks import Chunk, borders, deep_chunks, plan_chunks, sample, split

T = TopicPartition("t", 0)


@st.composite
def maps(draw: st.DrawFn) -> tuple[Runs, dict[int, int], int]:
    """Runs, the same as a table of source offset to target offset, and the end of the source range."""
    runs, table = Runs(), dict[int, int]()
    source, target = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    for length, hole, foreign in draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2)), max_size=8)):
        runs.add(source, target, length)
        table |= {source + n: target + n for n in range(length)}
        source, target = source + length + hole, target + length + foreign
    return runs, table, source


@given(maps(), st.integers(0, 60))
def test_runs_say_what_the_table_says(made: tuple[Runs, dict[int, int], int], at: int) -> None:
    runs, table, _ = made
    behind = [target for source, target in table.items() if source >= at]
    assert runs.to_target(at) == (min(behind) if behind else runs.target_end)
    back = {target: source for source, target in table.items()}
    assert runs.to_source(at) == back.get(at)
    later = [source for source, target in table.items() if target >= at]
    assert runs.source_at_or_after(at, 777) == (min(later) if later else 777)


@given(maps(), st.integers(0, 40), st.integers(0, 40))
def test_a_slice_is_the_same_map_of_fewer_offsets(made: tuple[Runs, dict[int, int], int], low: int, more: int) -> None:
    runs, table, _ = made
    part = pickle.loads(pickle.dumps(runs.slice(low, low + more)))  # noqa: S301 - our own bytes: it travels into tasks
    inside = {source: target for source, target in table.items() if low <= source < low + more}
    assert {source: part.to_target(source) for source in inside} == inside
    assert sum(part.length) == len(inside) == runs.records(low, low + more)
    assert part.target_end == runs.to_target(low + more)


def whole(start: int, end: int) -> Chunk:
    runs = Runs()
    runs.add(start, start + 1000, end - start)
    return Chunk(T, T, start, end, runs, first=True)


@given(st.integers(0, 5 * LEAF_OFFSETS), st.integers(1, 9 * LEAF_OFFSETS), st.integers(1, 4))
def test_parts_tile_the_chunk_at_borders_of_leaves(start: int, length: int, leaves: int) -> None:
    parts = split(whole(start, start + length), leaves)
    assert (parts[0].start, parts[-1].end) == (start, start + length)
    assert [a.end for a in parts[:-1]] == [b.start for b in parts[1:]]
    assert all(part.start % LEAF_OFFSETS == 0 for part in parts[1:])
    assert [part.first for part in parts] == [True, *[False] * (len(parts) - 1)]
    assert [a.runs.target_end for a in parts[:-1]] == [b.target_start for b in parts[1:]]
    assert all(part.end - part.start <= leaves * LEAF_OFFSETS for part in parts)


def test_every_slot_gets_work_and_nothing_twice() -> None:
    wholes = [whole(0, 100 * LEAF_OFFSETS), whole(5, 5)]
    parts = plan_chunks(wholes, slots=4)
    assert len(parts) >= 16
    assert sum(part.end - part.start for part in parts) == 100 * LEAF_OFFSETS
    assert borders(3, 3, 1) == []


def test_a_sample_is_a_part_of_every_partition() -> None:
    wholes = [whole(0, 400 * LEAF_OFFSETS), whole(0, 10)]
    parts = sample(wholes, 0.1, random.Random(1))
    assert sum(part.end - part.start for part in parts) == 40 * LEAF_OFFSETS + 10
    assert sample([whole(7, 7)], 0.5, random.Random(1)) == []


def test_differing_leaves_become_stretches_inside_the_chunk() -> None:
    chunk = whole(100, 50 * LEAF_OFFSETS - 7)
    found = [(part.start, part.end) for part in deep_chunks(chunk, [0, 1, 7, 49])]
    leaf = LEAF_OFFSETS
    assert found == [(100, 2 * leaf), (7 * leaf, 8 * leaf), (49 * leaf, 50 * leaf - 7)]
    assert len(deep_chunks(chunk, range(50))) == 4

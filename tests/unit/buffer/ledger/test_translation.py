"""Offsets through the offset map, both ways, over generations: the same as a table of every record says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.translation import ROW, OffsetState, PartitionMap, empty_maps, extend_maps
from mirror_pipeline.model import Incarnation, TopicPartition

T = TopicPartition("orders", 0)
Row = tuple[str, int, str, int, int, int, int, int]


@dataclass
class Copy:
    """One generation: its sends, and every record as (source, target)."""

    generation: Incarnation
    source: int
    target: int
    records: list[tuple[int, int]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, records: int, hole: int) -> None:
        name = self.generation.incarnation
        if records:
            self.records += [(self.source + n, self.target + n) for n in range(records)]
            end = (self.source + records, self.target, self.target + records, records)
            self.rows.append(("orders", 0, name, self.source, *end))
            self.source, self.target = self.source + records, self.target + records
        if hole:
            self.rows.append(("orders", 0, name, self.source, self.source + hole, self.target, self.target, 0))
            self.source += hole


def begin(number: int, topic_id: str, target_id: str, source: int, target: int) -> Copy:
    generation = Incarnation("orders", topic_id, "e", "w", "east.orders", target_id, {0: source}, {0: target}, 1_000 + number)
    return Copy(generation, source, target)


PIECES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=6)


@st.composite
def copies(draw: st.DrawFn) -> list[Copy]:
    """Generations as operators accept them: recreated, truncated, or copied again into another target topic."""
    made = [begin(0, "A", "X", draw(st.integers(0, 4)), draw(st.integers(0, 4)))]
    for number in range(1, draw(st.integers(1, 4)) + 1):
        last = made[-1]
        for records, hole in draw(PIECES):
            last.add(records, hole)
        kind = draw(st.sampled_from(["recreated", "truncated", "restarted"]))
        topic_id, target_id = last.generation.topic_id, last.generation.target_topic_id
        if kind == "recreated":
            made.append(begin(number, f"A{number}", target_id, draw(st.integers(0, 3)), last.target))
        elif kind == "truncated":
            cut = draw(st.integers(0, last.source))
            made.append(begin(number, f"{topic_id}/{number + 1}", target_id, cut, last.target))
        else:
            made.append(begin(number, f"{topic_id}/{number + 1}", f"X{number}", last.generation.starts[0], 0))
    for records, hole in draw(PIECES):
        made[-1].add(records, hole)
    return made


def table(rows: list[Row]) -> pa.Table:
    return pa.table({name: [row[n] for row in rows] for n, name in enumerate(ROW)}) if rows else pa.table({name: [] for name in ROW})


def mapped(made: list[Copy]) -> PartitionMap:
    maps = empty_maps([copy.generation for copy in made])
    assert extend_maps(maps, table([row for copy in made for row in copy.rows]))
    return maps[T]


def present(made: list[Copy]) -> list[tuple[int, int]]:
    """Records of the source's log as it is now that are in the target's log as it is now."""
    last = made[-1].generation
    kept: list[tuple[int, int]] = []
    for copy in made:
        if (copy.generation.topic_id, copy.generation.target_topic_id) == (last.topic_id, last.target_topic_id):
            kept = [row for row in kept if row[0] < copy.generation.starts[0]] + copy.records
    return kept


@given(copies(), st.integers(0, 60))
def test_a_source_offset_is_the_first_record_at_or_after_it(made: list[Copy], offset: int) -> None:
    found, last = mapped(made).to_target(offset), made[-1]
    later = [target for source, target in present(made) if source >= offset]
    if later:
        assert found.offset == min(later)
        assert (found.state is OffsetState.RECORD) == ((offset, found.offset) in present(made))
    elif offset > last.source:
        assert (found.offset, found.state) == (None, OffsetState.NOT_THERE_YET)
    else:
        assert found.offset == last.target
        assert (found.state is OffsetState.END) == (offset == last.source)


@given(copies(), st.integers(0, 60))
def test_a_target_offset_is_the_first_record_at_or_after_it(made: list[Copy], offset: int) -> None:
    found, last = mapped(made).to_source(offset), made[-1]
    here = [copy for copy in made if copy.generation.target_topic_id == last.generation.target_topic_id]
    later = [(target, source) for copy in here for source, target in copy.records if target >= offset]
    if offset > last.target:
        assert (found.offset, found.state) == (None, OffsetState.NOT_THERE_YET)
    elif later:
        assert found.offset == min(later)[1]
    else:
        assert found.offset == last.source


@given(copies(), st.integers(0, 60), st.data())
def test_an_earlier_generation_answers_by_its_own_runs(made: list[Copy], offset: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, len(made)))
    copy, found, past = made[number - 1], mapped(made).to_target(offset, number), number < len(made)
    later = [target for source, target in copy.records if source >= offset]
    if later:
        assert (found.offset, found.generation) == (min(later), number)
    elif offset > copy.source:
        assert (found.offset, found.state) == (None, OffsetState.ENDED if past else OffsetState.NOT_THERE_YET)
    else:
        assert found.offset == copy.target
    back = mapped(made).to_source(offset, number)
    earlier = [source for source, target in copy.records if target >= offset]
    assert back.offset == (min(earlier) if earlier else copy.source if offset <= copy.target else None)


@given(copies())
def test_there_and_back_is_the_same_record(made: list[Copy]) -> None:
    maps = mapped(made)
    for source, target in present(made):
        assert maps.to_target(source).offset == target
        assert maps.to_source(target).offset == source


@given(copies(), st.data())
def test_sends_that_come_again_joined_change_nothing(made: list[Copy], data: st.DataObject) -> None:
    """Maintenance joins rows: a reader that follows the ledger sees some of them again, as one longer row."""
    rows = [row for copy in made for row in copy.rows]
    known = data.draw(st.integers(0, len(rows)))
    maps = empty_maps([copy.generation for copy in made])
    assert extend_maps(maps, table(rows[:known]))
    dense = [row for row in rows if row[7]]
    joined = [
        (*a[:4], b[4], a[5], b[6], a[7] + b[7])
        for a, b in zip(dense, dense[1:], strict=False)
        if a[2] == b[2] and a[4] == b[3] and a[6] == b[5]
    ]
    assert extend_maps(maps, table(joined + rows))
    whole = mapped(made)
    assert [maps[T].to_target(offset) for offset in range(60)] == [whole.to_target(offset) for offset in range(60)]


def test_a_missing_send_is_noticed() -> None:
    copy = begin(0, "A", "X", 0, 0)
    copy.add(5, 1)
    copy.add(5, 0)
    maps = empty_maps([copy.generation])
    assert not extend_maps(maps, table([copy.rows[0], copy.rows[2]]))
    assert maps[T].to_target(7).state is OffsetState.NOT_THERE_YET


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (3, (100, OffsetState.BEFORE_START)),
        (10, (100, OffsetState.RECORD)),
        (14, (104, OffsetState.RECORD)),
        (16, (105, OffsetState.SKIPPED)),
        (18, (105, OffsetState.RECORD)),
        (21, (107, OffsetState.SKIPPED)),
        (22, (107, OffsetState.END)),
        (23, (None, OffsetState.NOT_THERE_YET)),
    ],
)
def test_positions_in_one_generation(offset: int, expected: tuple[int | None, OffsetState]) -> None:
    copy = begin(0, "A", "X", 10, 100)
    copy.add(5, 3)
    copy.add(2, 2)
    found = mapped([copy]).to_target(offset)
    assert (found.offset, found.state) == expected

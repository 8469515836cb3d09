from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.engine.tasks.write.offset_map import (
    advance,
    advance_over,
    advance_to,
    merge,
    records_before,
    segments,
    trailing_holes_only,
)
from mirror_pipeline.model import Hole, HoleCause, Position, Send, SpanRef

CAUSES = [HoleCause.MARKER, HoleCause.ABORTED, HoleCause.COMPACTION]


def span_of(start: int, kinds: list[HoleCause | None], micro_batch: int = 0) -> SpanRef:
    """A span whose offsets are records (None) or holes."""
    holes = tuple(Hole(start + i, start + i + 1, kind) for i, kind in enumerate(kinds) if kind is not None)
    records = sum(kind is None for kind in kinds)
    return SpanRef("t", 0, "id", micro_batch, start, start + len(kinds), records, records, 100 * records, 0, 0, holes, "p", 0)


def chain(layout: list[list[HoleCause | None]], start: int) -> list[SpanRef]:
    spans = []
    for number, kinds in enumerate(layout):
        spans.append(span_of(start, kinds, number))
        start += len(kinds)
    return spans


layouts = st.lists(st.lists(st.sampled_from([None, None, *CAUSES]), min_size=1, max_size=8), min_size=1, max_size=6)


@given(layouts, st.integers(0, 100), st.integers(0, 100), st.integers(0, 50), st.data())
def test_the_map_is_total_monotone_and_right(
    layout: list[list[HoleCause | None]], start: int, target: int, ordinal: int, data: st.DataObject
) -> None:
    spans = chain(layout, start)
    flat = [kind for kinds in layout for kind in kinds]
    total = sum(kind is None for kind in flat)
    position, sends = Position(start, target, ordinal), []
    while position.ordinal - ordinal < total or position.source_next < spans[-1].end:
        step = data.draw(st.integers(0, total - (position.ordinal - ordinal)))
        more, moved = advance(spans, position, step, target_topic="x")
        assert moved.ordinal == position.ordinal + step
        if step == 0 and moved == position:
            step = total - (position.ordinal - ordinal)
            more, moved = advance(spans, position, step, target_topic="x")
        assert moved != position  # else this would go on until Hypothesis gives the example up
        sends += more
        position = moved
    at_source, at_target = start, target
    for send in sends:
        assert (send.source_start, send.target_start) == (at_source, at_target)
        length = send.source_end - send.source_start
        assert length > 0
        kinds = set(flat[send.source_start - start : send.source_end - start])
        assert kinds == {send.cause}
        assert send.records == (length if send.cause is None else 0) == send.target_end - send.target_start
        at_source, at_target = send.source_end, send.target_end
    assert at_source == start + len(flat)
    assert at_target == target + total


@given(layouts, st.integers(0, 50))
def test_records_before_counts_records(layout: list[list[HoleCause | None]], start: int) -> None:
    kinds = [kind for part in layout for kind in part]
    span = span_of(start, kinds)
    for offset in range(start - 2, span.end + 3):
        assert records_before(span, offset) == sum(k is None for k in kinds[: max(0, offset - start)])


def test_trailing_holes_are_passed_with_the_last_record() -> None:
    spans = [span_of(0, [None, HoleCause.MARKER]), span_of(2, [HoleCause.ABORTED, None])]
    sends, position = advance(spans, Position(0, 10, 0), 1, target_topic="x")
    assert position == Position(3, 11, 1)
    assert [(s.source_start, s.source_end, s.cause) for s in sends] == [
        (0, 1, None), (1, 2, HoleCause.MARKER), (2, 3, HoleCause.ABORTED),
    ]  # fmt: skip


def test_a_missing_span_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"lacks source offsets \[1, 5\)"):
        advance([span_of(0, [None]), span_of(5, [None])], Position(0, 0, 0), 2, target_topic="x")


def test_more_records_on_the_target_than_staged_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 more records"):
        advance([span_of(0, [None])], Position(0, 0, 0), 2, target_topic="x")


def test_segments_start_inside_a_hole() -> None:
    span = SpanRef("t", 0, "id", 0, 0, 10, 6, 1, 0, 0, 0, (Hole(2, 6, HoleCause.COMPACTION),), "p", 0)
    assert list(segments(span, 4)) == [(4, 6, HoleCause.COMPACTION), (6, 10, None)]


def test_merge_joins_only_what_continues() -> None:
    def send(first: int, target: int, micro_batch: int = 0, cause: HoleCause | None = None) -> Send:
        records = 0 if cause else 5
        return Send("t", 0, "id", first, first + 5, "x", target, target + records, records, 0, micro_batch, cause)

    assert [s.source_end for s in merge([send(0, 0), send(5, 5), send(10, 10, 1)])] == [10, 15]
    assert len(merge([send(0, 0), send(5, 5, 0, HoleCause.MARKER), send(10, 5)])) == 3
    assert len(merge([send(0, 0), send(7, 5)])) == 2


def test_trailing_holes_only() -> None:
    span = span_of(0, [None, HoleCause.MARKER])
    assert not trailing_holes_only([span], Position(0, 0, 0))
    assert trailing_holes_only([span], Position(1, 1, 1))


@given(layouts, st.integers(0, 100), st.integers(0, 50), st.data())
def test_records_among_those_of_other_writers_are_where_they_landed(
    layout: list[list[HoleCause | None]], start: int, target: int, data: st.DataObject
) -> None:
    spans = chain(layout, start)
    total = sum(span.records for span in spans)
    landed, at, left = list[tuple[int, int]](), target, total
    while left:
        at += data.draw(st.integers(0, 3))
        count = data.draw(st.integers(1, left))
        landed.append((at, count))
        at, left = at + count, left - count
    sends, position = advance_over(spans, Position(start, target, 7), landed or [(target, 0)], target_topic="all")
    assert position == Position(spans[-1].end, at, 7 + total)
    offsets = [offset for send in sends for offset in range(send.target_start, send.target_end)]
    assert offsets == [first + number for first, count in landed for number in range(count)]
    assert [send.source_end for send in sends[:-1]] == [send.source_start for send in sends[1:]]
    assert all(send.cause is not None or send.source_end - send.source_start == send.records for send in sends)


@given(layouts, st.integers(0, 100), st.integers(0, 50), st.data())
def test_with_exact_offsets_the_end_of_the_log_is_the_position(
    layout: list[list[HoleCause | None]], start: int, ordinal: int, data: st.DataObject
) -> None:
    spans = chain(layout, start)
    flat = [kind for kinds in layout for kind in kinds]
    position, sends = Position(start, 0, ordinal), []
    ends = sorted(data.draw(st.lists(st.integers(0, start + len(flat)), max_size=6)))
    for end in [*ends, start + len(flat)]:
        more, position = advance_to(spans, position, end, target_topic="x")
        assert (position.target_next, position.source_next) == (end, max(start, end))
        assert position.ordinal == ordinal + sum(kind is None for kind in flat[: max(0, end - start)])
        sends += more
    assert [(s.source_start, s.source_end) for s in sends] == [(s.target_start, s.target_end) for s in sends]
    assert all(set(flat[s.source_start - start : s.source_end - start]) == {s.cause} for s in sends)
    assert sum(s.source_end - s.source_start for s in sends) == len(flat)


def test_a_target_that_ends_beyond_the_buffer_is_no_position() -> None:
    with pytest.raises(ValueError, match="ends at offset 9"):
        advance_to(chain([[None, None]], 5), Position(5, 5, 0), 9, target_topic="x")
    with pytest.raises(ValueError, match="lacks source offsets"):
        advance_to(chain([[None, None]], 7), Position(5, 5, 0), 9, target_topic="x")

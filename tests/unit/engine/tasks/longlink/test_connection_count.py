"""Cutting ranges into stretches, and how many connections read them."""

from __future__ import annotations

import time
from datetime import time as moment

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.engine.tasks.longlink.connection_count import GROWTH, MOST_CONNECTIONS, ConnectionCount, Throughput
from mirror_pipeline.engine.tasks.longlink.segments import SEGMENT_BYTES, SLACK_BATCHES, Attempt, Segment, cut, in_turn, stop_of
from mirror_pipeline.engine.tasks.read.short_fetch import MADE_UP_SECONDS, Throttle
from mirror_pipeline.model import OffsetRange

RANGES = st.builds(
    lambda number, start, length, size, each: OffsetRange("t", number, start, start + length, size, "id", bytes_per_offset=each),
    st.integers(0, 5), st.integers(0, 10**12), st.integers(1, 10**6), st.integers(1, 10**9), st.floats(0.5, 1e6),
)  # fmt: skip


def whole(planned: OffsetRange) -> list[Segment]:
    return cut(planned, planned.start, stop_of(planned))


@given(RANGES)
def test_stretches_tile_what_the_bytes_allow(planned: OffsetRange) -> None:
    mine = whole(planned)
    assert mine[0].start == planned.start
    assert all(a.end == b.start for a, b in zip(mine, mine[1:], strict=False))
    assert all(stretch.start < stretch.end and stretch.source == planned.source for stretch in mine)
    assert mine[-1].end == stop_of(planned) <= planned.end
    expected = (mine[-1].end - planned.start) * max(1.0, planned.bytes_per_offset)
    assert mine[-1].end == planned.end or expected >= 0.5 * planned.max_bytes


def test_partitions_take_turns() -> None:
    each = SEGMENT_BYTES / 100
    rows = [whole(OffsetRange("t", n, 0, 100 * (n + 2), 10**9, "id", bytes_per_offset=each)) for n in range(2)]
    assert [(s.source.partition, s.start) for s in in_turn(rows)] == [(0, 0), (1, 0), (0, 100), (1, 100), (1, 200)]


def test_batches_at_the_edges_of_stretches_are_few() -> None:
    large = 10**6
    for stretch in whole(OffsetRange("t", 0, 0, 1000, 10**9, "id", bytes_per_offset=1000, bytes_per_batch=large)):
        assert stretch.size >= 8 * large or stretch.end == 1000
        assert Attempt(stretch, stretch.start).left(0) == stretch.size + SLACK_BATCHES * large
        assert Attempt(stretch, stretch.start).left(1000) == stretch.size + SLACK_BATCHES * 1000, "as batches have turned out to be"


@pytest.mark.parametrize(
    ("round_trip", "asked", "tasks", "lines"),
    [
        (0.0005, None, 1, 0), (0.02, None, 1, 12), (0.2, None, 1, 120), (0.2, None, 2, 60), (2.0, None, 1, MOST_CONNECTIONS),
        (2.0, None, 4, MOST_CONNECTIONS // 4), (0.2, 1, 1, 0), (0.0005, 8, 1, 8),
    ],
)  # fmt: skip
def test_how_many_connections(round_trip: float, asked: int | None, tasks: int, lines: int) -> None:
    assert ConnectionCount().now(round_trip, asked, tasks=tasks) == lines


def learnt(count: ConnectionCount, each: float, line: float, measurements: int) -> list[int]:
    """The numbers used one after the other, where connections bring ``each`` to a line that takes ``line`` MB/s."""
    used = []
    for _ in range(measurements):
        used.append(count.now(0.02, None))
        count.brought(int(1e7 * min(line, each * used[-1])), 10.0)
    return used


@pytest.mark.parametrize(
    ("each", "line", "enough"), [(1.0, 100.0, 100), (0.5, 100.0, 200), (0.1, 100.0, MOST_CONNECTIONS), (9.0, 100.0, 12)]
)
def test_connections_are_added_while_they_bring_more(each: float, line: float, enough: int) -> None:
    """As many as fill the line, or a step more."""
    count = ConnectionCount()
    used = learnt(count, each, line, 100)[20:]
    settled = max(used, key=used.count)
    assert 0.9 * enough <= settled <= min(MOST_CONNECTIONS, GROWTH * enough)
    assert used.count(settled) >= 0.85 * len(used), "more are tried now and then only"
    before = count.now(0.02, None)
    for _ in range(1000):
        count.brought(10_000, 1.0)
    assert count.now(0.02, None) == before, "little traffic tells nothing"
    count.brought(10**9, 2.0)
    assert count.now(0.02, None) <= min(MOST_CONNECTIONS, GROWTH * before)


@pytest.mark.parametrize("measurements", range(12))
def test_tasks_that_share_a_line_never_open_more_than_one_would(measurements: int) -> None:
    """Settled or being tried, whatever was learnt while fewer tasks read at once."""
    count = ConnectionCount()
    learnt(count, 1.0, 30.0, measurements)
    assert count.now(2.0, None, tasks=32) <= MOST_CONNECTIONS // 32


def test_a_line_that_changes_is_noticed() -> None:
    count = ConnectionCount()
    assert max(learnt(count, 9.0, 100.0, 50)) == int(12 * GROWTH)
    assert max(learnt(count, 0.5, 100.0, 12)) > 150, "packets are lost now, each connection brings less: more are tried at once"


def test_what_comes_while_connections_start_is_no_measure_of_them() -> None:
    throughput = Throughput()
    for second in (10.0, 11.0):
        throughput.stands(1.0, second)
        throughput.brought(500, second, connections=2)
    assert (throughput.began, throughput.bytes, throughput.idle) == (11.0, 0, 0.0)
    throughput.stands(0.25, 12.0)
    throughput.brought(700, 13.0, connections=2)
    throughput.stands(0.0, 14.0)
    throughput.stands(0.5, 20.0)
    assert (throughput.began, throughput.bytes, throughput.idle) == (11.0, 700, 1.0 + 0.5)
    throughput.starts()
    for second in (21.0, 22.0, 23.0):
        assert (throughput.began, throughput.bytes, throughput.idle) == (None, 700, 1.0 + 0.5)
        throughput.brought(900, second, connections=3)
    assert (throughput.began, throughput.bytes) == (23.0, 700)


def test_the_limit_holds_for_all_threads_together() -> None:
    throttle = Throttle(1_000_000)
    began = time.monotonic()
    for _ in range(5):
        throttle.pause(40_000)
    assert time.monotonic() - began >= 0.19


def test_the_limit_is_reached_though_each_answer_costs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds + 0.002))
    throttle = Throttle(1_000_000)
    for _ in range(100):
        throttle.pause(20_000)
        now[0] += 0.004
    assert now[0] == pytest.approx(102.0, abs=0.01)
    now[0] += 60  # what was not used for longer is lost
    for _ in range(100):
        throttle.pause(20_000)
    assert now[0] == pytest.approx(162.0 + 2.0 - MADE_UP_SECONDS, abs=0.01)


def test_the_limit_of_the_hour() -> None:
    engine = EngineConfig(bandwidth=100, bandwidth_hours={"08:00-18:00": 20, "22:30-06:00": 50, "07:00-07:30": 0})
    assert [engine.bandwidth_at(moment(*at)) for at in ((8, 0), (17, 59), (18, 0), (23, 0), (5, 59), (6, 0), (7, 10))] == [
        20, 20, 100, 50, 50, 100, None,
    ]  # fmt: skip

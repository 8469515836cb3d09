"""Cutting ranges into stretches, and how many connections read them."""

from __future__ import annotations

import threading
import time
from datetime import time as moment

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.engine.lines import MOST_LINES, LineCount
from mirror_pipeline.engine.wide import STRETCH_BYTES, Gathering, Throttle, stretches
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.model import OffsetRange
from mirror_pipeline.wire.connection import Connection

RANGES = st.builds(
    lambda number, start, length, size, each: OffsetRange("t", number, start, start + length, size, "id", bytes_per_offset=each),
    st.integers(0, 5), st.integers(0, 10**12), st.integers(1, 10**6), st.integers(1, 10**9), st.floats(0.5, 1e6),
)  # fmt: skip


@given(st.lists(RANGES, max_size=5, unique_by=lambda r: r.partition))
def test_stretches_tile_what_the_bytes_allow(ranges: list[OffsetRange]) -> None:
    cut = stretches(ranges)
    for planned in ranges:
        mine = [s for s in cut if s.source == planned.source]
        assert mine[0].start == mine[0].next == planned.start
        assert all(a.end == b.start for a, b in zip(mine, mine[1:], strict=False))
        assert mine[-1].end <= planned.end
        expected = (mine[-1].end - planned.start) * max(1.0, planned.bytes_per_offset)
        assert mine[-1].end == planned.end or expected >= 0.5 * planned.max_bytes
    for stretch in cut:
        assert stretch.start < stretch.end


def test_partitions_take_turns() -> None:
    each = STRETCH_BYTES / 100
    cut = stretches([OffsetRange("t", n, 0, 300, 10**9, "id", bytes_per_offset=each) for n in range(2)])
    assert [(s.source.partition, s.start) for s in cut] == [(0, 0), (1, 0), (0, 100), (1, 100), (0, 200), (1, 200)]


def test_batches_at_the_edges_of_stretches_are_few() -> None:
    large = 10**6
    cut = stretches([OffsetRange("t", 0, 0, 1000, 10**9, "id", bytes_per_offset=1000, bytes_per_batch=large)])
    assert all(stretch.size >= 8 * large or stretch.end == 1000 for stretch in cut)
    assert all(stretch.left >= min(stretch.size, 8 * large) + 2 * large for stretch in cut)


@pytest.mark.parametrize(
    ("round_trip", "asked", "tasks", "lines"),
    [
        (0.0005, None, 1, 0), (0.02, None, 1, 20), (0.2, None, 1, 200), (0.2, None, 2, 100), (2.0, None, 1, MOST_LINES),
        (2.0, None, 4, MOST_LINES // 4), (0.2, 1, 1, 0), (0.0005, 8, 1, 8),
    ],
)  # fmt: skip
def test_how_many_connections(round_trip: float, asked: int | None, tasks: int, lines: int) -> None:
    assert LineCount().now(round_trip, asked, tasks=tasks) == lines


@pytest.mark.parametrize(("each", "line", "enough"), [(1.0, 100.0, 100), (0.5, 100.0, 200), (0.1, 100.0, MOST_LINES), (9.0, 100.0, 20)])
def test_connections_are_added_while_they_bring_more(each: float, line: float, enough: int) -> None:
    """Connections that bring ``each`` to a line that takes ``line``: as many as fill it, and a step or two more."""
    count = LineCount()
    for _ in range(50):
        count.brought(int(1e7 * min(line, each * count.now(0.02, None))), 10.0)
    learnt = count.now(0.02, None)
    assert 0.9 * enough <= learnt <= min(MOST_LINES, 1.7 * max(enough, 20))
    for _ in range(1000):
        count.brought(10_000, 1.0)  # little traffic
    count.brought(10**9, 1.0)
    assert count.now(0.02, None) <= min(MOST_LINES, 1.3 * learnt)


def test_the_limit_holds_for_all_threads_together() -> None:
    throttle = Throttle(1_000_000)
    began = time.monotonic()
    for _ in range(5):
        throttle.pause(40_000)
    assert time.monotonic() - began >= 0.19


def test_the_limit_of_the_hour() -> None:
    engine = EngineConfig(bandwidth=100, bandwidth_hours={"08:00-18:00": 20, "22:30-06:00": 50, "07:00-07:30": 0})
    assert [engine.bandwidth_at(moment(*at)) for at in ((8, 0), (17, 59), (18, 0), (23, 0), (5, 59), (6, 0), (7, 10))] == [
        20, 20, 100, 50, 50, 100, None,
    ]  # fmt: skip


def test_when_all_connections_fail_at_once_nobody_waits_for_ever() -> None:
    """Two threads that give up together must not each take the other for one that goes on."""
    for _ in range(50):
        together = threading.Barrier(4)

        def fail(together: threading.Barrier = together) -> Connection:
            together.wait(10)
            raise ConnectionLost("gone")

        waiting = stretches([OffsetRange("t", n, 0, 1000, 10**9, "id", bytes_per_offset=STRETCH_BYTES / 10) for n in range(2)])
        gathering = Gathering(waiting, [fail] * 4, deadline=time.monotonic() + 60, pause=lambda size: None)
        assert all(stretch.ready.wait(10) and isinstance(stretch.problem, ConnectionLost) for stretch in waiting)
        gathering.end()

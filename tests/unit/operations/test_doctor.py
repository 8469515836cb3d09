"""The formula of one connection, and what is said of a link."""

from __future__ import annotations

import pytest

from mirror_pipeline.operations.doctor import DEFAULT_BUFFER, LinkReport, judged, one_connection, under_way


@pytest.mark.parametrize(
    ("bandwidth", "trip", "flight", "rate"),
    [
        (125e6, 0.2, 124e3, 0.617e6),  # 1 Gbit/s, 200 ms: a round trip for each window
        (125e6, 0.0, 124e3, 125e6),  # no distance: the line
        (1e6, 0.1, 1e8, 0.999e6),  # a window that never ends: the line
        (1e15, 0.1, 1e5, 1e6),  # a line without limit: a window in each round trip
    ],
)
def test_one_connection_carries_a_window_in_a_round_trip(bandwidth: float, trip: float, flight: float, rate: float) -> None:
    assert one_connection(bandwidth, trip, flight) == pytest.approx(rate, rel=1e-3)
    if trip:
        assert under_way(bandwidth, trip, one_connection(bandwidth, trip, flight)) == pytest.approx(flight, rel=0.1)


def test_many_connections_carry_no_more_than_the_line() -> None:
    link = LinkReport("east", "source", 0.1, DEFAULT_BUFFER, None, 100_000, 50e6, 1e6, 1.1e6, connections=60)
    assert link.expected == 50e6
    text = judged(link).detail
    assert "1.0 MB/s = B*D/(B*RTT + D) with B 50.0 MB/s, RTT 100.0 ms, D 100.0 kB" in text and "measured 1.1 MB/s" in text
    assert "socket.send.buffer.bytes=-1" in text
    near = LinkReport("west", "target", 0.001, DEFAULT_BUFFER, None)
    assert near.expected is None and "socket" not in judged(near).detail

"""Sizes, durations and times as written by people."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.config import format_duration, format_size, parse_duration, parse_size, parse_time
from mirror_pipeline.units import DURATION_TEXT, SIZE_TEXT


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MB", 256_000_000),
        ("50GB", 50 * 10**9),
        ("32MiB", 2**25),
        ("1 TiB", 2**40),
        ("1.5kB", 1500),
        ("1K", 1000),
        ("7", 7),
        ("7B", 7),
        (12, 12),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "5XB", "5MBB", "1iB", True, None, 1.5, "٣MB"])
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400), ("30m", 1800), ("90s", 90), ("7d", 604_800), ("1h30m", 5400), ("500ms", 0.5), ("2w", 1_209_600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "24", 24, "h", "1.5h", "-1h", "1 day", None, True])
def test_no_durations(text: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_times_need_a_zone() -> None:
    assert parse_time("2026-03-01T02:00:00+02:00") == datetime(2026, 3, 1, tzinfo=UTC)
    assert parse_time("2026-03-01 00:00:00Z") == datetime(2026, 3, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="has no zone"):
        parse_time("2026-03-01")


@given(st.integers(0, 10**16))
def test_formatted_sizes_read_back(size: int) -> None:
    text = format_size(size)
    assert parse_size(text) == size
    assert re.match(SIZE_TEXT, text)


@given(st.integers(1, 10**11))
def test_formatted_durations_read_back(milliseconds: int) -> None:
    text = format_duration(milliseconds / 1000)
    assert parse_duration(text) == pytest.approx(milliseconds / 1000, abs=0.001)
    assert re.match(DURATION_TEXT, text)

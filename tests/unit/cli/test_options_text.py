from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline import text
from mirror_pipeline.errors import UsageError

NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "unknown"),
        (0.0, "0.0 s"),
        (0.42, "0.4 s"),
        (12.4, "12 s"),
        (59.7, "1 m 00 s"),
        (130, "2 m 10 s"),
        (11_100, "3 h 05 m"),
        (187_200, "2 d 4 h"),
    ],
)
def test_duration(seconds: float | None, said: str) -> None:
    assert text.duration(seconds) == said


@pytest.mark.parametrize(("number", "said"), [(None, "?"), (0, "0 B"), (999, "999 B"), (93_400_000, "93.4 MB"), (15 * 10**11, "1.5 TB")])
def test_size(number: int | None, said: str) -> None:
    assert text.size(number) == said


def test_counts_and_rates() -> None:
    assert text.count(1_234_567) == "1,234,567"
    assert text.plural(1, "record") == "1 record"
    assert text.plural(1234, "record") == "1,234 records"
    assert text.rate(93_440_000) == "93.4 MB/s"


@pytest.mark.parametrize(("values", "line"), [([], ""), ([0, 0], "▁▁"), ([0, 1, 4, 8], "▁▂▅█"), ([5], "█")])
def test_sparkline(values: list[float], line: str) -> None:
    assert text.sparkline(values) == line


@given(st.lists(st.floats(0, 1e15), max_size=60))
def test_sparkline_has_a_bar_a_value_and_keeps_zero_on_the_ground(values: list[float]) -> None:
    line = text.sparkline(values)
    assert len(line) == len(values)
    assert all((bar == "▁") == (value == 0) for bar, value in zip(line, values, strict=True))


@pytest.mark.parametrize(("written", "seconds"), [("30m", 1800), ("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("1h 30m", 5400)])
def test_parse_duration(written: str, seconds: float) -> None:
    assert text.parse_duration(written) == seconds


@pytest.mark.parametrize("written", ["", "30", "m", "-5m", "0s", "1x", "30 minutes"])
def test_parse_duration_refuses(written: str) -> None:
    with pytest.raises(UsageError) as refused:
        text.parse_duration(written)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("2026-11-21T14:00:00Z", 1_795_269_600_000),
        ("2026-11-21T15:00:00.250+01:00", 1_795_269_600_250),
        ("now", 1_795_269_600_000),
        ("-2h", 1_795_262_400_000),
        (" -1h30m ", 1_795_264_200_000),
    ],
)
def test_parse_time(written: str, milliseconds: int) -> None:
    assert text.parse_time(written, NOW) == milliseconds


def test_a_time_without_zone_is_refused_with_what_to_write() -> None:
    with pytest.raises(UsageError, match="no zone.*2026-11-21T14:00:00Z"):
        text.parse_time("2026-11-21T14:00:00", NOW)


@pytest.mark.parametrize("written", ["", "yesterday", "2h", "--2h", "2026-13-01T00:00:00Z"])
def test_parse_time_refuses(written: str) -> None:
    with pytest.raises(UsageError):
        text.parse_time(written, NOW)


@given(st.integers(-(2**63), 2**63 - 1))
def test_instant_never_fails(milliseconds: int) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|-?\d+ ms", text.instant(milliseconds))

"""Numbers and times in human-readable form: ``1,234,567``, ``93.4 MB/s``, ``2 m 10 s``, ``-2h``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from mirror_pipeline import units
from mirror_pipeline.errors import UsageError

# Topics, partitions or groups that a sentence names; it counts the others.
SHOWN_NAMES = 5
_BARS = "▁▂▃▄▅▆▇█"


def count(number: int) -> str:
    """``1234567`` as ``1,234,567``."""
    return f"{number:,}"


def few(lines: Sequence[str], more: str = "more") -> list[str]:
    """The first SHOWN_NAMES of some lines, and a line that says how many ``more`` there are."""
    rest = len(lines) - SHOWN_NAMES
    return [*lines[:SHOWN_NAMES], *([f"and {rest} {more}"] if rest > 0 else [])]


def plural(number: int, word: str) -> str:
    """``1 record``, ``1,234 records``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def size(number: float | None) -> str:
    """Bytes in decimal units: ``93.4 MB``; ``?`` when unknown."""
    return "?" if number is None else units.rounded_size(number)


def rate(bytes_per_second: float) -> str:
    """A throughput, always in MB/s so that two of them compare at a glance."""
    return f"{bytes_per_second / 1e6:,.1f} MB/s"


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``2 m 10 s``, ``3 h 05 m``, ``2 d 4 h``; ``unknown`` for None."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def instant(milliseconds: int) -> str:
    """Milliseconds since the epoch as UTC: ``2026-11-21T14:00:00Z``; whole seconds."""
    try:
        return datetime.fromtimestamp(milliseconds // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # record timestamps may be any int64
        return f"{milliseconds} ms"


def since(moment: float | None) -> str:
    """`` since 2026-11-21T14:00:00Z``, of seconds since the epoch; nothing if that is not known."""
    return "" if moment is None else f" since {instant(int(moment * 1000))}"


def clock(moment: float) -> str:
    """Seconds since the epoch as local time of day; with the date unless it is today."""
    at, today = datetime.fromtimestamp(moment).astimezone(), datetime.now().astimezone().date()
    return f"{at:%H:%M}" if at.date() == today else f"{at:%Y-%m-%d %H:%M}"


def sparkline(values: Sequence[float]) -> str:
    """One bar a value, scaled from zero to the greatest; zeros stay on the ground."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[0] if v <= 0 else _BARS[min(7, 1 + int(v / top * 6.999))] for v in values)


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``1h30m``, ``2d``, as in mirror.yaml; UsageError for anything else, and for no time at all."""
    try:
        seconds = units.parse_duration(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a duration", hint="write it as 90s, 30m, 1h30m or 2d") from None
    if seconds <= 0:
        raise UsageError(f"'{text}' is zero", hint="write a duration above zero, such as 30m")
    return seconds


def parse_time(text: str, now: datetime) -> int:
    """Milliseconds since the epoch of ISO-8601 with a zone, ``now``, or time before now as ``-2h``.

    Raises:
        UsageError: no such form, or a time without zone (two readers would take it for two instants).
    """
    plain = text.strip()
    if plain.lower() == "now":
        return _milliseconds(now)
    if plain.startswith("-"):
        return _milliseconds(now) - round(parse_duration(plain[1:]) * 1000)
    try:
        return _milliseconds(units.parse_time(plain))
    except ValueError as error:
        raise UsageError(str(error), hint="or write time before now as -2h, or the word now") from None


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)

"""Sizes, durations and times as written in mirror.yaml."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

SIZE_TEXT = r"^[0-9]+(\.[0-9]+)? ?([kKMGT]i?)?B?$"
DURATION_TEXT = r"^([0-9]+(ms|s|m|h|d|w))+$"
TIME_TEXT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+(Z|z|[+-][0-9]{2}:?[0-9]{2})$"

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kKMGT]?)(i?)B?", re.ASCII)
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d|w)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(value: object) -> int:
    """Bytes of ``50GB`` (decimal, 10**9), ``256MiB`` (binary, 2**20) or a plain number of bytes.

    Raises:
        ValueError: the text is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('not a size; write "256MB", "50GB", "512KiB" or a number of bytes')
    number, unit, binary = match.groups()
    if binary and not unit:
        raise ValueError('not a size; write "512KiB" or "512B"')
    step = 1024 if binary else 1000
    power = " KMGT".index(unit.upper() or " ")
    return int((Decimal(number) * Decimal(step**power)).to_integral_value())


def parse_duration(value: object) -> float:
    """Seconds of ``24h``, ``30m``, ``90s``, ``1h30m``, ``7d``, ``500ms``; a unit is required.

    Raises:
        ValueError: the text is no duration.
    """
    text = value.strip().replace(" ", "") if isinstance(value, str) else ""
    if not text or _DURATION.sub("", text):
        example = f'; did you mean "{value}s"?' if isinstance(value, int | float) and not isinstance(value, bool) else ""
        raise ValueError(f'not a duration; write "24h", "30m", "90s" or "7d"{example}')
    return sum(int(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def parse_time(value: str) -> datetime:
    """A moment in UTC from ISO-8601 text with a zone (``2026-03-01T00:00:00Z``, ``...+02:00``).

    Raises:
        ValueError: not a time, or a time without zone (which machine's midnight would it be?).
    """
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(f'"{value}" is not a time; write it as 2026-03-01T00:00:00Z') from None
    if moment.tzinfo is None:
        text = moment.isoformat()
        raise ValueError(f'time "{value}" has no zone; write {text}Z for UTC or {text}+02:00')
    return moment.astimezone(UTC)


def format_size(count: int) -> str:
    """``256MB`` for 256000000, ``32MiB`` for 33554432, otherwise the number of bytes."""
    for step, infix in ((1000, ""), (1024, "i")):
        for power, unit in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
            if count and count % step**power == 0:
                return f"{count // step**power}{unit if infix or power > 1 else 'k'}{infix}B"
    return str(count)


def rounded_size(count: float) -> str:
    """Bytes for reading, to a tenth of a decimal unit: ``93.4 MB``."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:,.0f} B"


def format_duration(seconds: float) -> str:
    """``24h`` for 86400, ``7d`` for 604800, ``90s`` for 90, ``500ms`` for 0.5."""
    if seconds != int(seconds):
        return f"{round(seconds * 1000)}ms"
    if seconds > 86400 and seconds % 86400 == 0:
        return f"{int(seconds) // 86400}d"
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{int(seconds) // size}{unit}"
    return f"{int(seconds)}s"

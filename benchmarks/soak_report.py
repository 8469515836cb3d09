"""The results of the soak: a table, and the bounds that must hold."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirror_pipeline.text import sparkline

# Shorter runs are mostly start-up: their memory is printed but not checked.
FLAT_MINUTES = 20.0
# Over the second half a process may grow by this share, or by this number of bytes.
GROWTH_SHARE, GROWTH_BYTES = 0.05, 32 * 2**20
LOG_FILES = 6_000
LIVE_FILES = 1_000
# The first part of a run, while logs fill up to their retention.
WARM_SHARE = 0.25
SIZES = ("disk", "spans", "ledger", "logs", "unverified", "driver", "jvm", "workers")
COUNTS = ("log_files", "live_files", "lag")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: seconds since the start, bytes on disk by kind, files, lag, resident bytes by process kind."""

    seconds: float
    disk: int
    spans: int
    ledger: int
    logs: int
    log_files: int
    live_files: int
    unverified: int
    lag: int
    lag_seconds: float
    full: bool
    maintenance_error: str
    driver: int
    jvm: int
    workers: int


def growth(samples: Sequence[Sample], name: str) -> float:
    """How much the fitted line rises over the second half of the run, in bytes."""
    half = samples[len(samples) // 2 :]
    if len(half) < 3:
        return 0.0
    times = [s.seconds for s in half]
    line = statistics.linear_regression(times, [float(getattr(s, name)) for s in half])
    return line.slope * (times[-1] - times[0])


def bounds_broken(samples: Sequence[Sample], outcome: dict[str, Any], *, cap: int, minutes: float) -> list[str]:
    """The bounds that did not hold, one line each."""
    warm = samples[int(len(samples) * WARM_SHARE) :] or samples
    broken = []
    for name, limit in (("disk", cap), ("log_files", LOG_FILES), ("live_files", LIVE_FILES)):
        worst = max(getattr(s, name) for s in samples)
        if worst > limit:
            broken.append(f"{name} reached {worst:,}, more than {limit:,}")
    half = len(warm) // 2
    before, after = (max((s.log_files for s in part), default=0) for part in (warm[:half], warm[half:]))
    if minutes >= FLAT_MINUTES and after > 1.25 * before + 100:
        broken.append(f"log files still grow: {before} at most in the first half, {after} in the second")
    for name in ("driver", "jvm", "workers"):
        more, mean = growth(samples, name), statistics.fmean(getattr(s, name) for s in samples)
        if minutes >= FLAT_MINUTES and more > max(GROWTH_SHARE * mean, GROWTH_BYTES):
            broken.append(f"{name} grew by {more / 2**20:.0f} MB over the second half of the run")
    if outcome["lag_left"] or outcome["run_code"]:
        broken.append(f"lag {outcome['lag_left']} was left, the run ended with code {outcome['run_code']}")
    if not outcome["verify"].get("ok"):
        broken.append(f"verify: {str(outcome['verify'])[:500]}")
    return broken


def print_table(samples: Sequence[Sample], outcome: dict[str, Any], *, cap: int) -> None:
    """A row for each measure: start, quarters, worst, and its course."""
    marks = [samples[min(len(samples) - 1, len(samples) * part // 4)] for part in range(4)] + [samples[-1]]
    print(f"{'':12}" + "".join(f"{f'{m.seconds / 60:.1f} min':>12}" for m in marks) + f"{'worst':>12}{'2nd half':>12}  course")
    for name in (*SIZES, *COUNTS):
        size = name in SIZES
        values = [getattr(s, name) for s in samples]

        def shown(value: float, size: bool = size) -> str:
            return f"{value / 1e6:,.1f} MB" if size else f"{value:,.0f}"

        row = "".join(f"{shown(getattr(m, name)):>12}" for m in marks)
        rise = f"{growth(samples, name) / (1e6 if size else 1):+,.1f}"
        print(f"{name:12}{row}{shown(max(values)):>12}{rise:>12}  {sparkline(_thin(values))}")
    waits = sum(s.full for s in samples)
    print(f"cap {cap / 1e6:,.0f} MB; reading waited in {waits} of {len(samples)} samples; maintenance errors: {_errors(samples)}")
    verified = outcome["verify"]
    print(f"produced {outcome['produced_records']:,} records, {outcome['aborted_records']:,} aborted; verify ok: {verified.get('ok')}, "
          f"{verified.get('records')} records compared")  # fmt: skip


def _thin(values: Sequence[int], most: int = 40) -> list[int]:
    step = max(1, len(values) // most)
    return [max(values[at : at + step]) for at in range(0, len(values), step)]


def _errors(samples: Sequence[Sample]) -> str:
    return "; ".join(sorted({s.maintenance_error for s in samples if s.maintenance_error})) or "none"

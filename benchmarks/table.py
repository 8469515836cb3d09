"""Results on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bars import link_label

WIDTH = 172
Column = tuple[str, str, float]
"""Figure, format, unit."""
ORDER = ("ours", "inproc", "limit", "tuned", "default")


def one_line(kind: str, found: Mapping[str, Any]) -> str:
    """What one round gave, for the progress lines."""
    if "failed" in found:
        return f"FAILED: {found['failed']}"
    if kind == "idle":
        return f"{found['idle_cpu_share']:.1%} of a core while idle"
    if kind == "latency":
        return f"p50 {found['p50_ms']:.0f} ms, p99 {found['p99_ms']:.0f} ms, max {found['max_ms']:.0f} ms"
    spark = f", {found['spark_share']:.0%} by Spark" if "spark_share" in found else ""
    return (
        f"{found['mb_per_second']:.0f} MB/s ({found['warm_mb_per_second']:.0f} warm), {found['records_per_second']:,.0f} records/s, "
        f"{found['mb_per_cpu_second']:.0f} MB per CPU-second, first record after {found['startup_seconds']:.1f} s{spark}"
    )


def show(document: Mapping[str, Any]) -> None:
    """All workloads: a table for each kind."""
    console = Console()
    if console.width < WIDTH:  # a narrow terminal wraps lines better than cells
        console = Console(width=WIDTH)
    for kind, columns in COLUMNS.items():
        entries = [entry for entry in document["workloads"] if entry["workload"]["kind"] == kind]
        if entries:
            console.print(_table(kind, measured(columns, entries), entries))


def measured(columns: Mapping[str, Column], entries: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """The columns that have a figure in any row."""
    keys = {key for entry in entries for figures in entry["medians"].values() for key in figures}
    return {heading: column for heading, column in columns.items() if column[0] in keys}


COLUMNS: dict[str, dict[str, Column]] = {
    "bulk": {
        "MB/s": ("mb_per_second", ".0f", 1),
        "% of limit": ("limit_share", ".0f", 0.01),
        "Spark %": ("spark_share", ".0f", 0.01),
        "warm": ("warm_mb_per_second", ".0f", 1),
        "k rec/s": ("records_per_second", ".0f", 1e3),
        "MB/CPU-s": ("mb_per_cpu_second", ".0f", 1),
        "k rec/CPU-s": ("records_per_cpu_second", ".0f", 1e3),
        "brokers CPU-s": ("broker_cpu_seconds", ".1f", 1),
        "start s": ("startup_seconds", ".1f", 1),
        "total s": ("total_seconds", ".1f", 1),
        "RSS MB": ("peak_rss_bytes", ".0f", 1e6),
        "process MB": ("peak_process_bytes", ".0f", 1e6),
    },
    "idle": {
        "idle CPU-s": ("idle_cpu_seconds", ".2f", 1),
        "% of a core": ("idle_cpu_share", ".1f", 0.01),
        "brokers CPU-s": ("broker_cpu_seconds", ".2f", 1),
        "copied after s": ("total_seconds", ".1f", 1),
        "RSS MB": ("peak_rss_bytes", ".0f", 1e6),
    },
    "latency": {
        "p50 ms": ("p50_ms", ".0f", 1),
        "p90 ms": ("p90_ms", ".0f", 1),
        "p99 ms": ("p99_ms", ".0f", 1),
        "max ms": ("max_ms", ".0f", 1),
        "% of a core": ("cpu_share", ".0f", 0.01),
        "RSS MB": ("peak_rss_bytes", ".0f", 1e6),
    },
}
"""By kind of workload and heading."""

RATIO_COLUMNS = {
    "bulk": (("x wall", "wall"), ("x CPU", "per_cpu")),
    "idle": (("x CPU", "idle_cpu"),),
    "latency": (("x p50", "p50"), ("x p99", "p99")),
}


def _table(kind: str, columns: Mapping[str, Column], entries: list[Mapping[str, Any]]) -> Table:
    table = Table(title=f"{kind} (medians; x: how many times better Mirror Pipeline is)")
    table.add_column("workload")
    table.add_column("side")
    for heading in (*columns, *(name for name, _ in RATIO_COLUMNS[kind])):
        table.add_column(heading, justify="right")
    for entry in entries:
        for side in (name for name in ORDER if name in {found["side"] for found in entry["rounds"]}):
            middle = entry["medians"].get(side)
            cells = [figure(middle, *how) for how in columns.values()] if middle else ["failed", *[""] * (len(columns) - 1)]
            versus = [_ratio(entry, side, key) for _, key in RATIO_COLUMNS[kind]]
            table.add_row(link_label(entry) if "link" in entry else entry["workload"]["name"], side, *cells, *versus)
        table.add_section()
    return table


def figure(middle: Mapping[str, float], key: str, how: str, unit: float) -> str:
    """A median as the tables show it; empty when it was not measured."""
    return f"{middle[key] / unit:,{how}}" if key in middle else ""


def _ratio(entry: Mapping[str, Any], side: str, key: str) -> str:
    found = entry["ratios"].get(side, {}).get(key)
    return f"{found:.2f}" if found else ""

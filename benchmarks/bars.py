"""Bar charts as SVG, written by hand: no plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.sides import TITLES

COLOURS = {"ours": "#1f6feb", "inproc": "#79b8ff", "limit": "#1a7f37", "tuned": "#8c959f", "default": "#d0d7de"}
CHARTS = {
    "wall": ("bulk", "mb_per_second", 1.0, "MB/s of source log copied in the steady state, more is better"),
    "cpu": ("bulk", "records_per_cpu_second", 1e3, "thousand records per CPU-second of the mirror, more is better"),
    "memory": ("bulk", "peak_rss_bytes", 1e6, "peak memory of all the mirror's processes in MB, less is better"),
    "latency": ("latency", "p99_ms", 1.0, "99th percentile of latency in ms at 5 MB/s, less is better"),
    "idle": ("idle", "idle_cpu_share", 0.01, "% of one core while 1,000 topics are idle, less is better"),
}
WAN_TITLE = "MB/s of source log copied over a long link, more is better"
WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 720, 170, 60, 14, 12, 56
LEGEND_STEP, LEGEND_ROW = 175, 17

Group = tuple[str, Sequence[tuple[str, float]]]
"""A label, and side and value of each of its bars."""


def chart(title: str, groups: Sequence[Group]) -> str:
    """Horizontal bars in groups, with their values; as wide as the largest value allows."""
    largest = max((value for _, bars in groups for _, value in bars), default=1.0) or 1.0
    legend, top = _legend({side for _, bars in groups for side, _ in bars})
    height = top + sum(BAR * len(bars) + GAP for _, bars in groups)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="18" font-size="14" fill="#1f2328">{escape(title)}</text>',
        *legend,
    ]
    for label, bars in groups:
        middle = top + BAR * len(bars) / 2 + 4
        lines.append(f'<text x="{LEFT - 8}" y="{middle:g}" text-anchor="end" fill="#1f2328">{escape(label)}</text>')
        for side, value in bars:
            width = max(1.0, (WIDTH - LEFT - RIGHT) * value / largest)
            lines.append(f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 2}" fill="{COLOURS[side]}"/>')
            lines.append(f'<text x="{LEFT + width + 5:.1f}" y="{top + 10}" font-size="11" fill="#57606a">{_number(value)}</text>')
            top += BAR
        top += GAP
    return "\n".join([*lines, "</svg>", ""])


def _legend(sides: set[str]) -> tuple[list[str], int]:
    """The legend, and where the first bar may begin."""
    lines, left, down = [], 8, 30
    for side in (name for name in COLOURS if name in sides):
        if left + LEGEND_STEP > WIDTH:
            left, down = 8, down + LEGEND_ROW
        lines.append(f'<rect x="{left}" y="{down}" width="10" height="10" fill="{COLOURS[side]}"/>')
        lines.append(f'<text x="{left + 15}" y="{down + 9}" fill="#57606a">{TITLES[side]}</text>')
        left += LEGEND_STEP
    return lines, HEAD + down - 30


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def charts(document: Mapping[str, Any]) -> dict[str, str]:
    """The charts of a results file, by file name."""
    found = {}
    for name, (kind, key, unit, title) in CHARTS.items():
        groups: list[Group] = []
        for entry in (e for e in document["workloads"] if e["workload"]["kind"] == kind):
            bars = [(side, entry["medians"][side][key] / unit) for side in COLOURS if key in entry["medians"].get(side, {})]
            groups += [(entry["workload"]["name"], bars)] if bars else []
        if groups:
            found[f"bench-{name}.svg"] = chart(title, groups)
    return found


def link_label(entry: Mapping[str, Any]) -> str:
    """A long link in a few words."""
    link = entry["link"]
    return f"{link['round_trip_ms']:g} ms, {link['congestion']}, loss {link['loss'] * 100:g} %{', TLS' if link['tls'] else ''}"


def wan_charts(document: Mapping[str, Any]) -> dict[str, str]:
    """The chart of results over long links."""
    groups = [
        (link_label(entry), [(side, entry["medians"][side]["mb_per_second"]) for side in COLOURS if side in entry["medians"]])
        for entry in document["workloads"]
    ]
    return {"bench-wan.svg": chart(WAN_TITLE, groups)}


def write_all(document: Mapping[str, Any], folder: Path) -> None:
    """Write the charts of a results file."""
    folder.mkdir(parents=True, exist_ok=True)
    linked = any("link" in entry for entry in document["workloads"])
    for name, text in (wan_charts if linked else charts)(document).items():
        (folder / name).write_text(text)

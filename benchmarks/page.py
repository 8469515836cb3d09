"""docs/benchmarks.md and its charts, made from the committed results: no figure is written by hand.

    python -m benchmarks.page                                       make page and charts again
    python -m benchmarks.page build/bench/versus.json build/bench/wan.json      take full runs over, then make them
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars, mm2, results, table
from benchmarks.page_text import GROUP_ROUNDS, GROUPS_HEAD, HEAD, HOW, MEANING, NOT_YET, WAN_HEAD, WAN_NOT_YET
from benchmarks.sides import TITLES as SIDES
from mirror_pipeline.execution.placement import WORTH_A_START

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
TITLES = {"bulk": "Bulk copies", "latency": "Latency at a constant low rate", "idle": "Idle topics"}
PICTURES = {"bulk": ("wall", "cpu", "memory"), "latency": ("latency",), "idle": ("idle",)}

Document = Mapping[str, Any]


def page(versus: Document | None, wan: Document | None, groups: Document | None = None) -> str:
    """The page's text for these results; None: not measured yet."""
    parts = [HEAD]
    parts += [_machine(versus), *(_kind(kind, versus) for kind in TITLES)] if versus else [NOT_YET]
    parts += [WAN_HEAD, *([_machine(wan), _wan(wan)] if wan else [WAN_NOT_YET])]
    parts += [GROUPS_HEAD, _groups(groups)] if groups else []
    parts += [MEANING, HOW, _settings((versus or {}).get("mm2") or mm2.reasons())]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _machine(document: Document) -> str:
    """What the figures were measured on."""
    m, v, o = document["machine"], document["versions"], document["options"]
    rounds = "One round" if o["rounds"] == 1 else f"Up to {o['rounds']} rounds, medians"
    return (
        f"Measured {document['started_at'][:10]} on {m['cores']} cores ({m['processor']}) with {m['memory_bytes'] / 1e9:.0f} GB of memory, "
        f"{m['system']}; Kafka {v['kafka']}, MirrorMaker {v['mirrormaker']}, Mirror Pipeline {v['mirror_pipeline']} "
        f"(commit {v['commit'] or 'unknown'}), Java {v['java']}, Python {v['python']}, PySpark {v['pyspark']}, deltalake {v['deltalake']}. "
        f"{rounds}. Both brokers ran on the same cores. {_path(o.get('inline_bytes'))}{_earlier(document)}"
    )


def _earlier(document: Document) -> str:
    """Which rows an earlier run has measured."""
    rows: dict[tuple[str, str], list[str]] = {}
    for entry in document["workloads"]:
        if "commit" in entry:
            rows.setdefault((entry["measured"], entry["commit"] or "unknown"), []).append(f"`{entry['workload']['name']}`")
    return "".join(f" {', '.join(names)}: measured {day}, commit {commit}." for (day, commit), names in rows.items())


def _path(inline_bytes: int | None) -> str:
    """Which of its paths the lane took, see docs/scaling.md; without a number the results are older than the rule."""
    if inline_bytes is None:
        return "The lane of Mirror Pipeline ran every task in its own Python process, **without Spark**."
    if not inline_bytes:
        return "Mirror Pipeline ran every task **on Spark** (`engine.inline_bytes: 0`), except where a row says in process."
    return (
        f"Mirror Pipeline, with default settings, ran micro-batches of more than {inline_bytes / 1e6:.0f} MB **on Spark** once "
        f"{WORTH_A_START * inline_bytes / 1e9:.0f} GB waited and Spark had started, all others in its own process. The column Spark % "
        "says how much Spark read; copies named `large` also ran with all of it in process."
    )


def _kind(kind: str, document: Document) -> str:
    entries = [entry for entry in document["workloads"] if entry["workload"]["kind"] == kind]
    pictures = [f"![{bars.CHARTS[name][3]}](images/bench-{name}.svg)" for name in PICTURES[kind]]
    floors = [_floor(entry["floor"]) for entry in entries if "floor" in entry]
    return "\n".join([f"## {TITLES[kind]}", "", *pictures, "", *_rows(kind, entries, _what), *floors])


def _floor(floor: Mapping[str, float]) -> str:
    return (
        f"\nWithout a mirror, from the producer to a consumer of the same topic: p50 {floor['p50_ms']:,.1f} ms, "
        f"p99 {floor['p99_ms']:,.1f} ms. Each figure above includes this overhead of the measurement."
    )


def _rows(kind: str, entries: Sequence[Mapping[str, Any]], what: Any) -> list[str]:
    columns, versus = table.measured(table.COLUMNS[kind], entries), table.RATIO_COLUMNS[kind]
    headings = ["workload", "side", *columns, *(name for name, _ in versus)]
    lines = [f"| {' | '.join(headings)} |", f"|---|---|{'--:|' * (len(headings) - 2)}"]
    for entry in entries:
        label = what(entry)
        for side in (name for name in table.ORDER if name in entry["medians"]):
            cells = [table.figure(entry["medians"][side], *how) for how in columns.values()]
            ratio = [f"**{found:.2f}**" if (found := entry["ratios"].get(side, {}).get(key)) else "" for _, key in versus]
            lines.append(f"| {' | '.join([label, SIDES[side], *cells, *ratio])} |")
            label = ""
    return lines


def _what(entry: Mapping[str, Any]) -> str:
    w = entry["workload"]
    if w["kind"] == "idle":
        return f"`{w['name']}`: {w['topics']:,} topics of 10 records, watched {w['seconds']:g} s"
    if w["kind"] == "latency":
        rate = f"{w['rate_bytes'] / 1e6:g} MB/s of {_size(w['record_bytes'])} records"
        return f"`{w['name']}`: {rate}, {w['partitions']} partitions, {w['seconds']:g} s"
    batches = "one-record batches" if w["batch_bytes"] <= w["record_bytes"] else f"batches of {w['batch_bytes'] / 1024:.0f} KiB"
    codec = "plain" if w["codec"] == "none" else w["codec"]
    partitions = f"{w['partitions']} partition{'s' if w['partitions'] > 1 else ''}"
    amount = f"{entry['log_bytes'] / 1e6:,.0f} MB ({entry['records'] * w['record_bytes'] / 1e6:,.0f} MB of values)"
    return f"`{w['name']}`: {_size(w['record_bytes'])}, {codec}, {batches}, {partitions}, {amount}"


def _size(count: int) -> str:
    return f"{count} B" if count < 1_000 else f"{count / 1_000:g} KB"


def _wan(document: Document) -> str:
    rows = _rows("bulk", document["workloads"], bars.link_label)
    failures = [
        f"\n{bars.link_label(entry)}, {SIDES[found['side']]}, round {found['round']}: **{found['failed'].rstrip('.')}**."
        for entry in document["workloads"]
        for found in entry["rounds"]
        if "failed" in found
    ]
    return "\n".join([f"![{bars.WAN_TITLE}](images/bench-wan.svg)", "", *rows, *failures])


def _groups(document: Document) -> str:
    m, v = document["machine"], document["versions"]
    lines = [
        f"Measured {document['started_at'][:10]} on {m['cores']} cores ({m['processor']}), Kafka {v['kafka']}, "
        f"commit {v['commit'] or 'unknown'}: "
        f"{document['groups']:,} groups of {document['partitions']} partitions, a round every {document['interval_seconds']:g} s"
        f"{'; ' + document['note'] if document['note'] else ''}.",
        "",
        "| round | rounds | median s | longest s | CPU-s a round | % of a core |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for kind, what in GROUP_ROUNDS.items():
        r = document["rounds"][kind]
        figures = f"{r['median_seconds']:.2f} | {r['longest_seconds']:.2f} | {r['cpu_seconds']:.3f} | {r['core_share'] * 100:.1f}"
        lines.append(f"| {what} | {r['rounds']} | {figures} |")
    return "\n".join(lines)


def _settings(variants: Mapping[str, Mapping[str, Mapping[str, str]]]) -> str:
    lines = ["## MirrorMaker 2's settings", "", "`default` has only the settings that this setup requires; `tuned` has all of them.", ""]
    lines += ["| property | value | side | why |", "|---|---|---|---|"]
    needed = variants["default"]
    rows = [*needed.items(), *((key, entry) for key, entry in variants["tuned"].items() if key not in needed)]
    lines += [f"| `{key}` | `{entry['value']}` | {'both' if key in needed else 'tuned'} | {entry['why']} |" for key, entry in rows]
    return "\n".join([*lines, "", f"Java: `{' '.join([*mm2.HEAP, *mm2.JVM])}`, as in `connect-mirror-maker.sh`."])


def wan_missing(document: Document) -> list[str]:
    """Why results over a link are no full run; empty when they are. MirrorMaker 2 as it comes may fail there, but must be tried."""
    found = [f"scale {entry['scale']}" for entry in document["workloads"] if entry["scale"] != 1.0]
    losses = {entry["link"]["loss"] for entry in document["workloads"]}
    found += [f"loss {loss:.1%} was not measured" for loss in (0.0, 0.001) if loss not in losses]
    for entry in document["workloads"]:
        bad = [side for side in ("ours", "tuned") if side not in entry["medians"]]
        found += [f"{bars.link_label(entry)}: no good round of {side}" for side in bad]
    if not any(each["side"] == "default" for entry in document["workloads"] for each in entry["rounds"]):
        found.append("MirrorMaker 2 as it comes was not tried")
    return found


def outputs() -> dict[Path, str]:
    """Every generated file with its text, from the committed results."""
    versus, wan, groups = (results.load(KEPT / f"{name}.json") for name in ("versus", "wan", "groups"))
    pictures = {**(bars.charts(versus) if versus else {}), **(bars.wan_charts(wan) if wan else {})}
    return {PAGE: page(versus, wan, groups), **{IMAGES / name: text for name, text in pictures.items()}}


def main(files: Sequence[str]) -> int:
    """Take results over when they are full runs, then write page and charts."""
    for name in files:
        document = results.load(Path(name))
        if document is None:
            print(f"error: there is no {name}", file=sys.stderr)
            return 2
        long_link = any("link" in entry for entry in document["workloads"])
        if lacking := (wan_missing if long_link else results.missing)(document):
            print(f"error: {name} is no full run: {'; '.join(lacking[:3])}", file=sys.stderr)
            return 1
        results.save(KEPT / ("wan.json" if long_link else "versus.json"), document)
    for path, text in outputs().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

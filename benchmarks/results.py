"""From rounds to medians and ratios, and the results file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.workloads import WORKLOADS

SCHEMA = 2
LIMIT_SINCE = 2  # the schema that has the limit, and copies large enough for Spark
ENOUGH_ROUNDS = 2
LIMIT = "limit"
RIVALS = ("inproc", "tuned", "default")
# The ratios: name, figure, and whether more is better.
RATIOS = {
    "bulk": (
        ("wall", "records_per_second", True),
        ("warm_wall", "warm_records_per_second", True),
        ("per_cpu", "records_per_cpu_second", True),
    ),
    "idle": (("idle_cpu", "idle_cpu_seconds", False),),
    "latency": (("p50", "p50_ms", False), ("p99", "p99_ms", False)),
}


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Median of every figure by side, over the rounds that succeeded."""
    sides: dict[str, list[Mapping[str, Any]]] = {}
    for entry in rounds:
        if "failed" not in entry:
            sides.setdefault(str(entry["side"]), []).append(entry)
    return {side: _medians(found) for side, found in sides.items()}


def _medians(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    keys = [key for key, value in found[0].items() if isinstance(value, int | float) and not isinstance(value, bool) and key != "round"]
    middle = {key: statistics.median(entry[key] for entry in found if key in entry) for key in keys}
    return {**middle, **_largest(found), "rounds": len(found)}


def _largest(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Peak of the largest process; a Java beside Python only schedules, so Python alone counts where there is some."""
    sizes = []
    for entry in found:
        processes = entry.get("processes", ())
        python = [p["peak_rss_bytes"] for p in processes if p["process"] != "java"]
        sizes.append(max(python or [p["peak_rss_bytes"] for p in processes] or [0]))
    return {"peak_process_bytes": statistics.median(sizes)}


def ratios(kind: str, middle: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """How many times better this tool is than each rival; below 1 it is worse."""
    ours = middle.get("ours")
    if not ours:
        return {}
    found: dict[str, dict[str, float]] = {}
    for rival in RIVALS:
        theirs = middle.get(rival, {})
        for name, key, more in RATIOS[kind]:
            a, b = (ours.get(key), theirs.get(key)) if more else (theirs.get(key), ours.get(key))
            if a and b:
                found.setdefault(rival, {})[name] = a / b
    return found


def finished(entry: dict[str, Any]) -> dict[str, Any]:
    """A workload's entry with medians and ratios from its rounds."""
    middle = medians(entry["rounds"])
    return {**entry, "medians": _with_limit(middle), "ratios": ratios(entry["workload"]["kind"], middle)}


def _with_limit(middle: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Each side's share of what brokers and the wire allow, where that was measured: of the rate, and of the rate per CPU-second."""
    most = middle.get(LIMIT)
    if most is None:
        return middle
    keys = {"limit_share": "mb_per_second", "limit_cpu_share": "mb_per_cpu_second"}
    return {
        side: figures if side == LIMIT else figures | {name: figures[key] / most[key] for name, key in keys.items() if most.get(key)}
        for side, figures in middle.items()
    }


def missing(document: Mapping[str, Any]) -> list[str]:
    """Why a document is no full run, one line each; empty when it is one."""
    found: list[str] = []
    entries = {entry["workload"]["name"]: entry for entry in document["workloads"]}
    old = document.get("schema", 1) < LIMIT_SINCE
    for workload in WORKLOADS:
        entry = entries.get(workload.name)
        if old and workload.large:
            continue
        if entry is None:
            found.append(f"{workload.name} was not measured")
        elif entry["scale"] != 1.0 or entry["workload"]["seconds"] != workload.seconds:
            found.append(f"{workload.name} was measured at a smaller scale")
        else:
            enough = ENOUGH_ROUNDS if workload.core else 1
            for side in (name for name in workload.sides if not (old and name == LIMIT)):
                if entry["medians"].get(side, {}).get("rounds", 0) < enough:
                    found.append(f"{workload.name}: {side} has fewer than {enough} good rounds")
    return found


def merge(before: Mapping[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """``now`` with those workloads of ``before`` that it has not measured itself; the order is that of the workloads.

    What is taken over says by which commit, and on which day, it was measured, unless both are the same.
    """
    origin = _origin(before) if before and _origin(before) != _origin(now) else {}
    entries = {entry["workload"]["name"]: {**origin, **entry} for entry in (before or {}).get("workloads", [])}
    entries |= {entry["workload"]["name"]: entry for entry in now["workloads"]}
    order = {workload.name: place for place, workload in enumerate(WORKLOADS)}
    return {**now, "workloads": sorted(entries.values(), key=lambda e: order.get(e["workload"]["name"], len(order)))}


def _origin(document: Mapping[str, Any]) -> dict[str, str]:
    return {"commit": document["versions"]["commit"], "measured": document["started_at"][:10]}


def load(path: Path) -> dict[str, Any] | None:
    """A results file, None when there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def save(path: Path, document: Mapping[str, Any]) -> None:
    """Put a results file in place, whole or not at all. Figures keep six significant digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(_rounded(document), indent=1) + "\n")
    fresh.replace(path)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value

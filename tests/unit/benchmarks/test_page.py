"""The page and its charts say what the committed results say, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import bars, mm2, page, results, table
from benchmarks.workloads import WORKLOADS


def test_page_and_charts_are_those_of_the_committed_results() -> None:
    made = page.outputs()
    for path, text in made.items():
        assert path.exists(), f"{path.name} is missing: python -m benchmarks.page"
        assert path.read_text() == text, f"{path.name} is stale: python -m benchmarks.page"
    strays = set(page.IMAGES.glob("bench-*.svg")) - set(made)
    assert not strays, f"charts without results: {strays}"


def test_committed_results_are_full_runs() -> None:
    for name, lacking in (("versus.json", results.missing), ("wan.json", page.wan_missing)):
        document = results.load(page.KEPT / name)
        assert document is None or lacking(document) == []


def test_page_without_results_shows_no_figure() -> None:
    text = page.page(None, None)
    assert text.count("Not measured yet") == 2
    assert ".svg" not in text


def test_every_figure_of_the_tables_is_explained() -> None:
    text = page.page(None, None)
    for columns in table.COLUMNS.values():
        for heading in columns:
            assert heading.removesuffix(" ms") in text, heading


def rounds(side: str, *rates: float) -> list[dict[str, Any]]:
    figures = {"mb_per_second": 1.0, "warm_mb_per_second": 2.0, "warm_records_per_second": 5.0, "records_per_cpu_second": 10.0}
    figures["peak_rss_bytes"] = 5_000_000
    processes = [{"process": "java", "peak_rss_bytes": 9}, {"process": "python -m x", "peak_rss_bytes": 7}]
    return [{"side": side, **figures, "records_per_second": rate, "processes": processes} for rate in rates]


SIDES = {"ours": 1, "tuned": 2, "default": 3, "inproc": 4, "limit": 5}
"""The sides, and by how many times each is slower."""


def document(*, scale: float = 1.0, sides: tuple[str, ...] = tuple(SIDES)) -> dict[str, Any]:
    entries = []
    for workload in WORKLOADS:
        chosen = [side for side in sides if side in workload.sides]
        found = [entry for side in chosen for entry in rounds(side, 600.0 / SIDES[side], 620.0 / SIDES[side])]
        entry = {"workload": workload.facts(), "scale": scale, "log_bytes": 1_000_000, "records": 1_000, "rounds": found}
        if workload.kind == "latency":
            entry["floor"] = {"p50_ms": 1.0, "p99_ms": 2.0}
        entries.append(results.finished(entry))
    machine = {"cores": 2, "processor": "P", "memory_bytes": 8e9, "system": "Linux 1"}
    versions = dict.fromkeys(("kafka", "mirrormaker", "mirror_pipeline", "commit", "java", "python", "pyspark", "deltalake"), "1")
    return {
        "schema": results.SCHEMA, "started_at": "2026-01-02T03:04:05+00:00", "machine": machine, "versions": versions,
        "options": {"rounds": 2}, "mm2": mm2.reasons(), "workloads": entries,
    }  # fmt: skip


def test_page_with_results_has_their_figures_and_charts() -> None:
    found = document()
    text = page.page(found, None)
    assert "`1kb-single`: 1 KB, plain, one-record batches, 12 partitions" in text
    assert "**2.00**" in text and "**3.00**" in text  # 610 against 305 and 203 records a second
    for name, chart in bars.charts(found).items():
        assert f"images/{name}" in text
        assert ElementTree.fromstring(chart).tag.endswith("svg")  # noqa: S314 - our own


@pytest.mark.parametrize(
    ("inline_bytes", "says"), [(None, "**without Spark**"), (0, "ran every task **on Spark**"), (8_000_000, "more than 8 MB **on Spark**")]
)
def test_the_page_says_which_path_ran(inline_bytes: int | None, says: str) -> None:
    assert says in page.page({**document(), "options": {"rounds": 1, "inline_bytes": inline_bytes}}, None)


def test_share_of_the_limit_and_of_spark() -> None:
    found = [{**entry, "mb_per_second": 50.0, "spark_share": 0.91} for entry in rounds("ours", 500.0)]
    found += [{**entry, "mb_per_second": 80.0} for entry in rounds("limit", 800.0)]
    done = results.finished({"workload": WORKLOADS[0].facts(), "log_bytes": 1_000_000, "records": 1_000, "rounds": found})
    assert done["medians"]["ours"]["limit_share"] == 0.625
    assert "limit_share" not in done["medians"]["limit"]
    assert "limit" not in done["ratios"]
    text = page.page({**document(), "workloads": [done]}, None)
    (row,) = (line for line in text.splitlines() if line.startswith("| `1kb`: "))
    assert row.split(" | ")[2:5] == ["50", "62", "91"]
    assert "| limit |" in text


def test_results_from_before_the_limit_stay_full_runs() -> None:
    old = document(sides=("ours", "tuned", "default"))
    assert "1kb: limit has fewer than 2 good rounds" in results.missing(old)
    old["schema"] = 1
    old["workloads"] = [entry for entry in old["workloads"] if not entry["workload"]["large"]]
    assert results.missing(old) == []
    assert "| % of limit | Spark" not in page.page(old, None)


def test_legend_takes_a_second_row_for_more_than_four_sides() -> None:
    root = ElementTree.fromstring(bars.chart("t", [("one", [(side, 1.0) for side in bars.COLOURS])]))  # noqa: S314 - our own
    squares = [(float(r.get("x", "0")), float(r.get("y", "0"))) for r in root.iter() if r.get("width") == "10"]
    assert len(set(squares)) == len(bars.COLOURS)
    assert max(x for x, _ in squares) + bars.LEGEND_STEP <= bars.WIDTH
    assert len({y for _, y in squares}) == 2


@pytest.mark.parametrize("broken", [document(scale=0.5), document(sides=("ours", "tuned"))])
def test_what_is_no_full_run_is_not_taken_over(broken: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.save(tmp_path / "part.json", broken)
    assert page.main([str(tmp_path / "part.json")]) == 1
    assert "is no full run" in capsys.readouterr().err


def far(default: str = "no record on the target after 9 s: no error in its log") -> dict[str, Any]:
    """Results over a link of two losses where MirrorMaker 2 as it comes, where it was tried, fails."""
    entries = []
    for loss in (0.0, 0.001):
        found = [{**entry, "round": 1} for side, rate in (("ours", 60.0), ("tuned", 20.0)) for entry in rounds(side, rate)]
        found += [{"side": "default", "failed": default, "round": 1}] if default and not loss else []
        link = {"round_trip_ms": 200.0, "bits_per_second": 1e9, "loss": loss, "congestion": "cubic", "tls": False}
        entry = {"workload": WORKLOADS[0].facts(), "scale": 1.0, "log_bytes": 1_000, "records": 10, "rounds": found, "link": link}
        entries.append(results.finished(entry))
    return {**document(), "workloads": entries}


def test_over_a_link_a_rival_that_fails_is_shown_with_its_reason() -> None:
    assert page.wan_missing(far()) == []
    text = page.page(None, far())
    assert "MirrorMaker 2, default, round 1: **no record on the target after 9 s: no error in its log**." in text
    assert text.count("**3.00**") == 2  # 60 against 20 records a second, over both links


def test_over_a_link_no_side_may_be_left_out() -> None:
    assert page.wan_missing(far(default="")) == ["MirrorMaker 2 as it comes was not tried"]
    half = far()
    half["workloads"].pop()
    assert page.wan_missing(half) == ["loss 0.1% was not measured"]


def test_a_failed_round_counts_for_nothing() -> None:
    found = [*rounds("ours", 4.0, 6.0), *rounds("tuned", 2.0), {"side": "tuned", "failed": "why"}]
    done = results.finished({"workload": WORKLOADS[0].facts(), "rounds": found})
    assert done["medians"]["tuned"]["rounds"] == 1
    assert done["medians"]["ours"]["peak_process_bytes"] == 7
    assert done["ratios"] == {"tuned": {"wall": 2.5, "warm_wall": 1.0, "per_cpu": 1.0}}


def test_costs_and_times_are_divided_the_other_way_round() -> None:
    middle = {"ours": {"p50_ms": 10.0, "p99_ms": 40.0}, "tuned": {"p50_ms": 20.0, "p99_ms": 20.0}}
    assert results.ratios("latency", middle) == {"tuned": {"p50": 2.0, "p99": 0.5}}


def test_merging_keeps_workloads_that_were_not_measured_again() -> None:
    before, now = document(), document()
    now["workloads"] = [{**now["workloads"][3], "scale": 0.1}]
    merged = results.merge(before, now)
    assert [e["workload"]["name"] for e in merged["workloads"]] == [w.name for w in WORKLOADS]
    assert [e["scale"] for e in merged["workloads"]].count(0.1) == 1


def test_the_page_says_which_rows_an_earlier_run_has_measured() -> None:
    before, now = document(), document()
    before["versions"]["commit"], before["started_at"] = "abc", "2025-12-31T03:04:05+00:00"
    now["workloads"] = now["workloads"][2:]
    merged = results.merge(before, now)
    first, second = (f"`{workload.name}`" for workload in WORKLOADS[:2])
    assert f"{first}, {second}: measured 2025-12-31, commit abc." in page.page(merged, None)
    again = results.merge(merged, {**now, "workloads": merged["workloads"][1:2]})
    assert f"{first}, {second}: measured 2025-12-31, commit abc." in page.page(again, None), "not the commit of the run in between"
    assert ": measured" not in page.page(now, None)


def test_chart_is_in_proportion_and_escapes() -> None:
    text = bars.chart("a < b", [("one & two", [("ours", 200.0), ("tuned", 50.0)])])
    root = ElementTree.fromstring(text)  # noqa: S314 - our own
    widths = [float(r.get("width", "0")) for r in root.iter() if r.tag.endswith("rect") and r.get("x") == str(bars.LEFT)]
    assert widths[0] == pytest.approx(4 * widths[1])
    assert re.search(r">50<", text) and "a &lt; b" in text


def test_rounds_over_groups_have_a_section_once_they_are_measured() -> None:
    figures = {"rounds": 20, "median_seconds": 2.5568, "longest_seconds": 4.1, "cpu_seconds": 0.40601, "core_share": 0.040601}
    measured = {
        **{key: document()[key] for key in ("machine", "versions", "started_at")}, "note": "other programs were running",
        "groups": 1_000, "partitions": 10, "interval_seconds": 10.0, "rounds": dict.fromkeys(("new", "changing", "steady"), figures),
    }  # fmt: skip
    text = page.page(None, None, measured)
    assert "1,000 groups of 10 partitions, a round every 10 s; other programs were running." in text
    assert "| every offset has changed | 20 | 2.56 | 4.10 | 0.406 | 4.1 |" in text
    assert "## Consumer groups" not in page.page(None, None)

"""What samples add up to, what is checked, what MirrorMaker 2 is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import mm2, versus
from benchmarks.latency import ages_summary
from benchmarks.measure import Sample, Tree, summary
from benchmarks.rounds import RoundFailed, check
from benchmarks.sides import Flow, Launched
from benchmarks.wan import far
from benchmarks.wan import link as wan_link
from benchmarks.workloads import GB, WORKLOADS, chosen
from mirror_pipeline.errors import UsageError
from mirror_pipeline.model import TopicPartition

MB = 1_000_000


def sample(at: float, records: int, own: float = 0.0, sent: int = 0) -> Sample:
    return Sample(at, records, own, own / 2, own / 4, sent)


def test_steady_state_leaves_out_start_up_and_what_the_first_sample_shows() -> None:
    seen = [sample(0, 0), sample(5, 0, 2.0), sample(6, 100, 3.0, 10 * MB), sample(8, 500, 4.0)]
    seen += [sample(10, 1100, 6.0), sample(11, 1100, 6.5)]
    figures = summary(seen, 1100, 110 * MB)
    assert figures["records_per_second"] == pytest.approx(1000 / 4)
    assert figures["mb_per_second"] == pytest.approx(100 / 4)
    assert figures["startup_seconds"] == 6
    assert figures["total_seconds"] == 10
    assert figures["cpu_seconds"] == 4.5  # from the sample before the source began to send, to the very last
    assert figures["source_cpu_seconds"] == 2.25
    assert figures["records_per_cpu_second"] == pytest.approx(1100 / 4.5)


def test_reading_ahead_counts_as_work() -> None:
    seen = [sample(0, 0), sample(2, 0, 1.0), sample(3, 0, 3.0, 50 * MB), sample(4, 0, 5.0, 100 * MB)]
    seen += [sample(5, 10, 6.0), sample(6, 1000, 7.0)]
    figures = summary(seen, 1000, 100 * MB)
    assert figures["reading_after_seconds"] == 2
    assert figures["cpu_seconds"] == 6.0


def test_warm_rate_is_that_of_the_second_half() -> None:
    seen = [sample(0, 0), sample(1, 1), sample(11, 501), sample(12, 1001)]
    figures = summary(seen, 1001, 1001)
    assert figures["records_per_second"] == pytest.approx(1000 / 11)
    assert figures["warm_records_per_second"] == pytest.approx(500)


def test_a_copy_between_two_samples_gives_a_lower_bound() -> None:
    assert summary([sample(0, 0), sample(1, 0), sample(3, 800)], 800, 800)["records_per_second"] == pytest.approx(400)


def test_an_unfinished_copy_is_measured_to_its_last_sample() -> None:
    figures = summary([sample(0, 0), sample(1, 10), sample(5, 50), sample(9, 90)], 10_000, 10_000)
    assert figures["records"] == 90
    assert figures["records_per_second"] == pytest.approx(10)


def test_nothing_on_the_target_is_no_result() -> None:
    with pytest.raises(ValueError, match="no record"):
        summary([sample(0, 0), sample(1, 0)], 10, 10)


def test_ended_children_stay_in_the_account() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        tree = Tree(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        assert tree.cpu() >= 0.3
        assert tree.memory()["peak_rss_bytes"]
        process.kill()


def test_counts_are_compared_by_partition() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert check({a: 5, b: 0}, {a: 5}, whole=True)
    assert check({a: 5, b: 3}, {a: 4}, whole=False)
    for found, whole in (({a: 6, b: 2}, True), ({a: 4, b: 3}, True), ({a: 6}, False)):
        with pytest.raises(RoundFailed, match="holds"):
            check({a: 5, b: 3}, found, whole=whole)


def test_percentiles() -> None:
    found = ages_summary([n * 1_000_000 for n in range(1000, 0, -1)])
    assert (found["records"], found["p50_ms"], found["p99_ms"], found["max_ms"]) == (1000, 501, 991, 1000)
    assert ages_summary([]) == {"records": 0}


def test_settings_of_both_variants() -> None:
    flow = Flow("127.0.0.1:1", "127.0.0.1:2", chosen(["1kb-lz4"])[0], "r7", source_ca=Path("/ca.pem"), mm2_tasks=12)
    default, tuned = mm2.settings("default", flow), mm2.settings("tuned", flow)
    assert default["clusters"] == "r7s,r7t"
    assert default["r7s->r7t.topics"] == "bench-1kb-lz4"
    assert default["r7s.security.protocol"] == "SSL"
    assert "tasks.max" not in default
    assert (tuned["tasks.max"], tuned["r7t.producer.compression.type"]) == ("12", "lz4")
    assert set(default) < set(tuned)
    assert not [value for value in tuned.values() if "{" in value]
    assert all(why for entries in mm2.reasons().values() for why in (entry["why"] for entry in entries.values()))


def test_workloads_have_names_of_their_own_and_are_chosen_by_them() -> None:
    names = [w.name for w in WORKLOADS]
    assert len(set(names)) == len(names)
    assert [w.name for w in chosen(["100b", "1kb"])] == ["1kb", "100b"]
    assert [w.name for w in chosen(["large", "100b"])] == ["100b", "1kb-large", "1kb-lz4-large", "100b-large", "100b-lz4-large"]
    with pytest.raises(SystemExit, match="no workload 'nope'"):
        chosen(["nope"])
    assert {topic for w in (*WORKLOADS, *far.WORKLOADS) for topic in w.names}.isdisjoint({""})


def test_every_side_of_a_workload_exists() -> None:
    known = {side.name for side in versus.sides(versus.arguments([]).sides)}
    assert {name for workload in WORKLOADS for name in workload.sides} == known
    with pytest.raises(SystemExit, match="no side 'nope'"):
        versus.sides("ours,nope")


def test_a_disk_that_is_too_small_is_noticed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = chosen(["large"])
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=25 * GB))
    with pytest.raises(SystemExit, match=r"1kb-large needs 53 GB of disk, .* has 23; use --folder, or --scale 0.44"):
        versus.fitting(large, 1.0, tmp_path)
    versus.fitting(large, 0.43, tmp_path)
    versus.fitting([], 1.0, tmp_path)


def launched(tmp_path: Path, text: str | None) -> Launched:
    report = tmp_path / "stdout.json"
    if text is not None:
        report.write_text(text)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Launched(process, {}, tmp_path / "log", report if text is not None else None)


@pytest.mark.parametrize("text", [None, "", '{"mirrors": [{"spark_bytes": 0, "driver_bytes": 0}]}'])
def test_without_a_report_there_is_no_share_of_spark(tmp_path: Path, text: str | None) -> None:
    assert launched(tmp_path, text).spark() == {}


def test_share_of_spark_is_that_of_the_report(tmp_path: Path) -> None:
    text = '{"mirrors": [{"spark_bytes": 90, "driver_bytes": 10, "spark_jobs": 7}]}'
    assert launched(tmp_path, text).spark() == {"spark_share": 0.9, "spark_jobs": 7}


def test_quick_is_small() -> None:
    options = versus.arguments(["--quick"])
    idle = versus.scaled(chosen(["idle-1000"])[0], options)
    assert (options.rounds, options.scale, idle.topics, idle.seconds) == (1, 0.3, versus.QUICK_TOPICS, versus.QUICK_SECONDS["idle"])


def test_a_link_is_refused_where_it_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "gcc" else f"/bin/{name}")
    with pytest.raises(UsageError, match="needs gcc"):
        wan_link.needed()
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="needs root"):
        wan_link.needed()

"""Read tasks in Spark read ahead for each other, in resident processes that outlive them, and lose nothing when these die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.engine.tasks.read.messages import ReadResult, ReadTask
from mirror_pipeline.errors import TaskLost
from mirror_pipeline.execution.spark import SparkRunner
from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.topics.lanes import lane_of
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, make_mirror, write_config

ENGINE = {"connections": 24, "inline_bytes": 0, "micro_batch_bytes": "4MB"}
LANES = 2


def read_tasks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ReadTask, Any]]:
    """Every read task from now on, with what became of it."""
    seen: list[tuple[ReadTask, Any]] = []
    run_each = SparkRunner.run_each

    def watched(self: SparkRunner, function: Any, specs: Any, *, name: str) -> Any:
        answers = run_each(self, function, specs, name=name)
        seen.extend((spec, answer) for spec, answer in zip(specs, answers, strict=True) if isinstance(spec, ReadTask))
        return answers

    monkeypatch.setattr(SparkRunner, "run_each", watched)
    return seen


def residents() -> list[psutil.Process]:
    """Resident processes: grandchildren of Spark's daemon; workers are its children."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            above = process.parents()[:3]
            if len(above) == 3 and all("mirror_pipeline.engine.tasks.spark_daemon" in each.cmdline() for each in (process, *above[:2])):
                found.append(process)
    return found


def kill_reading() -> int:
    """Kill the resident processes that are connected to a broker; how many that were."""
    reading = [each for each in residents() if any(line.status == psutil.CONN_ESTABLISHED for line in each.net_connections("tcp"))]
    for each in reading:
        each.kill()
    return len(reading)


@contextmanager
def killing(seen: list[tuple[ReadTask, Any]]) -> Iterator[list[int]]:
    """Kill resident processes twice, each time after another micro-batch. Yields how many they were."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        for _ in range(2):
            until = len(seen) + 2
            count = 0
            while not count and not over.wait(0.02):
                count = kill_reading() if len(seen) >= until else 0
            killed.append(count)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.mark.long
def test_tasks_of_two_lanes_in_one_session_read_on_where_their_own_last_one_ended(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    config = load_config(write_config(tmp_path, east, west, [f"{topic_name}-.*"], engine=ENGINE, lanes=LANES))
    homes = lane_of(config.buffer, config.mirrors[0], [f"{topic_name}-{number}" for number in range(20)])
    topics = list({lane: topic for topic, lane in homes.items()}.values())
    records = sum(fill_bulk(east, topic, 3, 40_000_000) for topic in topics)
    seen = read_tasks(monkeypatch)
    mirror = Mirror(config, "m")
    report = mirror.run(once=True, session=spark)
    assert (report.state, report.records) == ("ok", records)
    assert_identical(mirror, topics)
    for reader in {task.reader for task, _ in seen}:
        results = [answer for task, answer in seen if task.reader == reader]
        assert all(isinstance(answer, ReadResult) for answer in results)
        resumed = sum(answer.resumed for answer in results)
        assert resumed >= len(results) // 2 > 2, "the first micro-batches know no batch sizes, the last ones have nothing to read ahead"
    assert len({task.reader for task, _ in seen}) == LANES


@pytest.mark.slow
def test_nothing_is_lost_or_copied_twice_when_resident_processes_die(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    records = fill_bulk(east, topic_name, 3, 60_000_000)
    seen = read_tasks(monkeypatch)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine={**ENGINE, "bandwidth": "4MB"})
    with killing(seen) as killed:
        report = mirror.run(once=True, session=spark)
    assert (report.state, report.records) == ("ok", records)
    assert_identical(mirror, [topic_name])
    assert len(killed) == 2 and all(killed)
    assert any(isinstance(answer, TaskLost) for _, answer in seen)

"""The one record comparer: pairs of partitions in tasks, up to the last one, with the second pass where it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.kafka.records.batch import OpenRecord
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify import compare, record_tasks
from mirror_pipeline.verify.compare import ComparedPair, PairStep, PairTask, compare_pairs
from mirror_pipeline.verify.pieces import Piece
from mirror_pipeline.verify.record_tasks import Terms
from tests.support.verify_samples import opened, pieces

EAST, WEST = ClusterSettings("east", ()), ClusterSettings("west", ())
LOGS = dict[TopicPartition, list[OpenRecord]]


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> LOGS:
    """Logs by partition; a partition without one has lost its records since its offsets were read."""
    found: LOGS = {}

    def read_log(_: object, tp: TopicPartition, start: int, end: int, *, deleted: object, timeless: bool, **__: Any) -> Iterator[Piece]:
        if tp not in found and deleted is None:
            raise ProblemFound(f"{tp}: deleted")
        within = [record for record in found.get(tp, []) if start <= record.offset < end]
        return iter([replace(piece, timeless=timeless) for piece in pieces(within)])

    monkeypatch.setattr(record_tasks, "read_log", read_log)
    monkeypatch.setattr(worker_cache, "client_of", lambda cluster, *, timeout: SimpleNamespace(cluster=cluster))
    return found


def task(number: int = 0, *, limit: int = 20, strict: bool = False) -> PairTask:
    ours, theirs = TopicPartition("orders", number), TopicPartition("east.orders", number)
    return PairTask(EAST, WEST, ours, theirs, (0, 100), (0, 100), Terms(), limit, 1.0, strict)


def run(*tasks: PairTask) -> tuple[dict[TopicPartition, ComparedPair], list[tuple[int, PairStep]]]:
    steps: list[tuple[int, PairStep]] = []
    found = compare_pairs(InlineRunner(), WEST, tasks, timeout=1.0, seen=lambda pair, step: steps.append((pair.records, step)))
    return found, steps


def test_a_pair_that_needs_several_tasks_is_compared_to_its_end(logs: LOGS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "TASK_BYTES", 1)
    ours = [opened(n) for n in range(100)]
    logs[task().source], logs[task().target] = ours, [record for record in ours if record.offset != 60]
    found, steps = run(task())
    assert [(d.kind, d.source_offset) for d in found[task().source].settled.differences] == [("missing", 60)]
    assert len(steps) > 1
    assert sum(step.offsets for _, step in steps) == 100
    assert [records for records, _ in steps] == sorted(records for records, _ in steps)
    assert found[task().source].records == sum(step.records for _, step in steps) == 100
    assert found[task().source].bytes == sum(step.bytes for _, step in steps)


def test_a_surplus_record_is_searched_for_on_the_whole_source(logs: LOGS) -> None:
    ours = [opened(n, b"v%d" % n) for n in range(10)]
    again = ours[2]._replace(offset=10)
    foreign = opened(11, b"foreign")
    logs[task().source], logs[task().target] = ours, [*ours, again, foreign]
    found, _ = run(task())
    assert [(d.kind, d.target_offset) for d in found[task().source].settled.differences] == [("duplicate", 10), ("extra", 11)]


def test_the_limit_holds_over_all_tasks_of_a_pair(logs: LOGS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "TASK_BYTES", 1)
    ours = [opened(n, b"v%d" % n) for n in range(100)]
    logs[task().source], logs[task().target] = ours, [record for record in ours if record.offset % 10]
    found, _ = run(task(limit=3))
    settled = found[task().source].settled
    assert (len(settled.differences), settled.more) == (3, True)


def test_deletion_meanwhile_is_unreadable_only_where_the_comparison_is_strict(logs: LOGS) -> None:
    logs[task(0).source] = logs[task(1).source] = [opened(n) for n in range(3)]
    found, _ = run(task(0, strict=True), task(1))
    strict, lenient = found[task(0).source].settled, found[task(1).source].settled
    assert (strict.unreadable, strict.differences) == ("east.orders[0]: deleted", [])
    assert ([d.kind for d in lenient.differences], lenient.unreadable) == (["missing"] * 3, "")


def test_no_pairs_are_compared_without_a_task(logs: LOGS) -> None:
    assert run() == ({}, [])

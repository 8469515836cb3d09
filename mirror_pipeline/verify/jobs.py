"""Run the tasks of a verification: a few Spark jobs at a time, so that results arrive while other jobs run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from mirror_pipeline.errors import TaskLost
from mirror_pipeline.execution.runner import Runner
from mirror_pipeline.verify.fold_tasks import FoldResult, FoldTask, run_fold
from mirror_pipeline.verify.record_tasks import DeepResult, DeepTask, run_deep

T = TypeVar("T")
R = TypeVar("R")

JOBS_PER_TASK = 2
"""Concurrent jobs per task slot: one reads from the brokers while the other folds."""
JOB_ATTEMPTS = 3
OFFSETS_PER_GROUP = 65_536
"""Small chunks share a task until they have this many source offsets: a Spark job costs 50 ms."""


def run_folds(tasks: Sequence[FoldTask]) -> list[FoldResult]:
    """Several small chunks in one Spark task."""
    return [run_fold(task) for task in tasks]


def run_deeps(tasks: Sequence[DeepTask]) -> list[DeepResult]:
    """Several small ranges in one Spark task."""
    return [run_deep(task) for task in tasks]


def grouped(items: Iterable[T], weight: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Group consecutive items until their weight reaches ``GROUP_OFFSETS``."""
    groups: list[list[T]] = []
    held = OFFSETS_PER_GROUP
    for item in items:
        if held + weight(item) > OFFSETS_PER_GROUP:
            groups.append([])
            held = 0
        groups[-1].append(item)
        held += weight(item)
    return [tuple(group) for group in groups]


def run_each(
    runner: Runner,
    function: Callable[[T], R],
    specs: Iterable[T],
    *,
    name: str,
    took: Callable[[R], Iterable[T]] = lambda _: (),
) -> None:
    """Run a task for every spec, several at a time.

    Args:
        runner: Spark, or this process.
        function: the task.
        specs: its arguments, one for each run.
        name: shown in Spark's web page.
        took: called in the caller's thread with each result as it arrives; returns further specs to run.
    """
    with ThreadPoolExecutor(max(1, runner.tasks * JOBS_PER_TASK), "verify") as pool:

        def submit(spec: T) -> Future[list[R]]:
            return pool.submit(_attempt, runner, function, spec, name)

        waiting = {submit(spec) for spec in specs}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    for result in future.result():
                        waiting |= {submit(spec) for spec in took(result)}
        except BaseException:
            for future in waiting:
                future.cancel()
            raise


def _attempt(runner: Runner, function: Callable[[T], R], spec: T, name: str) -> list[R]:
    """These tasks only read, so one whose worker died is run again."""
    for _ in range(JOB_ATTEMPTS - 1):
        try:
            return runner.run(function, [spec], name=name)
        except TaskLost:
            continue
    return runner.run(function, [spec], name=name)

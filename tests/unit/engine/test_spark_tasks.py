"""A task that Spark runs a second time by itself gives itself back: nobody has read the target's log since the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark import TaskContext

from mirror_pipeline.engine.spark import SparkRunner
from mirror_pipeline.errors import TaskLost


class Here:
    """A Spark context whose one worker is this thread, on the task's ``attempt``."""

    defaultParallelism = 2

    def __init__(self, attempt: int, monkeypatch: pytest.MonkeyPatch) -> None:
        context = TaskContext()
        context._attemptNumber = attempt
        monkeypatch.setattr(TaskContext, "_taskContext", context)
        self.sparkContext = self

    def parallelize(self, values: Any, count: int) -> Here:
        return self

    def setLocalProperty(self, name: str, value: str) -> None:
        pass

    def mapPartitions(self, function: Callable[[Any], list[Any]]) -> Here:
        self.function = function
        return self

    def collect(self) -> list[Any]:
        return list(self.function(None))


def test_the_first_attempt_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SparkRunner(Here(0, monkeypatch)).run_each(lambda n: n + 1, [1], name="x") == [2]  # type: ignore[arg-type]


def test_a_second_attempt_is_a_lost_task(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    (answer,) = SparkRunner(Here(1, monkeypatch)).run_each(sent.append, [1], name="x")  # type: ignore[arg-type]
    assert isinstance(answer, TaskLost)
    assert sent == []

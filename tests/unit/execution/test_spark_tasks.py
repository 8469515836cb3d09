"""A task that Spark runs a second time by itself gives itself back: nobody has read the target's log since the first time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pyspark import TaskContext

from mirror_pipeline.errors import SparkGone, TaskLost, UsageError
from mirror_pipeline.execution.spark import SparkRunner, refuse_retries


class Here:
    """A Spark context whose one worker is this thread, on the task's ``attempt``."""

    defaultParallelism = 2
    master = "local[2]"

    def __init__(self, attempt: int, monkeypatch: pytest.MonkeyPatch) -> None:
        context = object.__new__(TaskContext)  # the constructor would leave it in the class, for all tests that follow
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


@pytest.mark.parametrize(
    ("master", "one"), [("local[3]", True), ("local", True), ("local-cluster[2,1,1024]", False), ("spark://a:7077", False), ("yarn", False)]
)
def test_only_a_local_session_has_all_its_workers_on_one_machine(monkeypatch: pytest.MonkeyPatch, master: str, one: bool) -> None:
    here = Here(0, monkeypatch)
    here.master = master
    assert SparkRunner(here).one_machine is one  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", ["setLocalProperty", "mapPartitions", "collect", "defaultParallelism"])
def test_a_jvm_that_died_is_told_whatever_it_is_asked(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """Nobody listens where it did; the next question meets that, and it is not always the job itself."""

    def refused(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    here = Here(0, monkeypatch)
    monkeypatch.setattr(Here, asked, property(refused) if asked == "defaultParallelism" else refused)
    runner = SparkRunner(here)  # type: ignore[arg-type]
    with pytest.raises(SparkGone):
        runner.run_each(lambda n: n, [1] * runner.tasks, name="x")


class Given:
    """A context that somebody else has started."""

    def __init__(self, master: str, **conf: str) -> None:
        self.master = master
        self._conf = {name.replace("__", "."): value for name, value in conf.items()}

    def getConf(self) -> Mapping[str, str]:
        return self._conf


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (Given("local[2]"), ""),
        (Given("local[*]", spark__task__maxFailures="4"), ""),  # which a local session does not look at
        (Given("local[2, 1]"), ""),
        (Given("local[2,3]"), r"local\[2,3\] allows 3 failures"),
        (Given("local-cluster[2,1,1024]"), "spark.task.maxFailures allows 4 failures"),
        (Given("spark://a:7077"), "spark.task.maxFailures allows 4 failures"),
        (Given("yarn", spark__task__maxFailures="1"), ""),
        (Given("yarn", spark__task__maxFailures="1", spark__speculation="TRUE"), "spark.speculation is on"),
        (Given("local[2]", spark__speculation="true"), "spark.speculation is on"),
    ],
)
def test_a_session_that_would_repeat_tasks_is_refused_by_name(context: Given, why: str) -> None:
    if not why:
        refuse_retries(context)  # type: ignore[arg-type]
        return
    with pytest.raises(UsageError, match=why) as raised:
        refuse_retries(context)  # type: ignore[arg-type]
    assert "spark.task.maxFailures=1 and spark.speculation=false" in raised.value.hint

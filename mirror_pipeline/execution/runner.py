"""What runs tasks, and running them without Spark, one after the other in this thread: for small work and commands without a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from mirror_pipeline.errors import TaskLost

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs one function over many specs, each in its own task."""

    @property
    def tasks(self) -> int:
        """How many tasks one job should have."""

    def run(self, function: Callable[[T], R], specs: Sequence[T], *, name: str) -> list[R]:
        """Results in the order of the specs.

        Raises:
            TaskLost: a worker died; what its tasks did is unknown.
            SparkGone: Spark itself died.
        """

    def run_each(self, function: Callable[[T], R], specs: Sequence[T], *, name: str) -> list[R | TaskLost]:
        """The same with what became of each spec: its result, or that its worker died. No task is running any more when it returns."""


class InlineRunner:
    """A runner that calls the function itself."""

    @property
    def tasks(self) -> int:
        """One: this process is the only worker."""
        return 1

    def run(self, function: Callable[[T], R], specs: Sequence[T], *, name: str) -> list[R]:
        """Results in the order of the specs; raises what the function raises."""
        return [function(spec) for spec in specs]

    def run_each(self, function: Callable[[T], R], specs: Sequence[T], *, name: str) -> list[R | TaskLost]:
        """The same: the only worker is this process."""
        return [function(spec) for spec in specs]


class OneAtATime:
    """Another runner with one task at a time: for work during a copy that must leave the copy its slots."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def tasks(self) -> int:
        """One."""
        return 1

    def run(self, function: Callable[[T], R], specs: Sequence[T], *, name: str) -> list[R]:
        """Results in the order of the specs; raises what the runner raises."""
        return [answer for spec in specs for answer in self._runner.run(function, [spec], name=name)]

    def run_each(self, function: Callable[[T], R], specs: Sequence[T], *, name: str) -> list[R | TaskLost]:
        """The same with what became of each spec."""
        return [answer for spec in specs for answer in self._runner.run_each(function, [spec], name=name)]

"""Which micro-batches are run by the mirror's own process, and which wait for Spark."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.errors import UsageError
from mirror_pipeline.execution.placement import Runners, inline_bytes
from mirror_pipeline.execution.runner import InlineRunner

SMALL, LARGE = 1_000, 1_001


class Spark(InlineRunner):
    """Stands where Spark would."""

    def run_each(self, function: Callable[[Any], Any], specs: Sequence[Any], *, name: str) -> list[Any]:
        return ["spark" for _ in specs]


class Starting:
    """A start of Spark that takes as long as the test wants."""

    def __init__(self) -> None:
        self.count = 0
        self.done = threading.Event()

    def __call__(self) -> Spark:
        self.count += 1
        assert self.done.wait(30)
        return Spark()


@pytest.mark.parametrize(
    ("cores", "settings", "expected"),
    [
        (2, {}, sys.maxsize),
        (3, {}, 32_000_000),
        (2, {"spark_master": "local[4]"}, 32_000_000),
        (2, {"inline_bytes": 0}, 0),
        (8, {"inline_bytes": 5}, 5),
    ],
)
def test_how_much_one_process_does(monkeypatch: pytest.MonkeyPatch, cores: int, settings: dict[str, Any], expected: int) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert inline_bytes(EngineConfig(**settings)) == expected


def ran(runners: Runners, size: int) -> str:
    return str(runners.of(size).run_each(lambda spec: "here", [1], name="x")[0])


def test_spark_is_not_started_for_small_micro_batches() -> None:
    start = Starting()
    runners = Runners(start, inline_bytes=SMALL)
    runners.prepare()
    assert (ran(runners, SMALL), runners.most_bytes(SMALL), start.count) == ("here", SMALL, 0)


def test_while_spark_starts_micro_batches_are_kept_small_and_run_here() -> None:
    start = Starting()
    runners = Runners(start, inline_bytes=SMALL)
    assert runners.most_bytes(10**9) == SMALL  # a large one asks for Spark, and does not wait
    assert (ran(runners, SMALL), ran(runners, LARGE)) == ("here", "here")
    start.done.set()
    while runners.most_bytes(10**9) == SMALL:
        pass
    assert (ran(runners, SMALL), ran(runners, LARGE), start.count) == ("here", "spark", 1)


def test_with_nothing_run_here_spark_is_waited_for() -> None:
    start = Starting()
    start.done.set()
    runners = Runners(start, inline_bytes=0)
    runners.prepare()
    assert (ran(runners, 1), runners.most_bytes(1), runners.small(1), start.count) == ("spark", 1, False, 1)


def test_work_beside_the_copy_takes_what_is_there() -> None:
    start = Starting()
    runners = Runners(start, inline_bytes=SMALL)
    assert isinstance(runners.beside(), InlineRunner)
    assert start.count == 0
    runners.most_bytes(10**9)
    start.done.set()
    while not isinstance(runners.beside(), Spark):
        pass


def test_a_spark_that_does_not_start_ends_the_run_as_soon_as_it_is_needed() -> None:
    def fail() -> Spark:
        raise UsageError("no Java")

    runners = Runners(fail, inline_bytes=SMALL)
    assert ran(runners, SMALL) == "here"
    with pytest.raises(UsageError, match="no Java"):
        for _ in range(1000):
            runners.most_bytes(10**9)
            threading.Event().wait(0.01)
    with pytest.raises(UsageError, match="no Java"):
        Runners(fail, inline_bytes=0).prepare()


@pytest.mark.parametrize(
    ("limit", "size", "far", "here"),
    [(SMALL, SMALL, False, True), (SMALL, LARGE, False, False), (SMALL, LARGE, True, True), (0, SMALL, True, False)],
)
def test_what_comes_over_a_long_link_is_read_here_unless_all_is_sparks(limit: int, size: int, far: bool, here: bool) -> None:
    assert Runners(Starting(), inline_bytes=limit).reads_here(size, far=far) is here

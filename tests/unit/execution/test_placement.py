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
from mirror_pipeline.execution.placement import ONWARD_REACH, SPARK_REACH, Placement, inline_bytes
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


def ran(placement: Placement, size: int) -> str:
    return str(placement.for_write(size).runner.run_each(lambda spec: "here", [1], name="x")[0])


def test_spark_is_not_started_for_small_micro_batches() -> None:
    start = Starting()
    placement = Placement(start, inline_bytes=SMALL)
    placement.prepare()
    assert (ran(placement, SMALL), placement.for_write(SMALL).most_bytes, start.count) == ("here", SMALL, 0)


def test_while_spark_starts_micro_batches_are_kept_small_and_run_here() -> None:
    start = Starting()
    placement = Placement(start, inline_bytes=SMALL)
    assert placement.for_write(10**9).most_bytes == SMALL  # a large one asks for Spark, and does not wait
    assert placement.for_read(10**9, far=False).in_process
    assert (ran(placement, SMALL), ran(placement, LARGE)) == ("here", "here")
    start.done.set()
    while placement.for_write(10**9).most_bytes == SMALL:
        pass
    assert (ran(placement, SMALL), ran(placement, LARGE), start.count) == ("here", "spark", 1)
    assert not placement.for_read(10**9, far=False).in_process


def test_with_nothing_run_here_spark_is_waited_for() -> None:
    start = Starting()
    start.done.set()
    placement = Placement(start, inline_bytes=0)
    placement.prepare()
    assert (ran(placement, 1), placement.for_write(1).most_bytes, placement.for_write(1).small, start.count) == ("spark", 1, False, 1)


def test_work_beside_the_copy_takes_what_is_there() -> None:
    start = Starting()
    placement = Placement(start, inline_bytes=SMALL)
    assert isinstance(placement.beside(), InlineRunner)
    assert start.count == 0
    placement.for_write(10**9)
    start.done.set()
    while not isinstance(placement.beside(), Spark):
        pass


def test_a_spark_that_does_not_start_ends_the_run_as_soon_as_it_is_needed() -> None:
    def fail() -> Spark:
        raise UsageError("no Java")

    placement = Placement(fail, inline_bytes=SMALL)
    assert ran(placement, SMALL) == "here"
    with pytest.raises(UsageError, match="no Java"):
        for _ in range(1000):
            placement.for_write(10**9)
            threading.Event().wait(0.01)
    with pytest.raises(UsageError, match="no Java"):
        Placement(fail, inline_bytes=0).prepare()


@pytest.mark.parametrize(
    ("limit", "size", "far", "here"),
    [(SMALL, SMALL, False, True), (SMALL, LARGE, False, False), (SMALL, LARGE, True, True), (0, SMALL, True, False)],
)
def test_what_comes_over_a_long_link_is_read_here_unless_all_is_sparks(limit: int, size: int, far: bool, here: bool) -> None:
    start = Starting()
    start.done.set()
    placement = Placement(start, inline_bytes=limit)
    while size > limit and not far and placement.for_write(size).in_process:
        pass  # Spark starts
    place = placement.for_read(size, far=far)
    assert (place.in_process, place.small, place.most_bytes) == (here, size <= limit, size)


@pytest.mark.parametrize(("limit", "far", "reach"), [(SMALL, False, 1), (SMALL, True, ONWARD_REACH), (0, True, SPARK_REACH), (0, False, 1)])
def test_only_over_a_long_link_micro_batches_grow(limit: int, far: bool, reach: int) -> None:
    start = Starting()
    start.done.set()
    assert Placement(start, inline_bytes=limit).for_read(SMALL, far=far).reach == reach

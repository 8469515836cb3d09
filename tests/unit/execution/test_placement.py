"""Which micro-batches are run by the mirror's own process, and which wait for Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.errors import UsageError
from mirror_pipeline.execution.placement import (
    INLINE_BYTES,
    ONWARD_REACH,
    SPARK_FAR_REACH,
    SPARK_REACH,
    WORTH_A_START,
    Placement,
    inline_bytes,
)
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


@pytest.mark.parametrize(("settings", "expected"), [({}, INLINE_BYTES), ({"inline_bytes": 0}, 0), ({"inline_bytes": 5}, 5)])
def test_how_much_one_process_does(settings: dict[str, Any], expected: int) -> None:
    assert inline_bytes(EngineConfig(**settings)) == expected


def ran(placement: Placement, size: int) -> str:
    return str(placement.for_write(size).runner.run_each(lambda spec: "here", [1], name="x")[0])


def test_spark_is_not_started_for_small_micro_batches() -> None:
    start = Starting()
    placement = Placement(start, inline_bytes=SMALL)
    placement.prepare()
    for _ in range(2 * WORTH_A_START):
        assert placement.for_read(SMALL, far=False, waiting=SMALL).in_process
    assert (ran(placement, SMALL), start.count) == ("here", 0)


@pytest.mark.parametrize(("expected", "count"), [((SMALL * WORTH_A_START - 1,), 0), ((SMALL * WORTH_A_START,), 1), ((128_000, 128_000), 1)])
def test_spark_starts_before_a_large_backlog_can_be_read(expected: tuple[int, ...], count: int) -> None:
    start = Starting()
    start.done.set()
    placement = Placement(start, inline_bytes=SMALL)
    for size in expected:
        placement.expect(size)
    placement.expect(0)
    assert start.count == count
    assert placement.for_read(SMALL, far=False, waiting=SMALL).in_process


def test_while_spark_starts_micro_batches_are_run_here() -> None:
    start = Starting()
    placement = Placement(start, inline_bytes=SMALL)
    assert placement.for_read(LARGE, far=False, waiting=10**9).in_process  # it asks for Spark, and does not wait
    assert (ran(placement, SMALL), ran(placement, LARGE), start.count) == ("here", "here", 1)
    start.done.set()
    while placement.for_write(LARGE).in_process:
        pass
    assert (ran(placement, SMALL), ran(placement, LARGE), start.count) == ("here", "spark", 1)
    assert not placement.for_read(LARGE, far=False).in_process


def test_a_few_larger_micro_batches_are_not_worth_a_start() -> None:
    start = Starting()
    placement = Placement(start, inline_bytes=SMALL)
    for _ in range(WORTH_A_START - 2):
        assert placement.for_read(LARGE, far=False, waiting=LARGE).in_process
        placement.for_write(LARGE)
    assert start.count == 0
    for _ in range(2):
        placement.for_read(LARGE, far=False, waiting=LARGE)
    assert start.count == 1


def test_with_nothing_run_here_spark_is_waited_for() -> None:
    start = Starting()
    start.done.set()
    placement = Placement(start, inline_bytes=0)
    placement.prepare()
    assert (ran(placement, 1), placement.for_write(1).small, start.count) == ("spark", False, 1)


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
    while size > limit and not far and placement.for_read(size, far=far, waiting=10**9).in_process:
        pass  # Spark starts
    place = placement.for_read(size, far=far)
    assert (place.in_process, place.small) == (here, size <= limit)


@pytest.mark.parametrize(
    ("limit", "far", "reach"), [(SMALL, False, 1), (SMALL, True, ONWARD_REACH), (0, True, SPARK_FAR_REACH), (0, False, SPARK_REACH)]
)
def test_in_spark_and_over_a_long_link_micro_batches_grow(limit: int, far: bool, reach: int) -> None:
    start = Starting()
    start.done.set()
    assert Placement(start, inline_bytes=limit).for_read(SMALL, far=far).reach == reach


def test_each_task_has_a_job_worth_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spark, "tasks", 3)
    placement = Placement.only(Spark())
    assert placement.for_read(SMALL, far=False).reach == placement.for_write(SMALL).reach == 3 * SPARK_REACH
    assert placement.for_read(SMALL, far=True).reach == SPARK_FAR_REACH

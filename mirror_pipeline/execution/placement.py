"""Where a micro-batch's tasks run: in this process while they are small or Spark is still starting; otherwise in Spark.

Two Spark jobs take longer than reading and sending a megabyte. Without them a lane with little traffic has a lower latency, and
a mirror that never sees more needs no Java process at all. Neither does a mirror on a machine with no more cores than its two
threads use: Spark's workers would share these cores and cost more CPU for each byte.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.execution.spark import Runner
from mirror_pipeline.model import UNKNOWN_BYTES_PER_OFFSET

# Where Spark has cores that one process cannot fill.
INLINE_BYTES = 32_000_000
# One thread reads, one writes, and both spend most of their time outside the interpreter's lock.
CORES_OF_ONE_PROCESS = 2
# Over a long link each micro-batch costs round trips for its questions, so the one after a full one may be larger. Spark's tasks do not
# read on into the next micro-batch: their connections take several round trips until all of them carry data.
ONWARD_REACH, SPARK_REACH = 2, 8


def inline_bytes(engine: EngineConfig) -> int:
    """The setting of that name, or a default for this machine."""
    if engine.inline_bytes is not None:
        return engine.inline_bytes
    one_process = engine.spark_master is None and (os.cpu_count() or 1) <= CORES_OF_ONE_PROCESS
    return sys.maxsize if one_process else INLINE_BYTES


# In one process this takes about as long as Spark takes to start; larger comparisons are faster with Spark.
COMPARED_HERE_BYTES = 512_000_000


def spark_may_be_needed(engine: EngineConfig) -> bool:
    """Whether a copy may need Spark at all."""
    return inline_bytes(engine) < sys.maxsize


def for_comparing(engine: EngineConfig, offsets: int, start: Callable[[], Runner]) -> Runner:
    """The runner that compares records of both sides: this process if they are few, otherwise what ``start`` starts.

    Args:
        engine: the mirror's settings.
        offsets: source offsets to compare.
        start: starts Spark.
    """
    few = offsets * UNKNOWN_BYTES_PER_OFFSET <= min(inline_bytes(engine), COMPARED_HERE_BYTES)
    return InlineRunner() if few else start()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one micro-batch runs.

    Args:
        runner: runs its tasks.
        in_process: ``runner`` is this process, whose read tasks continue into the next micro-batch.
        small: the micro-batch would run in this process over any link.
        most_bytes: maximum size of the micro-batch now; less than was asked for while Spark is starting for it.
        reach: how many times the usual size the next micro-batch may have if this one is full.
    """

    runner: Runner
    in_process: bool
    small: bool
    most_bytes: int
    reach: int = 1


class Placement:
    """The choice between this process and Spark, shared by the lanes of one run.

    Args:
        start: starts Spark; called once, in a separate thread.
        inline_bytes: micro-batches up to this size are run here; 0 gives all of them to Spark.
    """

    def __init__(self, start: Callable[[], Runner], *, inline_bytes: int) -> None:
        self._start = start
        self._inline_bytes = inline_bytes
        self._inline = InlineRunner()
        self._spark: Runner | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @classmethod
    def only(cls, runner: Runner) -> Placement:
        """Every task goes to ``runner``."""
        placement = cls(lambda: runner, inline_bytes=0)
        placement._spark = runner
        return placement

    def prepare(self) -> None:
        """Wait for Spark if every task needs it. Raises what its start raised."""
        if not self._inline_bytes:
            self._wait()

    def for_read(self, size: int, *, far: bool) -> Place:
        """The place for reading ``size`` bytes, ``far`` over a long link, which this process can fill alone.

        Raises what Spark's start raised.
        """
        place = self._here(size) if far and self._inline_bytes else self.for_write(size)
        if not far:
            return place
        return replace(place, reach=ONWARD_REACH if place.in_process else SPARK_REACH)

    def for_write(self, size: int) -> Place:
        """The place for sending ``size`` bytes. Raises what Spark's start raised."""
        if size <= self._inline_bytes:
            return self._here(size)
        if self._is_up():
            return Place(self._wait(), in_process=False, small=False, most_bytes=size)
        return replace(self._here(size), most_bytes=self._inline_bytes)

    def beside(self) -> Runner:
        """For work beside the copy: Spark if it runs, this process otherwise."""
        return self._spark or (self._inline if self._inline_bytes else self._wait())

    def _here(self, size: int) -> Place:
        return Place(self._inline, in_process=True, small=size <= self._inline_bytes, most_bytes=size)

    def _is_up(self) -> bool:
        """Whether Spark is there; starts it when not. Where nothing may be run here it is waited for."""
        if not self._inline_bytes:
            self._wait()
        self._begin()
        if self._error is not None:
            raise self._error
        return self._spark is not None

    def _wait(self) -> Runner:
        self._begin()
        if self._thread is not None:
            self._thread.join()
        if self._spark is None:
            raise self._error or RuntimeError("Spark did not start")
        return self._spark

    def _begin(self) -> None:
        with self._lock:
            if self._spark is None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spark-start", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            self._spark = self._start()
        except Exception as error:  # noqa: BLE001 - raised again where Spark is needed
            self._error = error

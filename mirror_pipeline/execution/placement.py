"""Where a micro-batch's tasks run: in Spark, or in this process while they are small or Spark is still starting.

Two Spark jobs take longer than reading and sending a few megabytes. Without them a lane with little traffic has a lower latency, and
a mirror that never sees more needs no Java process at all.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.execution.runner import InlineRunner, Runner
from mirror_pipeline.model import UNKNOWN_BYTES_PER_OFFSET

# Reading and sending as much takes this process about as long as Spark needs for its two jobs.
INLINE_BYTES = 8_000_000
# Spark is started once larger micro-batches have brought, or have waiting, this many times that (2 GB): what this process copies
# with the CPU time of a start, five seconds.
WORTH_A_START = 256
# Growth factor for the micro-batch after a full one. In Spark it applies per read task, since each task is a job with a fixed cost.
# Over a long link each micro-batch in Spark starts with idle connections: tasks there do not read on into the next one.
ONWARD_REACH, SPARK_REACH, SPARK_FAR_REACH = 2, 8, 8


def inline_bytes(engine: EngineConfig) -> int:
    """The setting of that name, or its default."""
    return INLINE_BYTES if engine.inline_bytes is None else engine.inline_bytes


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
    few = offsets * UNKNOWN_BYTES_PER_OFFSET <= WORTH_A_START * inline_bytes(engine)
    return InlineRunner() if few else start()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one micro-batch runs.

    Args:
        runner: runs its tasks.
        in_process: ``runner`` is this process, whose read tasks continue into the next micro-batch.
        small: the micro-batch would run in this process over any link.
        reach: how many times the usual size the next micro-batch may have if this one is full, or this one if it is sent.
    """

    runner: Runner
    in_process: bool
    small: bool
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
        self._carried = 0  # bytes of micro-batches that Spark would have read
        self._expected = 0  # bytes of topics that had not begun yet
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

    def expect(self, waiting: int) -> None:
        """So many more bytes will wait once their topics have begun: Spark starts now if that is worth it."""
        with self._lock:
            self._expected += waiting
        if waiting and self._expected >= WORTH_A_START * self._inline_bytes:
            self._begin()

    def for_read(self, size: int, *, far: bool, waiting: int = 0) -> Place:
        """The place for reading ``size`` bytes.

        Args:
            size: of the micro-batch.
            far: over a long link, which this process can fill alone.
            waiting: bytes of the whole backlog; of partitions that were not read yet only what they have at least.

        Raises what Spark's start raised.
        """
        if far and self._inline_bytes:
            return replace(self._here(size), reach=ONWARD_REACH)
        place = self._place(size, max(size, waiting))
        if place.in_process and not place.small:
            with self._lock:
                self._carried += size
        if far:
            return replace(place, reach=SPARK_FAR_REACH)
        return _wide(place)

    def for_write(self, size: int) -> Place:
        """The place for sending ``size`` bytes; ``reach`` as of reading. Raises what Spark's start raised."""
        return _wide(self._place(size, size))

    def _place(self, size: int, waiting: int) -> Place:
        if size > self._inline_bytes and self._is_up(waiting):
            return Place(self._wait(), in_process=False, small=False)
        return self._here(size)

    def beside(self) -> Runner:
        """For work beside the copy: Spark if it runs, this process otherwise."""
        return self._spark or (self._inline if self._inline_bytes else self._wait())

    def _here(self, size: int) -> Place:
        return Place(self._inline, in_process=True, small=size <= self._inline_bytes)

    def _is_up(self, waiting: int) -> bool:
        """Whether Spark is there; starts it once that is worth it. Where nothing may be run here it is waited for."""
        if not self._inline_bytes:
            self._wait()
        if self._carried + waiting >= WORTH_A_START * self._inline_bytes:
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


def _wide(place: Place) -> Place:
    """Each task of a Spark job gets as much as the job's cost asks for."""
    return place if place.in_process else replace(place, reach=SPARK_REACH * place.runner.tasks)

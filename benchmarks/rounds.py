"""One round: a side is started, watched while it copies, checked and ended; its target topics are removed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import latency
from benchmarks.measure import SAMPLE_SECONDS, Broker, Ends, Tree, Watch, cost, summary
from benchmarks.sides import Flow, Launched, Side, differences
from benchmarks.workloads import Workload, existing, remove
from mirror_pipeline.model import TopicPartition

START_SECONDS = 180.0  # 6-10 s on two quiet cores; a thousand topics have to be made first
FAR_START_SECONDS = 480.0  # over a long link MirrorMaker 2 as it comes takes minutes to its first record
COPY_SECONDS = 420.0  # far above the slowest copy at scale 1 (MirrorMaker 2 with its one task: 20 s)
LARGE_SECONDS = 60.0  # after the first record; the JVM's compilers have done most of their work by then
SETTLE_SECONDS = 0.5  # after the last record: what a side still notes down about it counts as its work
CALM_SECONDS = 15.0  # between a copy and the watch over idleness: JIT, garbage collection and offset stores end
ENDED_WELL = (0, 143)  # 143: what a JVM answers to SIGTERM
DELETE_SECONDS = 2.5  # the brokers delete the files of removed topics after one second


class RoundFailed(Exception):
    """A round without a result; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Two clusters of one broker each, and where the sides may write."""

    source: str
    target: str
    source_pid: int
    target_pid: int
    source_data: Path
    folder: Path
    source_ca: Path | None = None
    mm2_tasks: int | None = None
    verify: bool = False  # compare every finished copy record by record
    source_plain: str = ""  # the source's address without TLS, for our own looking; ``source`` when empty

    def size(self, topics: list[str]) -> int:
        """Bytes of the source topics' logs."""
        wanted = set(topics)
        parts = ((path, path.name.rpartition("-")) for path in self.source_data.iterdir())
        folders = [path for path, (name, _, number) in parts if name in wanted and number.isdigit()]
        return sum(file.stat().st_size for folder in folders for file in folder.glob("*.log"))

    def flow(self, workload: Workload, tag: str) -> Flow:
        """A flow for a workload between the two."""
        return Flow(self.source, self.target, workload, tag, self.source_ca, self.mm2_tasks)


def copy_round(place: Place, side: Side, workload: Workload, tag: str, *, at_most: float | None = None) -> dict[str, Any]:
    """Copy the workload's topics once and measure it.

    Args:
        at_most: seconds after the first record when a copy is ended unfinished (a slow link); None: it must get to the end, but
            for a rival's copy of a large workload, whose rate is steady after a minute.

    Raises:
        RoundFailed: with the reason.
    """

    if at_most is None and workload.large and side.rival:
        at_most = LARGE_SECONDS

    def measured(running: Launched, watch: Watch) -> dict[str, Any]:
        expected = _expected(place, running.topics)
        total, size = sum(expected.values()), place.size(workload.names)
        complete = _until_copied(running, watch, total, at_most)
        if complete:
            _pause(SETTLE_SECONDS, watch)
        verdict = check(expected, watch.last, whole=complete)
        figures = summary(watch.samples, total, size)
        return {**figures, **cost(watch), "log_bytes": size, "complete": complete, "check": verdict, **watch.tree.memory()}

    return _run(place, side, workload, tag, measured)


def idle_round(place: Place, side: Side, workload: Workload, tag: str) -> dict[str, Any]:
    """Copy many small topics, then watch what it costs that nothing happens."""

    def measured(running: Launched, watch: Watch) -> dict[str, Any]:
        expected = _expected(place, running.topics)
        total = sum(expected.values())
        _until_copied(running, watch, total, None)
        copied = watch.samples[-1]
        _pause(min(CALM_SECONDS, workload.seconds), None)
        a = watch.look()
        _pause(workload.seconds, None)
        z = watch.look()
        seconds = z.at - a.at
        return {
            "records": z.records,
            "startup_seconds": next(s.at for s in watch.samples if s.records),
            "total_seconds": copied.at,
            "cpu_with_startup_seconds": copied.own,
            "watched_seconds": seconds,
            "idle_cpu_seconds": z.own - a.own,
            "idle_cpu_share": (z.own - a.own) / seconds,
            "source_cpu_seconds": z.source - a.source,
            "target_cpu_seconds": z.target - a.target,
            "broker_cpu_seconds": z.source + z.target - a.source - a.target,
            "check": check(expected, watch.last, whole=True),
            **watch.tree.memory(),
        }

    return _run(place, side, workload, tag, measured)


def latency_round(place: Place, side: Side, workload: Workload, tag: str) -> dict[str, Any]:
    """Time from a producer on the source to a consumer on the target, while the side runs continuously."""

    def measured(running: Launched, watch: Watch) -> dict[str, Any]:
        topic = workload.names[0]
        source = place.source_plain or place.source
        latency.prime(source, topic, workload)  # a lane that has records on the target is up: no backlog grows while it starts
        _until_copied(running, watch, workload.partitions, None)
        figures = latency.measure(source, topic, place.target, running.topics[topic], workload, running.process)
        watch.look()
        return {"startup_seconds": watch.samples[-2].at, **figures, **watch.tree.memory()}

    return _run(place, side, workload, tag, measured)


ROUNDS: dict[str, Callable[[Place, Side, Workload, str], dict[str, Any]]] = {
    "bulk": copy_round,
    "idle": idle_round,
    "latency": latency_round,
}


def _run(
    place: Place, side: Side, workload: Workload, tag: str, measured: Callable[[Launched, Watch], dict[str, Any]]
) -> dict[str, Any]:
    folder = place.folder / tag
    folder.mkdir(parents=True)
    before = set(existing(place.target))
    running = side.launch(place.flow(workload, tag), folder)
    ends = Ends(place.target, list(running.topics.values()))
    try:
        watch = Watch(Tree(running.process.pid), Broker(place.source_pid), Broker(place.target_pid), ends)
        result = measured(running, watch)
        if found := running.errors():
            raise RoundFailed(f"an error in its log: {found[0]}")
        if (code := running.end()) not in ENDED_WELL:
            raise RoundFailed(f"ended with {code}")
        if place.verify and result.get("complete"):
            if unequal := differences(place.flow(workload, tag), running.topics, folder):
                raise RoundFailed(f"the copy differs: {unequal}")
            result["check"] = "equal record by record"
        return {"side": side.name, **result, **running.spark()}
    finally:
        running.end()
        ends.close()
        _tidy(place, before, folder)


def _until_copied(running: Launched, watch: Watch, total: int, at_most: float | None) -> bool:
    """Sample until ``total`` records are on the target; False when ``at_most`` seconds were up before."""
    first: float | None = None
    patience = START_SECONDS if at_most is None else FAR_START_SECONDS
    while True:
        sample = watch.look()
        if sample.records >= total:
            return True
        if first is None and sample.records:
            first = sample.at
        if running.process.poll() is not None:
            said = "; ".join(running.errors()) or "nothing in its log"
            raise RoundFailed(f"ended with {running.process.returncode} after {sample.records} of {total} records: {said}")
        if first is None and sample.at > patience:
            said = "; ".join(running.errors()) or "no error in its log"
            raise RoundFailed(f"no record on the target after {patience:.0f} s: {said}")
        if first is not None and at_most is not None and sample.at - first > at_most:
            return False
        if sample.at > patience + COPY_SECONDS:
            raise RoundFailed(f"{sample.records} of {total} records after {sample.at:.0f} s")
        time.sleep(SAMPLE_SECONDS)


def _pause(seconds: float, watch: Watch | None) -> None:
    time.sleep(seconds)
    if watch is not None:
        watch.look()


def _expected(place: Place, topics: dict[str, str]) -> dict[TopicPartition, int]:
    """Records that every target partition shall hold: the source's, under the target's names."""
    ends = Ends(place.source_plain or place.source, list(topics))
    try:
        found = ends.read()
    finally:
        ends.close()
    if not any(found.values()):
        raise RoundFailed("the source topics are empty")
    return {TopicPartition(topics[tp.topic], tp.partition): end for tp, end in found.items()}


def check(expected: dict[TopicPartition, int], found: Any, *, whole: bool) -> str:
    """Compare records by partition.

    Raises:
        RoundFailed: a partition holds more than its source, or, when the copy is ``whole``, another number.
    """
    for tp, count in expected.items():
        have = found.get(tp, 0)
        if have > count or (whole and have != count):
            raise RoundFailed(f"{tp} holds {have} records, its source {count}")
    return "counts equal in every partition" if whole else "no partition holds more than its source"


def _tidy(place: Place, before: set[str], folder: Path) -> None:
    """Nothing of a round may burden the next: its topics, files, and pages that still have to be written."""
    fresh = [name for name in existing(place.target) if name not in before]
    remove(place.target, fresh)
    left = [name for name in existing(place.source_plain or place.source) if name.startswith("mm2-")]
    if left:
        remove(place.source_plain or place.source, left)
    shutil.rmtree(folder / "buffer", ignore_errors=True)
    time.sleep(DELETE_SECONDS)
    os.sync()

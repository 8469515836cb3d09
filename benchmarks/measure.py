"""Looking at a copy from outside: CPU and memory of process trees, end offsets of topics, and what they add up to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.model import TopicPartition

SAMPLE_SECONDS = 0.15  # a copy takes seconds; a sample costs about 3 ms of one core
REFRESH_SECONDS = 0.6  # looking for new processes walks all of /proc
LOOK_SECONDS_A_TOPIC = 0.002  # topics that do not exist yet are not requested at every sample
READING_SHARE = 0.01  # of the topic's bytes: more than metadata, less than a first fetch


class Tree:
    """CPU-seconds and memory of a process and all it started, ended ones included.

    A parent's account holds the children it has waited for, so the sum over living processes of own and waited-for
    time is the whole; what a process used between the last look and its end is counted with its parent.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known: dict[int, psutil.Process] = {pid: self._root}
        self._looked = 0.0
        self.peaks: dict[int, tuple[str, int]] = {}
        self.peak_bytes = 0
        self._last = 0.0

    def cpu(self) -> float:
        """CPU-seconds, user and system, so far; never less than said before."""
        if time.monotonic() - self._looked > REFRESH_SECONDS:
            self._refresh()
        total = 0.0
        for process in self._known.values():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system + getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        self._last = max(self._last, total)
        return self._last

    def _refresh(self) -> None:
        self._looked = time.monotonic()
        try:
            for child in self._root.children(recursive=True):
                self._known.setdefault(child.pid, child)
        except psutil.Error:
            pass
        self._known = {pid: process for pid, process in self._known.items() if process.is_running()}
        resident = 0
        for pid, process in self._known.items():
            try:
                now = process.memory_info().rss
                name = _title(process)
            except psutil.Error:
                continue
            resident += now
            self.peaks[pid] = (name, max(now, high_water(pid), self.peaks.get(pid, ("", 0))[1]))
        self.peak_bytes = max(self.peak_bytes, resident)

    def memory(self) -> dict[str, object]:
        """Peaks in bytes: the tree's (sum of resident sizes at one moment, shared pages counted in each) and each process's."""
        each = [{"process": name, "peak_rss_bytes": size} for name, size in self.peaks.values()]
        return {"peak_rss_bytes": self.peak_bytes, "processes": sorted(each, key=lambda entry: -int(str(entry["peak_rss_bytes"])))}


def _title(process: psutil.Process) -> str:
    line = process.cmdline()
    if any("java" in Path(part).name for part in line[:1]):
        return "java"
    return " ".join(Path(part).name if part.startswith("/") else part for part in line[:3]) or process.name()


def high_water(pid: int) -> int:
    """The kernel's own peak of a process's resident size in bytes; 0 where it keeps none."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


class Broker:
    """A broker's CPU-seconds, and the bytes it has written to sockets and files (which shows when reading begins)."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def cpu(self) -> float:
        """CPU-seconds, user and system, so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def sent(self) -> int:
        """Bytes handed to the kernel, ``sendfile`` included; 0 where the system does not say."""
        try:
            return int(self._process.io_counters().write_chars)
        except (AttributeError, psutil.Error):
            return 0


class Ends:
    """End offsets of topics that may not exist yet, by one connection."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self._client = WireClient(ClusterSettings("bench", tuple(bootstrap.split(","))))
        self._missing = set(topics)
        self._partitions: dict[TopicPartition, int] = {}
        self._look_at = 0.0

    def read(self) -> dict[TopicPartition, int]:
        """End offset by partition; a topic that is not there yet is left out."""
        try:
            if self._missing and time.monotonic() >= self._look_at:
                self._look()
                self._look_at = time.monotonic() + LOOK_SECONDS_A_TOPIC * len(self._missing)
            if not self._partitions:
                return {}
            return {tp: max(0, answer.offset) for tp, answer in self._client.list_offsets(self._partitions, isolation=0).items()}
        except MirrorError:  # a topic being created, a busy broker: the next sample will show
            return {}

    def _look(self) -> None:
        for name, topic in self._client.metadata(sorted(self._missing)).topics.items():
            ready = topic.partitions and all(part.leader >= 0 for part in topic.partitions.values())
            if not topic.error and ready:
                self._partitions |= {TopicPartition(name, number): LATEST_TIME for number in topic.partitions}
                self._missing.discard(name)

    def close(self) -> None:
        """End the connection."""
        self._client.close()


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: seconds since the launch, records on the target, CPU-seconds of mirror, source and target, bytes the source sent."""

    at: float
    records: int
    own: float
    source: float
    target: float
    sent: int


@dataclass(slots=True)
class Watch:
    """Takes samples of a running copy."""

    tree: Tree
    source: Broker
    target: Broker
    ends: Ends
    begin: float = field(default_factory=time.monotonic)
    own_begin: float = field(default_factory=time.process_time)
    samples: list[Sample] = field(default_factory=list)
    last: Mapping[TopicPartition, int] = field(default_factory=dict)

    def look(self) -> Sample:
        """One more sample."""
        self.last = self.ends.read()
        at = time.monotonic() - self.begin
        sample = Sample(at, sum(self.last.values()), self.tree.cpu(), self.source.cpu(), self.target.cpu(), self.source.sent())
        self.samples.append(sample)
        return sample


def cost(watch: Watch) -> dict[str, float]:
    """CPU-seconds that the watching itself took."""
    return {"watch_cpu_seconds": time.process_time() - watch.own_begin}


def summary(samples: Sequence[Sample], total: int, size: int) -> dict[str, float]:
    """The figures of one copy of ``total`` records and ``size`` log bytes; ``samples`` may end before all was there.

    Rates leave out what the first sample with records shows already: it came at an unknown moment before.
    ``warm_*`` is the second half alone, when compilers have done their work.
    """
    if not samples or not samples[-1].records:
        raise ValueError("no record arrived")
    first = next(i for i, s in enumerate(samples) if s.records)
    done = samples[-1].records
    end = next(i for i, s in enumerate(samples) if s.records == done)
    if samples[first].records > done / 2 and first:
        first -= 1  # too fast for the samples: a lower bound instead of nothing
    half = next(i for i, s in enumerate(samples) if s.records >= (done + samples[first].records) / 2)
    begin = _reading(samples, size)
    a, z = samples[begin], samples[-1]
    figures = {
        "records": float(done),
        "startup_seconds": next(s.at for s in samples if s.records),
        "reading_after_seconds": a.at,
        "total_seconds": samples[end].at,
        **_rate("", samples[first], samples[end], size / total),
        **_rate("warm_", samples[min(half, max(end - 1, first))], samples[end], size / total),
        "cpu_seconds": z.own - a.own,
        "cpu_with_startup_seconds": z.own,
        "source_cpu_seconds": z.source - a.source,
        "target_cpu_seconds": z.target - a.target,
    }
    return figures | {
        "records_per_cpu_second": done / max(figures["cpu_seconds"], 0.01),
        "mb_per_cpu_second": done * size / total / 1e6 / max(figures["cpu_seconds"], 0.01),
        "broker_cpu_seconds": figures["source_cpu_seconds"] + figures["target_cpu_seconds"],
    }


def _reading(samples: Sequence[Sample], size: int) -> int:
    """The last sample before the source began to send data; the one before the first record where that cannot be seen."""
    arrived = next(i for i, s in enumerate(samples) if s.records)
    start = samples[0].sent
    began = next((i for i, s in enumerate(samples) if s.sent - start > READING_SHARE * size), arrived)
    return max(0, min(began, arrived) - 1)


def _rate(prefix: str, a: Sample, z: Sample, record_bytes: float) -> dict[str, float]:
    records, seconds = z.records - a.records, max(z.at - a.at, 0.001)
    return {f"{prefix}records_per_second": records / seconds, f"{prefix}mb_per_second": records * record_bytes / seconds / 1e6}

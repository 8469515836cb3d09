"""What a run's progress shows: one bar per lane, with unreachable clusters, a full buffer and halted topics below it."""

from __future__ import annotations

from mirror_pipeline.cli.show.meter import Meter, ProgressSample
from mirror_pipeline.cli.show.progress import Bar, Update
from mirror_pipeline.reports import Progress
from mirror_pipeline.text import count, duration, plural, rate, size

SHOWN_HALTS = 3


class RunContent:
    """The latest sample of each lane, in order of first appearance."""

    def __init__(self) -> None:
        self._meters: dict[tuple[str, str], Meter] = {}
        self._latest: dict[tuple[str, str], ProgressSample] = {}
        self._down: dict[tuple[str, str, str], str] = {}
        self._halted: set[tuple[str, str]] = set()

    def take(self, progress: Progress, now: float) -> Update:
        """Store one update; clusters that become unreachable or recover, a full buffer and new halts are changes."""
        key = (progress.mirror, progress.lane)
        sample = self._latest[key] = self._meters.setdefault(key, Meter()).read(progress, now)
        label = self._label(sample)
        return Update(key, f"{label}: {_facts(sample)}, {_left(sample)}", self._changes(label, sample))

    def bars(self) -> list[Bar]:
        """One for each lane."""
        return [Bar(self._label(each), each.fraction, _left(each), _facts(each), _notes(each)) for each in self._latest.values()]

    def _label(self, sample: ProgressSample) -> str:
        lanes = sum(1 for mirror, _ in self._latest if mirror == sample.mirror)
        return f"{sample.mirror}/{sample.lane}" if lanes > 1 else sample.mirror

    def _changes(self, label: str, sample: ProgressSample) -> list[str]:
        changes: list[str] = []
        sides = (
            ("target reachable again", sample.target_down, _down(sample)),
            ("source reachable again", sample.source_down, f"source down: {sample.source_down}"),
            ("buffer has space again", sample.buffer_full, _full(sample)),
        )
        for over, reason, text in sides:
            key = (sample.mirror, sample.lane, over)
            was = self._down.get(key, "")
            if reason and not was:
                changes.append(f"{label}: {text}")
            elif was and not reason:
                changes.append(f"{label}: {over}")
            self._down[key] = reason
        for halt in sample.halts:
            if (sample.mirror, halt.topic) not in self._halted:
                self._halted.add((sample.mirror, halt.topic))
                changes.append(f"{label}: {halt.topic} halted: {halt.reason}")
        return changes


def _notes(sample: ProgressSample) -> tuple[tuple[str, str], ...]:
    notes: list[tuple[str, str]] = []
    if sample.target_down:
        notes.append((_down(sample), "yellow"))
    if sample.source_down:
        notes.append((f"source down: {sample.source_down}", "yellow"))
    if sample.buffer_full:
        notes.append((_full(sample), "yellow"))
    if sample.search_failure:
        notes.append((f"no new topics or partitions are found: {sample.search_failure}", "yellow"))
    notes += [(f"{halt.topic} halted: {halt.reason}", "red") for halt in sample.halts[:SHOWN_HALTS]]
    if len(sample.halts) > SHOWN_HALTS:
        notes.append((f"and {plural(len(sample.halts) - SHOWN_HALTS, 'more topic')} halted", "red"))
    return tuple(notes)


def _full(sample: ProgressSample) -> str:
    return f"the buffer is full, reading waits: {sample.buffer_full}"


def _facts(sample: ProgressSample) -> str:
    none = "no known lag" if _troubled(sample) else "no lag"
    lag = f"lag {count(sample.lag_records)}" if sample.lag_records else none
    if sample.lag_records and sample.lag_seconds is not None:
        lag += f" ({duration(sample.lag_seconds)})"
    ahead = sample.staged_records - sample.records
    staged = f", {count(ahead)} of them staged" if ahead > 0 else ""
    return f"{plural(sample.records, 'record')}, {size(sample.bytes)}, {rate(sample.bytes_per_second)}, {lag}{staged}"


def _left(sample: ProgressSample) -> str:
    left = sample.seconds_left
    if left:
        return f"{duration(left)} left"
    if sample.halts:
        return f"{plural(len(sample.halts), 'topic')} halted"
    if sample.waiting:
        return f"{plural(len(sample.waiting), 'topic')} waiting"
    for trouble, what in ((sample.target_down, "the target"), (sample.source_down, "the source"), (sample.buffer_full, "space")):
        if trouble:
            return f"waiting for {what}"
    return "up to date" if left == 0.0 else "sending" if sample.staged_records > sample.records else "reading"


def _troubled(sample: ProgressSample) -> bool:
    """Whether uncounted records may exist: a lag of zero does not mean up to date then."""
    down = sample.target_down or sample.source_down
    return bool(sample.halts or sample.waiting or down or sample.buffer_full or sample.search_failure)


def _down(sample: ProgressSample) -> str:
    return f"target down: {sample.target_down}; {plural(sample.staged_records, 'record')} staged so far, staging continues"

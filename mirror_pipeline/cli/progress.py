"""Progress of a run: bars on a terminal, otherwise one line every ten seconds.

The threads of several mirrors call observers concurrently; every view takes its own lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mirror_pipeline.cli.meter import Meter, ProgressSample
from mirror_pipeline.reports import Progress
from mirror_pipeline.text import count, duration, plural, rate, size

QUIET_SECONDS = 10.0
SHOWN_HALTS = 3

Clock = Callable[[], float]


class View(Protocol):
    """Shows the progress of runs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def observe(self, progress: Progress) -> None:
        """Record one progress update; safe from any thread."""

    def note(self, text: str) -> None:
        """Print one line that stays on the screen."""


def view_for(console: Console, starting: str) -> View:
    """Bars when ``console`` is a terminal, lines otherwise."""
    return Bars(console, starting) if console.is_terminal else Lines(console, starting)


class _Samples:
    """The latest sample of each lane, in order of first appearance."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self._meters: dict[tuple[str, str], Meter] = {}
        self._latest: dict[tuple[str, str], ProgressSample] = {}

    def take(self, progress: Progress) -> ProgressSample:
        key = (progress.mirror, progress.lane)
        sample = self._meters.setdefault(key, Meter()).read(progress, self.clock())
        self._latest[key] = sample
        return sample

    def all(self) -> list[ProgressSample]:
        return list(self._latest.values())

    def label(self, sample: ProgressSample) -> str:
        lanes = sum(1 for mirror, _ in self._latest if mirror == sample.mirror)
        return f"{sample.mirror}/{sample.lane}" if lanes > 1 else sample.mirror


class Bars:
    """One bar per lane, redrawn by rich a few times a second."""

    def __init__(self, console: Console, starting: str, clock: Clock = time.monotonic) -> None:
        self._samples = _Samples(clock)
        self._starting = starting
        self._began = clock()
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def observe(self, progress: Progress) -> None:
        """Store the sample; ``Live`` draws it."""
        with self._samples.lock:
            self._samples.take(progress)

    def note(self, text: str) -> None:
        """A line above the bars."""
        self._live.console.print(Text(text))

    def render(self) -> RenderableType:
        """What the terminal shows now."""
        with self._samples.lock:
            samples = [(self._samples.label(sample), sample) for sample in self._samples.all()]
        if not samples:
            self._spinner.update(text=Text(f"{self._starting}, {self._samples.clock() - self._began:.0f} s", "dim"))
            return self._spinner
        return Group(*(block for label, sample in samples for block in _blocks(label, sample)))


def _blocks(label: str, sample: ProgressSample) -> list[RenderableType]:
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(no_wrap=True, overflow="ellipsis", max_width=32)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True, justify="right")
    head.add_column(no_wrap=True, justify="right", min_width=13)
    bar = ProgressBar(total=1.0, completed=sample.fraction, style="grey37", complete_style="cyan", finished_style="green")
    head.add_row(Text(label, style="bold"), bar, Text(f"{sample.fraction:4.0%}"), Text(_left(sample)))
    blocks: list[RenderableType] = [head, Text(f"  {_facts(sample)}", style="dim", no_wrap=True, overflow="ellipsis")]
    if sample.target_down:
        blocks.append(Text(f"  {_down(sample)}", style="yellow"))
    if sample.source_down:
        blocks.append(Text(f"  source down: {sample.source_down}", style="yellow"))
    if sample.buffer_full:
        blocks.append(Text(f"  {_full(sample)}", style="yellow"))
    for halt in sample.halts[:SHOWN_HALTS]:
        blocks.append(Text(f"  {halt.topic} halted: {halt.reason}", style="red"))
    if len(sample.halts) > SHOWN_HALTS:
        blocks.append(Text(f"  and {plural(len(sample.halts) - SHOWN_HALTS, 'more topic')} halted", style="red"))
    return blocks


class Lines:
    """One line per lane every ten seconds, and one at once when a cluster becomes unreachable or recovers, or a topic halts."""

    def __init__(self, console: Console, starting: str, clock: Clock = time.monotonic, every: float = QUIET_SECONDS) -> None:
        self._console = console
        self._starting = starting
        self._samples = _Samples(clock)
        self._every = every
        self._said: dict[tuple[str, str], float] = {}
        self._down: dict[tuple[str, str, str], str] = {}
        self._halted: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        self.note(self._starting)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def observe(self, progress: Progress) -> None:
        """Print what changed, and a summary when it is due."""
        with self._samples.lock:
            sample = self._samples.take(progress)
            label = self._samples.label(sample)
            self._changes(label, sample)
            now, key = self._samples.clock(), (sample.mirror, sample.lane)
            # The first observation only starts the interval.
            if now - self._said.setdefault(key, now) >= self._every:
                self._said[key] = now
                self.note(f"{label}: {_facts(sample)}, {_left(sample)}")

    def note(self, text: str) -> None:
        """One plain line."""
        self._console.out(text, highlight=False)

    def _changes(self, label: str, sample: ProgressSample) -> None:
        sides = (
            ("the target is back", sample.target_down, _down(sample)),
            ("the source is back", sample.source_down, f"source down: {sample.source_down}"),
            ("the buffer has room again", sample.buffer_full, _full(sample)),
        )
        for side, down, said in sides:
            key = (sample.mirror, sample.lane, side)
            was = self._down.get(key, "")
            if down and not was:
                self.note(f"{label}: {said}")
            elif was and not down:
                self.note(f"{label}: {side}")
            self._down[key] = down
        for halt in sample.halts:
            if (sample.mirror, halt.topic) not in self._halted:
                self._halted.add((sample.mirror, halt.topic))
                self.note(f"{label}: {halt.topic} halted: {halt.reason}")


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
    if _troubled(sample) or left is None:
        return f"{plural(len(sample.waiting), 'topic')} waiting" if sample.waiting else "waiting"
    return "up to date"


def _troubled(sample: ProgressSample) -> bool:
    """Whether uncounted records may exist: a lag of zero does not mean up to date then."""
    return bool(sample.halts or sample.waiting or sample.target_down or sample.source_down or sample.buffer_full)


def _down(sample: ProgressSample) -> str:
    return f"target down: {sample.target_down}; {plural(sample.staged_records, 'record')} staged so far, staging continues"

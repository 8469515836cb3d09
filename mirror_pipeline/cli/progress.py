"""A run as it goes: bars on a terminal, a quiet line every ten seconds otherwise.

Observers are called from the threads of several mirrors at once; every view takes its own lock.
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

from mirror_pipeline.cli.meter import Meter, Shot
from mirror_pipeline.reports import Progress
from mirror_pipeline.text import count, duration, plural, rate, size

QUIET_SECONDS = 10.0
SHOWN_HALTS = 3

Clock = Callable[[], float]


class View(Protocol):
    """Something that shows runs while they last."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def observe(self, progress: Progress) -> None:
        """Take in a moving picture; safe from any thread."""

    def note(self, text: str) -> None:
        """One line that stays."""


def view_for(console: Console, starting: str) -> View:
    """Bars when ``console`` is a terminal, lines otherwise."""
    return Bars(console, starting) if console.is_terminal else Lines(console, starting)


class _Shots:
    """The latest shot of each lane, in order of appearance."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self._meters: dict[tuple[str, str], Meter] = {}
        self._latest: dict[tuple[str, str], Shot] = {}

    def take(self, progress: Progress) -> Shot:
        key = (progress.mirror, progress.lane)
        shot = self._meters.setdefault(key, Meter()).read(progress, self.clock())
        self._latest[key] = shot
        return shot

    def all(self) -> list[Shot]:
        return list(self._latest.values())

    def label(self, shot: Shot) -> str:
        lanes = sum(1 for mirror, _ in self._latest if mirror == shot.mirror)
        return f"{shot.mirror}/{shot.lane}" if lanes > 1 else shot.mirror


class Bars:
    """One bar a lane, drawn by rich a few times a second."""

    def __init__(self, console: Console, starting: str, clock: Clock = time.monotonic) -> None:
        self._shots = _Shots(clock)
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
        """Remember; drawing is the Live's business."""
        with self._shots.lock:
            self._shots.take(progress)

    def note(self, text: str) -> None:
        """A line above the bars."""
        self._live.console.print(Text(text))

    def render(self) -> RenderableType:
        """What the terminal shows now."""
        with self._shots.lock:
            shots = [(self._shots.label(shot), shot) for shot in self._shots.all()]
        if not shots:
            self._spinner.update(text=Text(f"{self._starting}, {self._shots.clock() - self._began:.0f} s", "dim"))
            return self._spinner
        return Group(*(block for label, shot in shots for block in _blocks(label, shot)))


def _blocks(label: str, shot: Shot) -> list[RenderableType]:
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(no_wrap=True, overflow="ellipsis", max_width=32)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True, justify="right")
    head.add_column(no_wrap=True, justify="right", min_width=13)
    bar = ProgressBar(total=1.0, completed=shot.fraction, style="grey37", complete_style="cyan", finished_style="green")
    head.add_row(Text(label, style="bold"), bar, Text(f"{shot.fraction:4.0%}"), Text(_left(shot)))
    blocks: list[RenderableType] = [head, Text(f"  {_facts(shot)}", style="dim", no_wrap=True, overflow="ellipsis")]
    if shot.target_down:
        blocks.append(Text(f"  {_down(shot)}", style="yellow"))
    if shot.source_down:
        blocks.append(Text(f"  source down: {shot.source_down}", style="yellow"))
    if shot.buffer_full:
        blocks.append(Text(f"  {_full(shot)}", style="yellow"))
    for halt in shot.halts[:SHOWN_HALTS]:
        blocks.append(Text(f"  {halt.topic} halted: {halt.reason}", style="red"))
    if len(shot.halts) > SHOWN_HALTS:
        blocks.append(Text(f"  and {plural(len(shot.halts) - SHOWN_HALTS, 'more topic')} halted", style="red"))
    return blocks


class Lines:
    """A line every ten seconds a lane, and one at once when a cluster goes, comes back, or a topic halts."""

    def __init__(self, console: Console, starting: str, clock: Clock = time.monotonic, every: float = QUIET_SECONDS) -> None:
        self._console = console
        self._starting = starting
        self._shots = _Shots(clock)
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
        """Say what is worth a line."""
        with self._shots.lock:
            shot = self._shots.take(progress)
            label = self._shots.label(shot)
            self._changes(label, shot)
            now, key = self._shots.clock(), (shot.mirror, shot.lane)
            # The first observation opens the ten seconds, it says nothing yet.
            if now - self._said.setdefault(key, now) >= self._every:
                self._said[key] = now
                self.note(f"{label}: {_facts(shot)}, {_left(shot)}")

    def note(self, text: str) -> None:
        """One plain line."""
        self._console.out(text, highlight=False)

    def _changes(self, label: str, shot: Shot) -> None:
        sides = (
            ("the target is back", shot.target_down, _down(shot)),
            ("the source is back", shot.source_down, f"source down: {shot.source_down}"),
            ("the buffer has room again", shot.buffer_full, _full(shot)),
        )
        for side, down, said in sides:
            key = (shot.mirror, shot.lane, side)
            was = self._down.get(key, "")
            if down and not was:
                self.note(f"{label}: {said}")
            elif was and not down:
                self.note(f"{label}: {side}")
            self._down[key] = down
        for halt in shot.halts:
            if (shot.mirror, halt.topic) not in self._halted:
                self._halted.add((shot.mirror, halt.topic))
                self.note(f"{label}: {halt.topic} halted: {halt.reason}")


def _full(shot: Shot) -> str:
    return f"the buffer is full, reading waits: {shot.buffer_full}"


def _facts(shot: Shot) -> str:
    none = "no known lag" if _troubled(shot) else "no lag"
    lag = f"lag {count(shot.lag_records)}" if shot.lag_records else none
    if shot.lag_records and shot.lag_seconds is not None:
        lag += f" ({duration(shot.lag_seconds)})"
    ahead = shot.staged_records - shot.records
    staged = f", {count(ahead)} of them staged" if ahead > 0 else ""
    return f"{plural(shot.records, 'record')}, {size(shot.bytes)}, {rate(shot.bytes_per_second)}, {lag}{staged}"


def _left(shot: Shot) -> str:
    left = shot.seconds_left
    if left:
        return f"{duration(left)} left"
    if shot.halts:
        return f"{plural(len(shot.halts), 'topic')} halted"
    if _troubled(shot) or left is None:
        return f"{plural(len(shot.waiting), 'topic')} waiting" if shot.waiting else "waiting"
    return "up to date"


def _troubled(shot: Shot) -> bool:
    """Whether there may be records to copy that nothing is known of: no lag is not up to date then."""
    return bool(shot.halts or shot.waiting or shot.target_down or shot.source_down or shot.buffer_full)


def _down(shot: Shot) -> str:
    return f"target down: {shot.target_down}; {plural(shot.staged_records, 'record')} staged so far, staging goes on"

"""Progress of long commands: bars on a terminal, otherwise one line every ten seconds.

Every command shows its work through ``view_for``. What differs between commands is the content: ``RunContent`` and
``VerifyContent`` turn progress updates into bars and lines. Several threads may call ``observe``; the view holds a lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mirror_pipeline.cli.show.meter import Window
from mirror_pipeline.text import duration, plural, rate, size

QUIET_SECONDS = 10.0

Clock = Callable[[], float]
P = TypeVar("P")
Seen = TypeVar("Seen", contravariant=True)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: ``left`` stands at its end, ``facts`` below it, then ``notes`` with their colours."""

    label: str
    fraction: float
    left: str
    facts: str
    notes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """What an observation means without a terminal: ``changes`` are printed at once, ``line`` when the interval of ``key`` is over."""

    key: Hashable
    line: str
    changes: Sequence[str] = ()


class Content(Protocol[Seen]):
    """Turns the progress updates of one kind of command into bars and lines."""

    def take(self, progress: Seen, now: float) -> Update:
        """Store one update."""

    def bars(self) -> list[Bar]:
        """The bars now; none before the first update."""


class View(Protocol[Seen]):
    """Shows progress."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def observe(self, progress: Seen) -> None:
        """Record one progress update; safe from any thread."""

    def note(self, text: str) -> None:
        """Print one line that stays on the screen."""


def view_for(console: Console, starting: str, content: Content[P]) -> View[P]:
    """Bars when ``console`` is a terminal, lines otherwise; ``starting`` is shown before the first update."""
    return Bars(console, starting, content) if console.is_terminal else Lines(console, starting, content)


class Bars(Generic[P]):
    """Bars that rich redraws a few times a second."""

    def __init__(self, console: Console, starting: str, content: Content[P], clock: Clock = time.monotonic) -> None:
        self._content, self._clock = content, clock
        self._lock = threading.Lock()
        self._starting = starting
        self._began = clock()
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def observe(self, progress: P) -> None:
        """Store the update; ``Live`` draws it."""
        with self._lock:
            self._content.take(progress, self._clock())

    def note(self, text: str) -> None:
        """A line above the bars."""
        self._live.console.print(Text(text))

    def render(self) -> RenderableType:
        """What the terminal shows now."""
        with self._lock:
            bars = self._content.bars()
        if not bars:
            self._spinner.update(text=Text(f"{self._starting}, {self._clock() - self._began:.0f} s", "dim"))
            return self._spinner
        return Group(*(block for bar in bars for block in _blocks(bar)))


def _blocks(bar: Bar) -> list[RenderableType]:
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(no_wrap=True, overflow="ellipsis", max_width=32)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True, justify="right")
    head.add_column(no_wrap=True, justify="right", min_width=13)
    drawn = ProgressBar(total=1.0, completed=bar.fraction, style="grey37", complete_style="cyan", finished_style="green")
    head.add_row(Text(bar.label, style="bold"), drawn, Text(f"{bar.fraction:4.0%}"), Text(bar.left))
    facts = Text(f"  {bar.facts}", style="dim", no_wrap=True, overflow="ellipsis")
    return [head, facts, *(Text(f"  {text}", style=style) for text, style in bar.notes)]


class Lines(Generic[P]):
    """Plain lines: the summary of each key every ten seconds, changes at once."""

    def __init__(
        self, console: Console, starting: str, content: Content[P], clock: Clock = time.monotonic, every: float = QUIET_SECONDS
    ) -> None:
        self._console = console
        self._starting = starting
        self._content, self._clock = content, clock
        self._lock = threading.Lock()
        self._every = every
        self._printed: dict[Hashable, float] = {}

    def __enter__(self) -> Self:
        self.note(self._starting)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def observe(self, progress: P) -> None:
        """Print what changed, and the summary when it is due."""
        with self._lock:
            now = self._clock()
            update = self._content.take(progress, now)
            for change in update.changes:
                self.note(change)
            # The first observation only starts the interval.
            if now - self._printed.setdefault(update.key, now) >= self._every:
                self._printed[update.key] = now
                self.note(update.line)

    def note(self, text: str) -> None:
        """One plain line."""
        self._console.out(text, highlight=False)


class VerificationFigures(Protocol):
    """The figures shown for a running verification."""

    total: int
    offsets: int
    records: int
    bytes: int
    suspects: int


class VerifyContent:
    """The verification that reported last; another one starts afresh."""

    def __init__(self) -> None:
        self._window = Window()
        self._last: VerificationFigures | None = None
        self._bars: list[Bar] = []

    def take(self, progress: VerificationFigures, now: float) -> Update:
        """Store one update."""
        if self._last is not progress:
            self._last, self._window = progress, Window()
        pace, speed = self._window.rates(now, progress.offsets, progress.bytes)
        fraction = progress.offsets / progress.total if progress.total else 1.0
        facts = f"{plural(progress.records, 'record')} compared, {size(progress.bytes)}, {rate(speed)}"
        left = _left(progress, pace)
        self._bars = [Bar("verify", fraction, left, facts)]
        return Update("verify", f"{facts}, {left}")

    def bars(self) -> list[Bar]:
        """One, or none before the first update."""
        return self._bars


def _left(progress: VerificationFigures, pace: float) -> str:
    if progress.suspects:
        return f"comparing {plural(progress.suspects, 'record')} one by one"
    return f"{duration((progress.total - progress.offsets) / pace)} left" if pace > 0 else "waiting"

"""Progress of a verification: a bar on a terminal, otherwise one line every ten seconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mirror_pipeline.cli.meter import WINDOW_SECONDS
from mirror_pipeline.cli.progress import QUIET_SECONDS, Clock
from mirror_pipeline.text import duration, plural, rate, size


class Seen(Protocol):
    """The figures shown for a running verification."""

    total: int
    offsets: int
    records: int
    bytes: int
    suspects: int


class VerifyView:
    """Shows verifications one after another; ``observe`` may be called from any thread.

    Args:
        console: where to show it.
        starting: text shown before the first result.
        clock: steady seconds.
        every: seconds between two lines when the console is not a terminal.
    """

    def __init__(self, console: Console, starting: str, clock: Clock = time.monotonic, every: float = QUIET_SECONDS) -> None:
        self._console, self._starting, self._clock, self._every = console, starting, clock, every
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, int, int]] = deque()
        self._now: Seen | None = None
        self._began = clock()
        self._said: float | None = None
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        else:
            self.note(self._starting)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def observe(self, progress: Seen) -> None:
        """Record one progress update."""
        with self._lock:
            now = self._clock()
            if self._now is not progress:
                self._now = progress
                self._seen.clear()
            self._seen.append((now, progress.offsets, progress.bytes))
            while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
                self._seen.popleft()
            # The first observation only starts the interval.
            said = now if self._said is None else self._said
            line = "" if self._console.is_terminal or now - said < self._every else self._facts(progress)
            self._said = now if line else said
        if line:
            self.note(line)

    def note(self, text: str) -> None:
        """Print one line that stays on the screen."""
        if self._console.is_terminal:
            self._live.console.print(Text(text))
        else:
            self._console.out(text, highlight=False)

    def render(self) -> RenderableType:
        """What the terminal shows now."""
        with self._lock:
            progress = self._now
            if progress is None:
                self._spinner.update(text=Text(f"{self._starting}, {self._clock() - self._began:.0f} s", "dim"))
                return self._spinner
            share = progress.offsets / progress.total if progress.total else 1.0
            head = Table.grid(padding=(0, 1), expand=True)
            head.add_column(no_wrap=True)
            head.add_column(ratio=1)
            head.add_column(no_wrap=True, justify="right")
            bar = ProgressBar(total=1.0, completed=share, style="grey37", complete_style="cyan", finished_style="green")
            head.add_row(Text("verify", style="bold"), bar, Text(f"{share:4.0%}"))
            return Group(head, Text(f"  {self._facts(progress)}", style="dim", no_wrap=True, overflow="ellipsis"))

    def _facts(self, progress: Seen) -> str:
        then, offsets, held = self._seen[0]
        elapsed = self._clock() - then
        speed = (progress.bytes - held) / elapsed if elapsed > 0 else 0.0
        pace = (progress.offsets - offsets) / elapsed if elapsed > 0 else 0.0
        left = (progress.total - progress.offsets) / pace if pace > 0 else None
        end = "waiting" if left is None else f"{duration(left)} left"
        if progress.suspects:
            end = f"looking at {plural(progress.suspects, 'record')} one by one"
        return f"{plural(progress.records, 'record')} compared, {size(progress.bytes)}, {rate(speed)}, {end}"

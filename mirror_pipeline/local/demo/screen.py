"""The output of a demo: steps with progress bars on a terminal, plain lines otherwise, and the table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from mirror_pipeline.local.demo.demo import DemoReport

SCREEN_DIFFERENCES = 10
# Columns if the output is not a terminal: rich would truncate lines at 80, and a file does not wrap.
SCREEN_WIDTH = 180


class DemoStep:
    """One step in progress; ``done`` is the text of the finished line."""

    def __init__(self, bar: Progress | None, title: str) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=None, facts="") if bar is not None else None
        self.done = ""

    def show(self, completed: float, total: float, facts: str = "") -> None:
        """Update the bar; without a terminal, do nothing."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=completed, total=total or None, facts=facts)


class Screen:
    """Steps go to standard error, the result to standard output.

    Args:
        steps: console for the steps; standard error by default.
        out: console for the result; standard output by default.
        table: False keeps standard output empty, for programs that print the report themselves.
    """

    def __init__(self, steps: Console | None = None, out: Console | None = None, *, table: bool = True) -> None:
        self.steps = steps or Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else SCREEN_WIDTH)
        self.out = out or Console(highlight=False, width=None if sys.stdout.isatty() else SCREEN_WIDTH)
        self._table = table

    @contextmanager
    def step(self, title: str) -> Iterator[DemoStep]:
        """Show a step while it runs, and one line when it is done."""
        began = time.monotonic()
        if self.steps.is_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(24),
                TextColumn("{task.fields[facts]}"),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self.steps, transient=True) as bar:
                step = DemoStep(bar, title)
                yield step
        else:
            self.say(f"{title} ...")
            step = DemoStep(None, title)
            yield step
        line = f"{title}: {step.done}" if step.done else title
        self.steps.print(Text.assemble(("ok ", "green"), line, (f"  {time.monotonic() - began:.1f} s", "dim")), soft_wrap=True)

    def say(self, text: str) -> None:
        """One plain line between the steps."""
        self.steps.print(Text(text), soft_wrap=True)

    def result(self, report: DemoReport) -> None:
        """The table, the first differences if any, and the summary."""
        if not self._table:
            return
        self.out.print(table_of(report))
        for line in difference_lines(report):
            self.out.print(Text(line, "red"), soft_wrap=True)
        same = sum(row.verdict == "identical" for row in report.rows)
        verdict = f"{same} of {len(report.rows)} topics identical, record by record"
        facts = f"{report.records:,} records, {report.bytes / 1e6:,.1f} MB, {report.live_records:,} of the records while the mirror ran"
        self.out.print(Text.assemble((verdict, "green" if report.ok else "red"), f": {facts}"), soft_wrap=True)

    def advice(self, lines: Sequence[str]) -> None:
        """Suggested next steps."""
        for line in lines if self._table else ():
            self.out.print(Text(line), soft_wrap=True)


def table_of(report: DemoReport) -> Table:
    """One row for each topic."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    numbers = ("partitions", "records", "MB", "seconds")
    for name in ("topic", *numbers, "verdict"):
        grid.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    grid.add_column("edge case", style="dim")
    for row in report.rows:
        verdict = Text(row.verdict, "green" if row.verdict == "identical" else "red")
        seconds = "-" if row.seconds is None else f"{row.seconds:.1f}"
        grid.add_row(row.topic, str(row.partitions), f"{row.records:,}", f"{row.bytes / 1e6:,.2f}", seconds, verdict, row.description)
    return grid


def difference_lines(report: DemoReport) -> list[str]:
    """The first differences, one per line; contents are never shown."""
    differences = [d for row in report.rows for d in row.differences]
    lines = [
        f"{d.topic}[{d.partition}] {d.kind}: {_offset('source', d.source_offset)}, {_offset('target', d.target_offset)} {d.detail}".rstrip()
        for d in differences[:SCREEN_DIFFERENCES]
    ]
    return lines + ([f"and {len(differences) - SCREEN_DIFFERENCES} more"] if len(differences) > SCREEN_DIFFERENCES else [])


def _offset(side: str, offset: int | None) -> str:
    return f"not on the {side}" if offset is None else f"{side} offset {offset}"

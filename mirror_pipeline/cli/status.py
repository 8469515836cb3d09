"""Commands that report on a mirror: ``lag``, ``status``, ``health``, ``gaps``, ``sql``; and ``evict``, which frees buffer space."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import PROBLEM, answers, describe, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, Mirrors, OneMirror
from mirror_pipeline.cli.show import tables, tables_status
from mirror_pipeline.cli.spark_output import children_unheard
from mirror_pipeline.errors import BufferUnusable, ClusterUnreachable, MirrorError, UsageError
from mirror_pipeline.operations.state.health import EXIT_CODES, worst
from mirror_pipeline.reports import gap_json
from mirror_pipeline.text import count, parse_duration

if TYPE_CHECKING:
    from mirror_pipeline.mirror import Mirror

Watch = Annotated[bool, typer.Option("--watch", "-w", metavar=NO_VALUE, help="Refresh until Ctrl-C and show a history.")]
Every = Annotated[float, typer.Option("--every", min=0.5, metavar="SECONDS", help="Refresh interval of --watch, in seconds.")]
ExitCode = Annotated[bool, typer.Option("--exit-code", metavar=NO_VALUE, help="Exit with the exit code of `mirror health`.")]
MaxAge = Annotated[
    str | None,
    typer.Option("--max-age", metavar="TIME", help="Report a mirror as stale when records have waited this long and no lane runs: 5m."),
]
Partitions = Annotated[bool, typer.Option("--partitions", "-p", metavar=NO_VALUE, help="Show one row per partition, with its offsets.")]

History = Annotated[
    str | None,
    typer.Option("--history", metavar="TIME", help="Show records and their delay by hour for that time, 7d at most, from the ledger."),
]
Query = Annotated[str, typer.Argument(metavar="QUERY", help="One query in Spark's SQL; - reads it from standard input.")]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="ROWS", help="Print at most this many rows.")]


def lag(
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    mirror: Mirrors = None,
    watch: Watch = False,
    every: Every = 2.0,
    partitions: Partitions = False,
    history: History = None,
    as_json: AsJson = False,
) -> None:
    """Show how far each target lags its source, in records and in time.

    Lag counts source offsets between the position and the last stable offset; the staged part of it is already in the
    buffer. `behind by` is the age of the oldest record that is not on the target, or what it is at least (`more than`). Halted topics,
    and those that a lane at work waits for, are listed with their reason. Exit code 0 even when there is lag or a halt.

    While the source is unreachable, only the staged records that are not on the target yet are shown; exit code 3.

    With --history, what was sent instead, by hour: records, and the delay from a record's timestamp until it was known to be on the
    target. The ledger keeps the longest delay of each row, after ten minutes of each partition and hour. Contacts no cluster.
    """
    if history is not None and (watch or partitions):
        raise UsageError("--history cannot be combined with --watch or --partitions", hint="run the commands one after the other")
    if watch and as_json:
        raise UsageError("--watch and --json cannot be combined", hint="--json prints one document; run the command repeatedly instead")
    opened = load.load(config)
    mirrors = [opened.mirror(name) for name in opened.pick(mirror)]
    if watch:
        _watch(mirrors, every, partitions)
        return
    if history is not None:
        _history(mirrors, parse_duration(history), as_json)
        return
    if as_json:
        print_json({"mirrors": [each.lag().to_json() for each in mirrors]})
        return
    shown: list[RenderableType] = []
    unreachable: ClusterUnreachable | None = None
    for each in mirrors:
        try:
            shown.append(tables_status.lag(each.lag(), partitions=partitions))
        except ClusterUnreachable as error:
            unreachable = unreachable or error
            shown += _staged(each, partitions)
    if shown:
        answers().print(tables_status.each(shown))
    if unreachable is not None:
        raise unreachable


def _history(mirrors: list[Mirror], seconds: float, as_json: bool) -> None:
    found = [each.delays(seconds) for each in mirrors]
    if as_json:
        print_json({"mirrors": [answer.to_json() for answer in found]})
    else:
        answers().print(tables_status.each([tables_status.delays(answer, answers().width) for answer in found]))


def _staged(mirror: Mirror, partitions: bool) -> list[RenderableType]:
    """What is known of a mirror without its source; empty before the first copy, and when the buffer cannot be read either."""
    try:
        found = mirror.undelivered()
    except BufferUnusable:
        return []
    return [tables_status.undelivered(found, partitions=partitions)] if found.topics else []


def _watch(mirrors: list[Mirror], every: float, partitions: bool) -> None:
    console = answers()
    history = tables_status.LagHistory(tables_status.HISTORY * (2 if console.width >= tables_status.WIDE else 1))

    def look() -> RenderableType:
        parts: list[RenderableType] = []
        for mirror in mirrors:
            try:
                answer = mirror.lag()
            except MirrorError as error:  # a cluster may be unreachable for a moment: report it and retry
                parts += _staged(mirror, partitions) if isinstance(error, ClusterUnreachable) else []
                parts.append(Text(f"error: {describe(error).message}", "red"))
                continue
            history.add(answer)
            parts.append(tables_status.lag(answer, history, partitions=partitions, width=console.width))
        return tables_status.each([*parts, Text(f"{time.strftime('%H:%M:%S')}, refreshed every {every:g} s; Ctrl-C exits", "dim")])

    try:
        if not console.is_terminal:
            while True:
                console.print(look())
                time.sleep(every)
        with Live(look(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        return


def status(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, exit_code: ExitCode = False, as_json: AsJson = False) -> None:
    """Show the state of each lane, buffer usage, and the number of gaps.

    Contacts no cluster. Exit code 0 in every state; with --exit-code, that of `mirror health`, which may ask the source.
    """
    opened = load.load(config)
    mirrors = [opened.mirror(name) for name in opened.pick(mirror)]
    found, now = [each.status() for each in mirrors], time.time()
    if as_json:
        print_json({"mirrors": [answer.to_json() for answer in found]})
    else:
        answers().print(tables_status.each([tables_status.status(answer, now) for answer in found]))
    if exit_code:
        raise typer.Exit(max(each.health().exit_code for each in mirrors))


def health(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, max_age: MaxAge = None, as_json: AsJson = False) -> None:
    """One line for probes and alerts: healthy and up to when everything is copied, or what is wrong.

    While all lanes run, their reports are enough. Otherwise the source is asked whether records wait: an idle mirror is healthy, one
    whose records nobody copies is not.

    Exit code 0: healthy. 1: a topic is halted, or has been behind for 30 s, records wait and no lane is running, or a lane failed.
    3: a cluster is unreachable, or a lane is stale because it was interrupted or has never run, or records have waited for --max-age.
    """
    age = parse_duration(max_age) if max_age is not None else None
    opened = load.load(config)
    found = [opened.mirror(name).health(age) for name in opened.pick(mirror)]
    state = worst([answer.state for answer in found])
    if as_json:
        print_json({"state": state, "exit_code": EXIT_CODES[state], "mirrors": [answer.to_json() for answer in found]})
    else:
        answers().print(tables_status.health(found, state, time.time()), soft_wrap=True)
    raise typer.Exit(EXIT_CODES[state])


def gaps(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, as_json: AsJson = False) -> None:
    """List source offsets that are permanently missing on the target, with the cause, who decided it, and when.

    Exit code 0 with or without gaps.
    """
    opened = load.load(config)
    found = [gap for name in opened.pick(mirror) for gap in opened.mirror(name).gaps()]
    if as_json:
        print_json({"gaps": [gap_json(gap) for gap in found]})
    else:
        answers().print(tables.gaps(found))


def evict(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, as_json: AsJson = False) -> None:
    """Remove data from the buffer that is on the target, verified, and older than the buffer retention.

    Data that is not yet verified is compared with the target first. Runs and the Dagster schedule also evict; run this
    command only to free space now. Exit code 1 when the target differs from the staged data, which is then kept.
    """
    opened = load.load(config)
    done = [(name, opened.mirror(name).evict()) for name in opened.pick(mirror)]
    if as_json:
        print_json({"mirrors": [{"mirror": name, "lanes": answer} for name, answer in done]})
    else:
        answers().print(tables.evicted(done, time.time()))
    if any(row.get("differences") for _, answer in done for row in answer):
        raise typer.Exit(PROBLEM)


def sql(
    query: Query, config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: OneMirror = None, limit: Limit = 1_000, as_json: AsJson = False
) -> None:
    """Ask the buffer and the ledger in SQL: what was copied when, where each partition is, which offset is which, what is missing.

    Tables: spans, sends, gaps, incarnations, producers, verifications, decisions, quarantine. Views: copied, positions, offset_map,
    lag_history, holes, buffered. Runs one query and refuses all else: commands, other tables, files, programs, calls into Java.
    Reads the mirror's own tables, of all its lanes; contacts no cluster. Spark with Delta answers, which takes some seconds to start.
    """
    from mirror_pipeline.operations.sql import rows_of  # the buffer's libraries: not for `--help`

    opened = load.load(config)
    name = opened.one(mirror)
    text = sys.stdin.read() if query == "-" else query
    with Console(stderr=True).status("starting Spark"), children_unheard():
        answer = opened.mirror(name).sql(text)
        rows = rows_of(answer, limit + 1)
    if as_json:
        shown = [{name: tables_status.plain(value) for name, value in row.items()} for row in rows[:limit]]
        print_json({"columns": answer.columns, "rows": shown, "more": len(rows) > limit})
        return
    answers().print(tables_status.rows(answer.dtypes, rows[:limit]))
    if len(rows) > limit:
        Console(stderr=True).print(f"the first {count(limit)} rows; --limit prints more")

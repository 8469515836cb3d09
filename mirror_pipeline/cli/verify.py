"""Commands that verify and repair copies: ``verify`` and ``repair``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import PROBLEM, UNEXPECTED, answers, describe, note, notices, print_json
from mirror_pipeline.cli.jobs import Job, Outcome, run_jobs, signals_stop
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, Mirrors, OneTopic, Settings
from mirror_pipeline.cli.run import OneMirror, SharedSession, Topics
from mirror_pipeline.cli.show import tables_verify
from mirror_pipeline.cli.show.progress import VerifyContent, view_for
from mirror_pipeline.cli.spark_output import children_unheard
from mirror_pipeline.errors import UsageError
from mirror_pipeline.text import parse_time

T = TypeVar("T")

Since = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Start of the time range: 2026-11-21T14:00:00Z, or -2h.")]
Until = Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the time range, exclusive: as --from, or now.")]
Sample = Annotated[float | None, typer.Option("--sample", metavar="FRACTION", help="Compare only a random fraction, such as 0.05.")]
External = Annotated[
    bool,
    typer.Option("--external", metavar=NO_VALUE, help="Compare any two topics: needs --source, --target and --topic SRC=DST."),
]
Source = Annotated[str | None, typer.Option("--source", metavar="CLUSTER", help="Source cluster; only with --external.")]
Target = Annotated[str | None, typer.Option("--target", metavar="CLUSTER", help="Target cluster; only with --external.")]
Everything = Annotated[bool, typer.Option("--all", metavar=NO_VALUE, help="List every difference; the default is the first 20.")]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar=NO_VALUE, help="Show what would be written, and write nothing.")]

Observe = Callable[[Any], None]
Work = Callable[[Observe, threading.Event], T]


def verify(
    context: typer.Context,
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    mirror: Mirrors = None,
    topic: Topics = None,
    from_: Since = None,
    to: Until = None,
    sample: Sample = None,
    external: External = False,
    source: Source = None,
    target: Target = None,
    all_: Everything = False,
    as_json: AsJson = False,
) -> None:
    """Compare copies with their sources, record by record.

    Reads both clusters and writes to neither; the mirror may be running. Records not yet copied are skipped, and recorded
    gaps do not count as differences. With --external any two topics are compared, including ones that another tool
    copied; --topic then takes SRC=DST, once per pair. Records that `mirror repair` wrote to a side topic are listed as
    repaired and do not count as differences.

    Exit code 1 when anything differs or cannot be read.
    """
    now = datetime.now(UTC)
    start, end = (None if text is None else parse_time(text, now) for text in (from_, to))
    if start is not None and end is not None and start >= end:
        raise UsageError("--from is not before --to", hint="the range is from <= time < to; swap them or change one")
    opened = load.load(config)
    settings: Settings = context.obj
    if external:
        jobs = _external(opened, _clusters(source, target, mirror, sample), _pairs(topic), start, end)
    elif source is not None or target is not None:
        raise UsageError("--source and --target require --external", hint="the configuration names a mirror's clusters; use --mirror")
    else:
        jobs = _mirrors(opened, opened.pick(mirror), topic, start, end, 1.0 if sample is None else sample)
    ended = _with_progress("reading the ledger", jobs, settings.debug)
    document = tables_verify.joined([outcome.result for outcome in ended if outcome.result is not None])
    if as_json:
        print_json(document)
    else:
        answers().print(tables_verify.verdict(document, everything=all_))
    raise typer.Exit(0 if document["ok"] else PROBLEM)


def _mirrors(
    opened: load.LoadedConfig, names: Sequence[str], topics: list[str] | None, start: int | None, end: int | None, sample: float
) -> list[tuple[str, Work[Any]]]:
    # The first mirror with enough data to need Spark starts it; the others share it.
    shared = SharedSession(opened.session) if len(names) > 1 else None

    def work(name: str) -> Work[Any]:
        return lambda observe, stop: opened.mirror(name).verify(
            topics=topics or None,
            from_time=start,
            to_time=end,
            sample=sample,
            observer=observe,
            stop=stop,
            session=shared.get if shared else None,
        )

    return [(name, work(name)) for name in names]


def repair(
    context: typer.Context,
    mirror: OneMirror,
    topic: OneTopic,
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    dry_run: DryRun = False,
    all_: Everything = False,
    as_json: AsJson = False,
) -> None:
    """Write records that are missing or altered on the target into a side topic.

    Verifies the topic first. The records are written to NAME.repair, in the same partitions and in source offset order. The
    mirrored topic is not changed, because its order and offsets are guaranteed. A second repair adds nothing.

    Exit code 1 when a record is no longer available, or with --dry-run when there is something to repair.
    """
    opened = load.load(config)
    settings: Settings = context.obj
    (name,) = opened.pick([mirror])

    def work(observe: Observe, stop: threading.Event) -> Any:
        return opened.mirror(name).repair(topic, dry_run=dry_run, observer=observe, stop=stop)

    (ended,) = _with_progress("reading the ledger", [(name, work)], settings.debug)
    document = ended.result.to_json() if ended.result is not None else {}
    if as_json:
        print_json(document)
    else:
        answers().print(tables_verify.repaired(document, everything=all_))
    raise typer.Exit(0 if document["ok"] else PROBLEM)


def _external(
    opened: load.LoadedConfig, clusters: tuple[str, str], pairs: dict[str, str], start: int | None, end: int | None
) -> list[tuple[str, Work[Any]]]:
    def work(observe: Observe, stop: threading.Event) -> Any:
        return opened.external(*clusters, pairs, from_time=start, to_time=end, observer=observe, stop=stop)

    return [("external", work)]


def _clusters(source: str | None, target: str | None, mirrors: list[str] | None, sample: float | None) -> tuple[str, str]:
    if mirrors or sample is not None:
        raise UsageError("--external cannot be combined with --mirror or --sample", hint="it takes --source, --target and --topic SRC=DST")
    return _given("--source", source), _given("--target", target)


def _given(option: str, value: str | None) -> str:
    if value is None:
        raise UsageError(f"--external needs {option}", hint="name a cluster of the configuration file")
    return value


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or ():
        ours, equals, theirs = text.partition("=")
        if not (ours and equals and theirs):
            raise UsageError(f"--topic {text} is not a pair of topics", hint="write it as --topic orders=east.orders")
        if ours in pairs:
            raise UsageError(f"--topic {ours}= is given twice", hint="compare it with one topic at a time")
        pairs[ours] = theirs
    if not pairs:
        raise UsageError("--external needs at least one --topic SRC=DST", hint="for example --topic orders=east.orders")
    return pairs


def _with_progress(starting: str, jobs: Sequence[tuple[str, Work[T]]], debug: bool) -> list[Outcome[T]]:
    """Run the jobs one after another; the first error fails the command."""
    stop = threading.Event()
    view = view_for(notices(), starting, VerifyContent())

    def stopping(_: str) -> None:
        view.note("stopping; Ctrl-C again exits at once")

    def job(name: str, work: Work[T]) -> Job[T]:
        return Job(name, lambda: work(view.observe, stop))

    with children_unheard(wanted=not debug) as heard, view, signals_stop(stop, stopping):
        ended = run_jobs([job(name, work) for name, work in jobs], together=False, stop=stop)
    error = next((outcome.error for outcome in ended if outcome.error is not None), None)
    if error is not None:
        if describe(error).exit_code == UNEXPECTED:
            for line in heard.lines():
                note(f"spark: {line}")
        raise error
    if any(outcome.result is None for outcome in ended):
        note("stopped before it started")
        raise typer.Exit(PROBLEM)
    return ended

"""Commands that copy records: ``run`` and ``backfill``."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import OK, PROBLEM, UNEXPECTED, UNREACHABLE, answers, describe, note, notices, print_json, say
from mirror_pipeline.cli.jobs import Job, Outcome, run_jobs, signals_stop
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, Mirrors, OneTopic, Settings, named_topics
from mirror_pipeline.cli.show import tables
from mirror_pipeline.cli.show.progress import View, view_for
from mirror_pipeline.cli.show.run_progress import RunContent
from mirror_pipeline.cli.show.tables_status import each
from mirror_pipeline.cli.spark_output import children_unheard
from mirror_pipeline.errors import ClusterUnreachable, UsageError
from mirror_pipeline.halts import LEFT_ALONE
from mirror_pipeline.reports import Progress, RecordSource, RunReport
from mirror_pipeline.text import parse_duration, parse_time

T = TypeVar("T")

Once = Annotated[bool, typer.Option("--once", metavar=NO_VALUE, help="Copy the records that the source holds now, then stop.")]
Period = Annotated[str | None, typer.Option("--for", metavar="TIME", help="Copy for this long, such as 30m or 1h30m, then stop.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=named_topics, help="Only this topic; may be given several times."),
]
Drain = Annotated[
    bool, typer.Option("--drain", metavar=NO_VALUE, help="Only deliver what is staged, then stop; the source is not contacted.")
]
Lane = Annotated[int | None, typer.Option("--lane", min=0, metavar="N", help="Only lane N, counted from 0.")]

OneMirror = Annotated[str, typer.Option("--mirror", "-m", metavar="NAME", help="The mirror whose clusters and naming are used.")]
From = Annotated[str, typer.Option("--from", metavar="TIME", help="Start of the time range: 2026-11-21T14:00:00Z, or -2h (two hours ago).")]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="End of the time range, exclusive: as --from, or now.")]
FromBuffer = Annotated[
    bool | None,
    typer.Option(
        "--from-buffer/--from-source",
        help="Copy from the buffer and its archive only, or from the source only. By default from the source, "
        "and from the archive what the source has deleted.",
        show_default=False,
    ),
]
Into = Annotated[str | None, typer.Option("--into", metavar="NAME", help="Target topic, instead of the mirrored name.")]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of ``mirror run``."""

    once: bool
    seconds: float | None
    topics: list[str] | None
    lane: int | None
    drain: bool


class SharedSession:
    """One Spark session for the mirrors of this process, started on first use."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._lock = threading.Lock()
        self._session: Any = None

    def get(self) -> Any:
        """The session; raises what starting it raised."""
        with self._lock:
            if self._session is None:
                self._session = self._build()
            return self._session


def run(
    context: typer.Context,
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    once: Once = False,
    for_: Period = None,
    mirror: Mirrors = None,
    topic: Topics = None,
    lane: Lane = None,
    drain: Drain = False,
    as_json: AsJson = False,
) -> None:
    """Copy records, until Ctrl-C unless --once or --for says otherwise.

    With --once, several mirrors run one after another; otherwise they run concurrently. The first Ctrl-C (or SIGTERM)
    finishes the work in progress, a second one exits at once. Neither loses or duplicates a record.

    While the source is unreachable, staged records are still delivered, and the report shows the source offsets that the
    target has reached. --drain does only this.

    Exit code 1 when a topic halted or is still behind, each with its reason; 3 when a cluster could not be reached, also when
    it was down at the end of a run without --once.
    """
    if drain and (once or for_ is not None):
        raise UsageError("--drain cannot be combined with --once or --for", hint="it ends when everything staged is on the target")
    if once and for_ is not None:
        raise UsageError("--once and --for cannot be combined", hint="--once copies what is there now, --for 30m copies for half an hour")
    from mirror_pipeline.buffer.tables.columns import keep_pandas_out  # pyarrow: not for `--help`

    options = RunOptions(once, parse_duration(for_) if for_ is not None else None, topic or None, lane, drain)
    opened = load.load(config)
    names = opened.pick(mirror)
    keep_pandas_out()
    # The first mirror that needs Spark starts it; the others share it.
    shared = SharedSession(opened.session) if len(names) > 1 else None

    def job(name: str, view: View[Progress], stop: threading.Event) -> Job[RunReport]:
        return Job(name, lambda: _run_one(opened, name, options, shared, view, stop))

    settings: Settings = context.obj
    ended = _with_progress("reading the clusters", names, job, together=not (once or drain), debug=settings.debug)
    raise typer.Exit(show(ended, as_json=as_json, debug=settings.debug, speed=once, drain=drain))


def _run_one(
    opened: load.LoadedConfig, name: str, options: RunOptions, shared: SharedSession | None, view: View[Progress], stop: threading.Event
) -> RunReport:
    return opened.mirror(name).run(
        once=options.once,
        seconds=options.seconds,
        topics=options.topics,
        lane=options.lane,
        observer=view.observe,
        stop=stop,
        session=shared.get if shared else None,
        drain=options.drain,
    )


def _with_progress(
    starting: str, names: list[str], job: Callable[[str, View[Progress], threading.Event], Job[T]], *, together: bool, debug: bool
) -> list[Outcome[T]]:
    stop = threading.Event()
    shown = view_for(notices(), starting, RunContent())
    with children_unheard(wanted=not debug) as heard, shown as view, signals_stop(stop, view.note):
        ended = run_jobs([job(name, view, stop) for name in names], together=together, stop=stop)
    if any(outcome.error is not None and describe(outcome.error).exit_code == UNEXPECTED for outcome in ended):
        for line in heard.lines():
            note(f"spark: {line}")
    return ended


def backfill(
    context: typer.Context,
    mirror: OneMirror,
    topic: OneTopic,
    from_: From,
    to: To,
    into: Into = None,
    from_buffer: FromBuffer = None,
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    as_json: AsJson = False,
) -> None:
    """Copy a past time range: the records with from <= timestamp < to.

    The target is the mirrored topic while it is empty, or the topic given by --into: old records are never appended
    after newer ones. Exit codes are those of run.
    """
    now = datetime.now(UTC)
    start, end = parse_time(from_, now), parse_time(to, now)
    if start >= end:
        raise UsageError("--from is not before --to", hint="the range is from <= time < to; swap them or change one")
    opened = load.load(config)
    source: RecordSource = "auto" if from_buffer is None else "buffer" if from_buffer else "cluster"

    def job(name: str, view: View[Progress], stop: threading.Event) -> Job[Any]:
        return Job(
            name, lambda: opened.mirror(name).backfill(topic, start, end, into=into, source=source, observer=view.observe, stop=stop)
        )

    starting, settings = f"looking up the offsets of {topic}", context.obj
    (ended,) = _with_progress(starting, opened.pick([mirror]), job, together=False, debug=settings.debug)
    if ended.error is not None:
        raise ended.error
    if ended.result is None:
        note("stopped before it started")
        raise typer.Exit(PROBLEM)
    if as_json:
        print_json(ended.result.to_json())
    else:
        answers().print(tables.backfill(ended.result))
    raise typer.Exit(exit_code(ended.result.run))


def show(outcomes: Sequence[Outcome[RunReport]], *, as_json: bool, debug: bool, speed: bool, drain: bool = False) -> int:
    """Print the outcome of every mirror and return the highest exit code; ``speed`` is shown only for runs that did not wait for records.

    With ``drain``, and when the source was unreachable, also print the source offsets that the target has reached.
    """
    reports = [outcome.result for outcome in outcomes if outcome.result is not None]
    shown = [(report, drain) for report in reports] + [(report, True) for report in map(_partial_report, outcomes) if report is not None]
    if shown and not as_json:
        answers().print(each([tables.run(report, speed=speed, positions=positions) for report, positions in shown]))
    code = max((exit_code(report) for report in reports), default=OK)
    for outcome in outcomes:
        code = max(code, _failure(outcome, "" if len(outcomes) == 1 else f"{outcome.name}: ", debug))
    if as_json:
        print_json(to_json(outcomes))
    return code


def exit_code(report: RunReport) -> int:
    """0 when every topic is ok, paused, promoted or on standby; 3 when a cluster could not be reached at the end and something may be
    missing for it; 1 otherwise."""
    if report.source_down or (report.target_down and (report.state != "ok" or report.lag_records)):
        return UNREACHABLE
    return OK if report.state == "ok" and all(topic.state in ("ok", *LEFT_ALONE) for topic in report.topics) else PROBLEM


def to_json(outcomes: Sequence[Outcome[RunReport]]) -> dict[str, Any]:
    """``run --json``: one element per mirror, whatever its outcome; ``error`` is the first error."""
    document: dict[str, Any] = {"mirrors": [_mirror_json(outcome) for outcome in outcomes]}
    first = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    if first is not None:
        document["error"] = describe(first).to_json()
    return document


def _mirror_json(outcome: Outcome[RunReport]) -> dict[str, Any]:
    if outcome.result is not None:
        return outcome.result.to_json()
    empty: dict[str, Any] = {"mirror": outcome.name, "state": "not run", "records": 0, "bytes": 0, "seconds": 0.0, "topics": []}
    if outcome.error is not None:
        report = _partial_report(outcome)
        empty |= {**(report.to_json() if report else {}), "state": "failed", "error": describe(outcome.error).to_json()}
    return empty


def _partial_report(outcome: Outcome[RunReport]) -> RunReport | None:
    """What a run did before its source became unreachable."""
    return outcome.error.report if isinstance(outcome.error, ClusterUnreachable) else None


def _failure(outcome: Outcome[RunReport], prefix: str, debug: bool) -> int:
    if outcome.error is not None:
        if debug:
            traceback.print_exception(outcome.error, file=sys.stderr)
        failure = describe(outcome.error)
        say(failure, prefix)
        return failure.exit_code
    if outcome.result is None:
        note(f"{prefix}stopped before it started")
        return PROBLEM
    return OK

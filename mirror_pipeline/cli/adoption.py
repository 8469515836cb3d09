"""``adopt``: continue in target topics that already hold a copy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import PROBLEM, answers, note, notices, print_json
from mirror_pipeline.cli.jobs import Job, run_jobs, signals_stop
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, known_mirrors, named_topics
from mirror_pipeline.cli.show.progress import VerifyContent, view_for
from mirror_pipeline.cli.show.tables import cells, table, title
from mirror_pipeline.features.adoption.adoption_report import AdoptReport
from mirror_pipeline.text import count, duration, plural

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", autocompletion=known_mirrors, help="The mirror; needed if the file has several.")
]
Topics = Annotated[
    list[str],
    typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=named_topics, help="The source topic; may be given several times."),
]
Proof = Annotated[
    str, typer.Option("--proof", metavar="full|last:N", help="Compare every record, or the last N offsets of each target partition.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="foreign", help="Accept records on the target that the source does not have."),
]
FromMm2 = Annotated[
    str | None,
    typer.Option("--from-mm2", metavar="ALIAS", help="MirrorMaker 2 has made the copy; ALIAS is the source cluster in its property file."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar=NO_VALUE, help="Only compare: nothing is written.")]


def adopt(
    topic: Topics,
    name: Name = None,
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    proof: Proof = "full",
    allow: Allow = None,
    from_mm2: FromMm2 = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Continue in target topics that already hold a copy, made by another tool or before the buffer was lost.

    Compares each topic with its target, record by record: the target must be the beginning of the source, in order and without
    duplicates. Then the ledger learns which target offset is which source offset, and `mirror run` copies what comes after it. Nothing is
    written to a cluster.

    With --from-mm2 MirrorMaker 2 must not run any more and its stored positions must agree with the data; the group offsets that it wrote
    are continued.

    A target that differs is refused, with the offsets. Several topics are adopted one after the other. A command that was interrupted
    has adopted the topics that it had finished, and none by half.
    """
    opened = load.load(config)
    mirror = opened.mirror(opened.one(name))
    stop = threading.Event()
    view = view_for(notices(), "looking at both topics", VerifyContent())

    def work(source: str) -> Callable[[], AdoptReport]:
        return lambda: mirror.adopt(
            source, proof=proof, allow=allow or (), dry_run=dry_run, mm2_alias=from_mm2, observer=view.observe, stop=stop
        )

    jobs = [Job(source, work(source)) for source in dict.fromkeys(topic)]
    with view, signals_stop(stop, lambda _: view.note("stopping; Ctrl-C again exits at once")):
        ended = run_jobs(jobs, together=False, stop=stop)
    reports = [outcome.result for outcome in ended if outcome.result is not None]
    if as_json and all(outcome.error is None for outcome in ended):
        print_json({"topics": [report.to_json() for report in reports]})
    elif reports and not as_json:
        answers().print(_shown(reports))
    for outcome in ended:
        if outcome.error is not None:
            raise outcome.error
    if len(reports) < len(ended):
        note("stopped before every topic was compared")
        raise typer.Exit(PROBLEM)


def _shown(reports: list[AdoptReport]) -> RenderableType:
    grid = table(["topic", "target"], ["partition", "source offsets", "target offsets", "records", "remaining"])
    parts: list[Any] = []
    for report in reports:
        for part in report.partitions:
            offsets = [f"{count(part.source_start)} to {count(part.source_end)}", f"{count(part.target_start)} to {count(part.target_end)}"]
            numbers = (str(part.partition), *offsets, count(part.records), count(part.remaining))
            grid.add_row(*cells(report.topic, report.target_topic, *numbers))
            if part.foreign:
                parts.append(f"{report.target_topic}[{part.partition}]: {plural(part.foreign, 'record')} that the source does not have")
            if part.unproven:
                parts.append(f"{report.target_topic}[{part.partition}]: {plural(part.unproven, 'earlier offset')} not compared")
        parts += [f"{report.topic}: {note}" for note in report.notes]
    dry = reports[0].dry_run
    records, seconds = sum(report.records for report in reports), sum(report.seconds for report in reports)
    done = f"{plural(len(reports), 'topic')}, {plural(records, 'record')} equal on both sides, in {duration(seconds)}"
    end = Text(f"{done}; a dry run: nothing was written", "dim") if dry else Text(f"adopted {done}; `mirror run` continues", "green")
    return Group(title(reports[0].mirror), grid, *(Text(part, "yellow") for part in parts), end)

"""``failover``: hand topics over to applications on the target; ``failback``: begin the other direction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import PROBLEM, answers, note, notices, print_json
from mirror_pipeline.cli.jobs import Job, run_jobs, signals_stop
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, known_mirrors, named_topics
from mirror_pipeline.cli.show.progress import view_for
from mirror_pipeline.cli.show.run_progress import RunContent
from mirror_pipeline.cli.show.tables import cells, table, title
from mirror_pipeline.cli.spark_output import children_unheard
from mirror_pipeline.errors import UsageError
from mirror_pipeline.features.failover.report import TAILS, FailbackOptions, FailbackReport, FailoverOptions, FailoverReport
from mirror_pipeline.reports import Observer
from mirror_pipeline.text import count, parse_duration, plural

T = TypeVar("T")
Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=known_mirrors, help="The mirror.")]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar=NO_VALUE, help="Only look: nothing is copied, promoted or written.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=named_topics, help="Only this source topic; may be given several times."),
]
Unplanned = Annotated[
    bool, typer.Option("--unplanned", metavar=NO_VALUE, help="Do not ask the source, even if it answers: deliver what is staged.")
]
Wait = Annotated[str, typer.Option("--wait", metavar="DURATION", help="How long to wait for producers on the source to end.")]
Tail = Annotated[
    str | None,
    typer.Option("--tail", metavar="leave|copy-aside|rebuild", help="What becomes of records on the old source that never came over."),
]
Accept = Annotated[
    bool, typer.Option("--accept-differences", metavar=NO_VALUE, help="Promote although the verification has found differences.")
]


def failover(
    name: Name,
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    dry_run: DryRun = False,
    topic: Topics = None,
    unplanned: Unplanned = False,
    wait: Wait = "60s",
    accept_differences: Accept = False,
    as_json: AsJson = False,
) -> None:
    """Hand the mirror's topics over to applications on the target.

    While the source answers, the failover is planned: it copies to the end, and says which partitions are still written to. Otherwise it
    delivers what is staged. Then it carries the consumer groups over once more, verifies what no verification has covered, and promotes
    the topics in one commit. From then on the mirror leaves them alone, and applications may write there.

    The answer says what applications need: topics, servers, groups with offsets, and what is known to be missing. It is also written
    to a file. The same command continues a failover that was cut off.
    """
    seconds = parse_duration(wait)
    opened = load.load(config)
    options = FailoverOptions(
        topics=topic or None, dry_run=dry_run, unplanned=unplanned, wait=seconds, accept_differences=accept_differences
    )
    mirror = opened.mirror(opened.one(name))
    report = _watched(name, "looking at both clusters", lambda observer, stop: mirror.failover(options, observer=observer, stop=stop))
    if as_json:
        print_json(report.to_json())
    else:
        answers().print(_report(report))


def failback(
    name: Name,
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    dry_run: DryRun = False,
    topic: Topics = None,
    tail: Tail = None,
    as_json: AsJson = False,
) -> None:
    """After a failover of this mirror, open the mirror of the other direction, which is declared with `reverse_of`.

    The old source must answer. Offsets there that never came over are listed; while there are some, --tail says what becomes of them. The
    same command continues a failback that was cut off; another choice is followed.

    Where names come back to the same topic, such as `naming: identity`, the other mirror continues in the old topic. Both are compared
    first: all that the old topic holds must have come over. Otherwise --tail rebuild copies what did not to <topic>.unreplicated, empties
    the old topic and copies it afresh. It deletes nothing that was not copied, and refuses while producers go on writing there.
    """
    if tail is not None and tail not in TAILS:
        raise UsageError(f"--tail {tail}: no such choice", hint=f"choose one of {', '.join(TAILS)}")
    opened = load.load(config)
    mirror = opened.mirror(opened.one(name))
    options = FailbackOptions(topics=topic or None, dry_run=dry_run, tail=tail)
    report = _watched(name, "looking at the old source", lambda observer, stop: mirror.failback(options, observer=observer, stop=stop))
    if as_json:
        print_json(report.to_json())
    else:
        answers().print(_opened(report))


def _watched(name: str, starting: str, work: Callable[[Observer, threading.Event], T]) -> T:
    """Do the work in a thread of its own, with its progress shown; Ctrl-C stops it in order, and raises what it raises."""
    stop = threading.Event()
    with children_unheard(), view_for(notices(), starting, RunContent()) as view, signals_stop(stop, view.note):
        (ended,) = run_jobs([Job(name, lambda: work(view.observe, stop))], together=False, stop=stop)
    if ended.error is not None:
        raise ended.error
    if ended.result is None:
        note("stopped before it started")
        raise typer.Exit(PROBLEM)
    return ended.result


def _opened(report: FailbackReport) -> RenderableType:
    grid = table(["topic", "copied", "to"], [], ["how"])
    for topic in report.topics:
        how = "copied afresh: the old topic is emptied" if topic.rebuilt else "continued in the old topic" if topic.comes_back else "copied"
        grid.add_row(*cells(topic.topic, topic.copied, topic.target_topic, how))
    parts: list[RenderableType] = [title(f"{report.mirror}: failback by mirror {report.reverse}"), grid]
    for row in report.tail:
        lost = f", {count(row.lost)} of them deleted there" if row.lost else ""
        parts.append(Text(f"never came over: {row.topic}[{row.partition}] offsets {count(row.start)} to {count(row.end)}{lost}", "yellow"))
    parts += [Text(f"copied aside: {topic} to {into}", "green") for topic, into in report.aside]
    if report.dry_run:
        parts.append(Text("a dry run: nothing was changed", "dim"))
    else:
        parts.append(Text(f"mirror {report.reverse} is open: `mirror run --mirror {report.reverse}` copies", "green"))
    return Group(*parts)


def _report(report: FailoverReport) -> RenderableType:
    grid = table(["topic", "target"], ["partition", "source offset", "target offset"])
    for topic in report.topics:
        for part in topic.partitions:
            numbers = (str(part.partition), count(part.source_offset), count(part.target_offset))
            grid.add_row(*cells(topic.topic, topic.target_topic, *numbers))
    servers = ",".join(report.bootstrap_servers)
    parts: list[RenderableType] = [title(f"{report.mirror}: {report.mode} failover from {report.source} to {report.target}"), grid]
    parts.append(Text(f"bootstrap servers of {report.target}: {servers}"))
    if report.groups:
        parts.append(_groups(report))
    parts += [Text(f"not copied yet: {line}", "yellow") for line in report.producing]
    for gap in report.missing:
        until = "" if gap.end is None else f" to {count(gap.end)}"
        parts.append(Text(f"missing: {gap.topic}[{gap.partition}] from offset {count(gap.start)}{until}: {gap.why}", "yellow"))
    parts += [Text(note, "yellow") for note in report.notes]
    parts.append(_end(report))
    return Group(*parts)


def _groups(report: FailoverReport) -> RenderableType:
    grid = table(["group", "target"], ["partition", "offset"], [""])
    for row in report.groups:
        offset = "-" if row.offset is None else count(row.offset)
        grid.add_row(*cells(row.group, row.target_topic, str(row.partition), offset, Text(row.why, "yellow")))
    return grid


def _end(report: FailoverReport) -> Text:
    if report.dry_run:
        return Text("a dry run: nothing was changed", "dim")
    again = " (continued)" if report.resumed else ""
    return Text(f"{plural(len(report.topics), 'topic')} promoted{again}; written to {report.file}", "green")

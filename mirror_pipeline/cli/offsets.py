"""``offsets``: which target offset is which source offset; ``groups``: the offsets of consumer groups on both sides."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import (
    DEFAULT_CONFIG_PATH,
    NO_VALUE,
    AsJson,
    ConfigFile,
    Mirrors,
    OneMirror,
    OnlyTopic,
    PlainCommand,
    PlainGroup,
    named_topics,
)
from mirror_pipeline.cli.show.tables import cells, table, title
from mirror_pipeline.reports import CarriedGroup, GroupsReport, MappedRange, Translation
from mirror_pipeline.text import count, instant, parse_time, plural

commands = typer.Typer(
    name="offsets",
    help="The offset map: which offset of the target is which offset of the source.",
    no_args_is_help=True,
    cls=PlainGroup,
)
Topic = Annotated[
    str,
    typer.Option(
        "--topic", "-t", metavar="TOPIC", autocompletion=named_topics, help="The source topic; with --reverse also the target topic."
    ),
]
Partition = Annotated[int | None, typer.Option("--partition", "-p", metavar="P", help="Only this partition.")]
Offset = Annotated[int | None, typer.Option("--offset", "-o", metavar="N", help="The next offset that a consumer reads.")]
Time = Annotated[
    str | None,
    typer.Option("--time", metavar="TIME", help="Instead of an offset: the first record since 2026-11-21T14:00:00Z, or since -2h."),
]
Reverse = Annotated[bool, typer.Option("--reverse", metavar=NO_VALUE, help="From target to source.")]
Carry = Annotated[bool, typer.Option("--carry", metavar=NO_VALUE, help="Carry the groups over once before, unless a run does so now.")]
Generation = Annotated[
    int | None, typer.Option("--generation", metavar="G", help="By this generation of the topic alone, see `mirror offsets show`.")
]


@commands.command(cls=PlainCommand)
def translate(
    topic: Topic,
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    mirror: OneMirror = None,
    partition: Partition = None,
    offset: Offset = None,
    time: Time = None,
    reverse: Reverse = False,
    generation: Generation = None,
    as_json: AsJson = False,
) -> None:
    """Translate a consumer's position from the source to the target, or back.

    The answer is the offset from which a consumer reads exactly the records that it has not read on the other side. An offset from which
    no record was copied (transaction markers, compaction) gives the next copied record. Exit code 0 also for an offset that is not
    copied yet.

    The ledger answers for every offset that was ever copied. The other cluster is asked where its log starts; if it is unreachable
    the answer says so. --time asks the cluster whose records are meant.
    """
    opened = load.load(config)
    at = None if time is None else parse_time(time, datetime.now(UTC))
    found = opened.mirror(opened.one(mirror)).translate(
        topic, offset=offset, at=at, partition=partition, reverse=reverse, generation=generation
    )
    if as_json:
        print_json({"offsets": [answer.to_json() for answer in found]})
    else:
        answers().print(_translated(found))


@commands.command(cls=PlainCommand)
def show(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: OneMirror = None, topic: OnlyTopic = None, as_json: AsJson = False) -> None:
    """List what is copied of each partition: source offsets, target offsets, records, and the generations of each topic.

    Inside a run both offsets increase together; every hole in the source's log begins another run. The runs themselves are the view
    `offset_map` of `mirror sql`. Contacts no cluster.
    """
    opened = load.load(config)
    found = opened.mirror(opened.one(mirror)).offset_map(topic)
    if as_json:
        print_json({"partitions": [row.to_json() for row in found]})
    else:
        answers().print(_shown(found))


def groups(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, carry: Carry = False, as_json: AsJson = False) -> None:
    """Show the committed offsets of consumer groups on both sides, and why an offset is not carried over.

    A group in step continues on the target with exactly the record that is its next one on the source. Reads both clusters and changes
    nothing: `mirror run` carries the groups that `groups` in the configuration selects. --carry does so once, now. Exit code 0 in
    every state.
    """
    opened = load.load(config)
    mirrors = [opened.mirror(name) for name in opened.pick(mirror)]
    found = [each.carry_groups() if carry else each.groups() for each in mirrors]
    if as_json:
        print_json({"mirrors": [report.to_json() for report in found]})
    else:
        answers().print(Group(*(_groups(report) for report in found)))


def _groups(report: GroupsReport) -> RenderableType:
    grid = table(["group", "topic"], ["partition", "source", "target", "behind", "written"], ["state"])
    for row in report.groups:
        numbers = ["" if row.partition is None else str(row.partition), *map(_number, (row.source_offset, row.target_offset, row.behind))]
        written = "-" if row.written_at is None else instant(row.written_at)
        grid.add_row(*cells(row.group, row.topic, *numbers, written, _state(row)))
    different = len({row.group for row in report.groups if row.state != "in_step"})
    names = len({row.group for row in report.groups})
    said = f"{different} of {plural(names, 'group')} not in step" if different else f"{plural(names, 'group')} in step"
    end = Text(said, "yellow" if different else "green")
    return Group(title(report.mirror), grid, *(Text(note, "yellow") for note in report.notes), end)


def _state(row: CarriedGroup) -> Text:
    words = row.state.replace("_", " ")
    return Text(f"{words}: {row.why}" if row.why else words, "green" if row.state == "in_step" else "yellow")


def _number(offset: int | None) -> str:
    return "-" if offset is None else count(offset)


def _translated(found: tuple[Translation, ...]) -> RenderableType:
    several = any(answer.generation > 1 for answer in found)
    grid = table(["topic", "target"], ["partition", *(["generation"] if several else []), "source offset", "target offset"], ["note"])
    for answer in found:
        numbers = [str(answer.partition), *([str(answer.generation)] if several else [])]
        numbers += [_number(answer.source_offset), _number(answer.target_offset)]
        grid.add_row(*cells(answer.topic, answer.target_topic, *numbers, answer.note))
    return grid


def _shown(found: tuple[MappedRange, ...]) -> RenderableType:
    if not found:
        return Text("nothing is copied yet")
    several = any(row.generation > 1 for row in found)
    numbers = ["partition", *(["generation"] if several else []), "source offsets", "target offsets", "records", "runs"]
    grid = table(["topic", "target"], numbers)
    for row in found:
        offsets = [f"{count(row.source_start)} to {count(row.source_end)}", f"{count(row.target_start)} to {count(row.target_end)}"]
        shown = [str(row.partition), *([str(row.generation)] if several else []), *offsets, count(row.records), count(row.runs)]
        grid.add_row(*cells(row.topic, row.target_topic, *shown))
    return Group(grid, Text("ends are exclusive: the next record goes there", "dim"))

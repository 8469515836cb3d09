"""``mirror quarantine list | export | send``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, AsJson, ConfigFile, OneMirror, OneTopic, OnlyTopic, PlainCommand, PlainGroup
from mirror_pipeline.cli.show.tables import cells, table
from mirror_pipeline.reports import QuarantinedRecords
from mirror_pipeline.text import count, plural, size

commands = typer.Typer(
    name="quarantine",
    help="Records that were left out of the copy: too large for the target, or damaged.",
    no_args_is_help=True,
    cls=PlainGroup,
)
Folder = Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder for the files; it is created.")]


@commands.command("list", cls=PlainCommand)
def list_(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: OneMirror = None, topic: OnlyTopic = None, as_json: AsJson = False) -> None:
    """List what is in quarantine, with the source offsets and the reason. Contacts no cluster."""
    opened = load.load(config)
    names = [opened.one(mirror)] if mirror else opened.pick(None)
    _show([row for name in names for row in opened.mirror(name).quarantine(topic)], as_json)


@commands.command(cls=PlainCommand)
def export(
    to: Folder, config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: OneMirror = None, topic: OnlyTopic = None, as_json: AsJson = False
) -> None:
    """Write what is in quarantine into files: each RecordBatch as it was read, and readable records also as lines of JSON.

    Keys, values and the values of headers are in base64. Contacts no cluster.
    """
    opened = load.load(config)
    rows = opened.mirror(opened.one(mirror)).export_quarantine(to, topic)
    _show(rows, as_json)
    if not as_json:
        answers().print(f"{plural(len(rows), 'batch') if len(rows) == 1 else f'{count(len(rows))} batches'} in {to}", markup=False)


@commands.command(cls=PlainCommand)
def send(topic: OneTopic, config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: OneMirror = None, as_json: AsJson = False) -> None:
    """Send the readable records of one topic into the topic NAME.quarantine beside its copy, in the same partitions and in order.

    That topic is created if need be, with room for the largest. A second call adds nothing. The copy itself is not changed: later records
    are in it already. A damaged batch cannot be sent.
    """
    opened = load.load(config)
    name, rows = opened.mirror(opened.one(mirror)).send_quarantine(topic)
    _show(rows, as_json)
    if not as_json:
        answers().print(f"sent into {name}", markup=False)


def _show(rows: list[QuarantinedRecords], as_json: bool) -> None:
    if as_json:
        print_json({"quarantined": [row.to_json() for row in rows]})
        return
    if not rows:
        answers().print("nothing is in quarantine")
        return
    grid = table(["mirror", "topic", "source offsets", "size", "readable"], last=["reason"])
    for row in rows:
        offsets = count(row.start) if row.end == row.start + 1 else f"{count(row.start)} to {count(row.end - 1)}"
        readable = "yes" if row.readable else "no"
        grid.add_row(*cells(row.mirror, f"{row.topic}-{row.partition}", offsets, size(row.bytes), readable, row.reason))
    answers().print(grid)

"""``resolve``: list halted topics, and accept a halt."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, AsJson, ConfigFile, Mirrors
from mirror_pipeline.cli.show.tables import cells, table
from mirror_pipeline.errors import UsageError
from mirror_pipeline.reports import HaltedTopic, Resolution
from mirror_pipeline.text import plural

Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The source topic whose halt is accepted.")]
Accept = Annotated[str | None, typer.Option("--accept", metavar="CODE", help="The halt's code, as the list shows it.")]


def resolve(
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    mirror: Mirrors = None,
    topic: Topic = None,
    accept: Accept = None,
    as_json: AsJson = False,
) -> None:
    """List halted topics; with --topic and --accept, accept a halt so that the topic resumes.

    The ledger records what was accepted, by whom and when. Skipped offsets appear in `mirror gaps`; skipped records are
    kept in the quarantine table. A running lane resumes the topic within half a minute, otherwise the next run does.

    Exit code 0 with or without halts; use `mirror health` to detect them.
    """
    opened = load.load(config)
    names = opened.pick(mirror)
    if topic is None and accept is None:
        found = [halt for name in names for halt in opened.mirror(name).halts()]
        if as_json:
            print_json({"halts": [halt.to_json() for halt in found]})
        else:
            answers().print(_list(found))
        return
    if topic is None or accept is None:
        raise UsageError("--topic and --accept go together", hint="`mirror resolve` alone lists what is halted, with the command for each")
    done = opened.mirror(_owner(opened, names, topic)).resolve(topic, accept)
    if as_json:
        print_json(done.to_json())
    else:
        answers().print(_done(done))


def _owner(opened: load.LoadedConfig, names: list[str], topic: str) -> str:
    """The mirror to which the command applies when none is named."""
    halted = [name for name in names if any(halt.topic == topic for halt in opened.mirror(name).halts())]
    if len(names) > 1 and len(halted) != 1:
        raise UsageError(f"several mirrors match: {', '.join(halted or names)}", hint="add --mirror NAME")
    return (halted or names)[0]


def _list(found: list[HaltedTopic]) -> RenderableType:
    if not found:
        return Text("nothing is halted", "green")
    grid = table(["mirror", "topic", "code"], last=["why, and what to do"])
    for halt in found:
        grid.add_row(*cells(halt.mirror, halt.topic, Text(halt.code or "-", "red"), f"{halt.reason}\n{halt.hint}"))
    return Group(grid, Text(f"{plural(len(found), 'topic')} halted", "red"))


def _done(done: Resolution) -> Text:
    where = "".join(f"\n  partition {number}: source offsets [{start}, {end})" for number, (start, end) in sorted(done.spans.items()))
    return Text(f"{done.topic}: accepted by {done.decided_by}; the mirror will {done.meaning}{where}")

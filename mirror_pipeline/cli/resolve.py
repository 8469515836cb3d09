"""``resolve``: list halted topics, and accept a halt; ``remirror``: copy a topic afresh."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, Mirrors, OneMirror, OneTopic, named_topics
from mirror_pipeline.cli.show.tables import cells, table
from mirror_pipeline.errors import UsageError
from mirror_pipeline.reports import FreshCopy, HaltedTopic, Resolution
from mirror_pipeline.text import plural

Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=named_topics, help="The source topic whose halt is accepted."),
]
Delete = Annotated[bool, typer.Option("--delete-copy", metavar=NO_VALUE, help="Needed: the target topic is deleted, with all its records.")]
Loss = Annotated[
    bool, typer.Option("--accept-loss", metavar=NO_VALUE, help="Also where the copy has records that the source has deleted meanwhile.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", metavar=NO_VALUE, help="Only say what would be deleted and copied.")]
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


def remirror(
    topic: OneTopic, config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: OneMirror = None, delete_copy: Delete = False,
    accept_loss: Loss = False, dry_run: DryRun = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Copy a topic afresh: delete its target topic, create it again with its settings, and copy everything that the source has.

    Consumers of the target topic begin anew, too. A running lane begins within half a minute, otherwise the next run. The same command
    continues one that was cut off. Refused for topics that applications own after a failover, or that other mirrors write.
    """
    opened = load.load(config)
    live = opened.mirror(opened.one(mirror))
    if dry_run:
        found = live.fresh_copy(topic)
        return print_json(found.to_json()) if as_json else answers().print(_would(found))
    if not delete_copy:
        hint = "add --delete-copy to do it, or --dry-run to look first"
        raise UsageError(f"this deletes the copy of {topic} on cluster {live.flow.settings.target}", hint=hint)
    done = live.remirror(topic, accept_loss=accept_loss)
    if as_json:
        print_json(done.to_json())
    else:
        answers().print(_done(done))


def _would(found: FreshCopy) -> RenderableType:
    gone = Text(f"the copy has {plural(found.lost, 'offset')} that the source has deleted: --accept-loss is needed", "yellow")
    return Group(
        Text(f"{found.target_topic} on cluster {found.target} would be deleted and created anew: {plural(found.deleted, 'offset')}"),
        Text(f"{plural(found.copied, 'offset')} of {found.topic} would be copied from the source's beginning; consumers begin anew, too"),
        *([gone] if found.lost else []), Text("a dry run: nothing was changed"),
    )  # fmt: skip


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

"""``backup`` and ``restore``: the ledger of a mirror in one file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import PROBLEM, answers, notices, print_json
from mirror_pipeline.cli.jobs import signals_stop
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, OneMirror
from mirror_pipeline.cli.show.progress import VerifyContent, view_for
from mirror_pipeline.cli.show.tables import cells, table, title
from mirror_pipeline.text import count, instant, plural, size

if TYPE_CHECKING:
    from mirror_pipeline.features.backup.restore_backup import RestoreReport

Out = Annotated[Path, typer.Argument(metavar="FILE|FOLDER", help="The file to write, or a folder that gets one named by mirror and time.")]
Backup = Annotated[Path, typer.Argument(metavar="FILE", help="What `mirror backup` has written.")]
Replace = Annotated[bool, typer.Option("--replace", metavar=NO_VALUE, help="Where a ledger exists: move it aside and say where it is.")]


def backup(out: Out, config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: OneMirror = None, as_json: AsJson = False) -> None:
    """Write a mirror's ledger into one file, while its lanes run: offset map, gaps, groups, decisions, promotions.

    Staged records are not in it: a run reads them again from the source. Only you may read the file. Contacts no cluster.
    """
    opened = load.load(config)
    with notices().status("reading the ledger"):
        done = opened.mirror(opened.one(mirror)).backup(out)
    if as_json:
        print_json(done.to_json())
        return
    rows = sum(each.rows for each in done.contents.tables)
    answers().print(f"{done.file}: {plural(len(done.contents.tables), 'table')}, {plural(rows, 'row')}, {size(done.bytes)}", soft_wrap=True)


def restore(
    file: Backup, config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: OneMirror = None, replace: Replace = False, as_json: AsJson = False
) -> None:
    """Bring back a mirror's ledger from a backup, then add what was copied after it: no record is lost, none arrives twice.

    Both sides are compared from the backup's positions to the target's end, record by record, and the ledger learns what is there. A topic
    that differs there is refused; a run halts it. Nothing is written to a cluster. Refused while a lane runs.

    Exit code 1 when a topic was refused.
    """
    opened = load.load(config)
    stop = threading.Event()
    view = view_for(notices(), "comparing what came after the backup", VerifyContent())
    with view, signals_stop(stop, lambda _: view.note("stopping; Ctrl-C again exits at once")):
        done = opened.mirror(opened.one(mirror)).restore(file, replace=replace, observer=view.observe, stop=stop)
    if as_json:
        print_json(done.to_json())
    else:
        answers().print(_shown(done))
    if not done.ok:
        raise typer.Exit(PROBLEM)


def _shown(done: RestoreReport) -> RenderableType:
    grid = table(["topic", "target"], ["ledger was behind by"], last=["state"])
    for topic in done.topics:
        state = Text(f"refused: {topic.reason}", "red") if topic.reason else Text("caught up", "green")
        grid.add_row(*cells(topic.topic, topic.target_topic, count(topic.records), state))
    kept = [Text(f"the ledger of before is kept in {done.kept}", "yellow")] if done.kept else []
    end = Text(f"restored the ledger of {instant(int(done.taken_at * 1000))}; `mirror run` continues", "green" if done.ok else "yellow")
    return Group(title(done.mirror), grid, *kept, end)

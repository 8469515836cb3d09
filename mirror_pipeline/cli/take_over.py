"""``import-mm2``: a mirror.yaml from a property file of MirrorMaker 2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pipeline.cli.errors import PROBLEM, answers, note, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson
from mirror_pipeline.cli.show.tables import cells, table, title
from mirror_pipeline.config.mm2.import_file import import_mm2 as make
from mirror_pipeline.reports import ImportOutcome, ImportReport
from mirror_pipeline.text import plural

Properties = Annotated[Path, typer.Argument(metavar="FILE", help="The property file that connect-mirror-maker.sh is started with.")]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The configuration file to write.")]
Force = Annotated[bool, typer.Option("--force", metavar=NO_VALUE, help="Replace the file if it exists.")]
Without = Annotated[
    bool, typer.Option("--without-refused", metavar=NO_VALUE, help="Write the file although keys are refused; leave them out.")
]
Naming = Annotated[
    str, typer.Option("--naming", metavar="RULE", help="Names of target topics in place of the file's: prefix, identity or a template.")
]
_COLOURS = {ImportOutcome.CARRIED: "green", ImportOutcome.CHANGED: "cyan", ImportOutcome.REFUSED: "red"}


def import_mm2(
    properties: Properties,
    output: Output = DEFAULT_CONFIG_PATH,
    force: Force = False,
    without_refused: Without = False,
    naming: Naming = "",
    as_json: AsJson = False,
) -> None:
    """Write the configuration file that does what a property file of MirrorMaker 2 does (dedicated mode).

    Lists what becomes of every key: carried, changed, not needed, or refused, with the reason, and which of MirrorMaker's defaults count.
    When a key is refused nothing is written, unless --without-refused is given: the file then lists what is left out, and a login that
    cannot be carried is to be filled in. Passwords are not copied: the new file refers to environment variables, which are listed.
    An existing file is kept unless --force is given. Nothing is contacted.

    Exit code 1 when a key is refused and nothing was written.
    """
    report = make(properties, output, force=force, without_refused=without_refused, naming=naming)
    if as_json:
        print_json(report.to_json())
    else:
        answers().print(_report(report))
    if report.path is None:
        note(f"error: {plural(len(report.refused), 'key')} of {properties} cannot be carried; nothing was written")
        note("hint: change or remove them, or leave them out with --without-refused")
        raise typer.Exit(PROBLEM)


def _report(report: ImportReport) -> RenderableType:
    grid = table([""], ["line"], ["key", "becomes", "why"])
    for key in report.keys:
        outcome = Text(key.outcome.replace("_", " "), _COLOURS.get(ImportOutcome(key.outcome), "dim"))
        grid.add_row(*cells(outcome, "-" if key.line is None else str(key.line), key.key, key.became, key.why))
    parts: list[RenderableType] = [title(report.properties), grid]
    parts += [Text(f"set before you start: {name} (now in {key})", "yellow") for name, key in sorted(report.secrets.items())]
    if report.path is not None:
        mirrors = f"{plural(len(report.mirrors), 'mirror')}: {', '.join(report.mirrors)}"
        option = "" if report.path == str(DEFAULT_CONFIG_PATH) else f" -c {report.path}"
        parts.append(Text(f"wrote {report.path}, {mirrors}; next: mirror check{option}", "green"))
    return Group(*parts)

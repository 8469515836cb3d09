"""Commands used before copying: ``init``, ``check``, ``doctor``, ``plan``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import PROBLEM, answers, note, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, Mirrors
from mirror_pipeline.cli.show import tables
from mirror_pipeline.cli.show.tables_status import each
from mirror_pipeline.config.checks import NAME
from mirror_pipeline.config.template import template
from mirror_pipeline.errors import UsageError
from mirror_pipeline.lags import HALTED
from mirror_pipeline.text import parse_duration
from mirror_pipeline.units import parse_size

Source = Annotated[
    str | None, typer.Option("--source", metavar="[NAME=]HOST:PORT", help="Name and bootstrap address of the cluster to copy from.")
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="[NAME=]HOST:PORT", help="Name and bootstrap address of the cluster to copy to.")
]
Measured = Annotated[str, typer.Option("--for", metavar="TIME", help="How long the source is read, over one connection and over many.")]
Line = Annotated[
    str | None, typer.Option("--bandwidth", metavar="SIZE", help="Bytes a second that the line carries, if it is known, such as 125MB.")
]
Force = Annotated[bool, typer.Option("--force", metavar=NO_VALUE, help="Replace the file if it exists.")]


def init(
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    source: Source = None,
    target: Target = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a starter configuration file with the most important settings explained.

    Without names the clusters are called east and west. An existing file is kept unless --force is given.
    """
    text = filled_template(source, target)
    _write(config, text, force)
    if as_json:
        print_json({"path": str(config)})
        return
    option = "" if config == DEFAULT_CONFIG_PATH else f" -c {config}"
    answers().print(f"wrote {config}; edit it, then: mirror check{option}", markup=False, soft_wrap=True)


def _write(path: Path, text: str, force: bool) -> None:
    try:
        # 'x' tests and creates in one step, so a file created in between is never overwritten.
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} already exists and was not changed", hint="--force replaces it; -c FILE writes another file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="choose another path with -c FILE") from None


def check(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, as_json: AsJson = False) -> None:
    """Check everything a run needs: clusters, permissions, topics, buffer.

    Changes nothing on the clusters. Exit code 1 when anything is wrong.
    """
    opened = load.load(config)
    found = [(name, finding) for name in opened.pick(mirror) for finding in opened.mirror(name).check()]
    good = all(finding.ok for _, finding in found)
    if as_json:
        print_json({"ok": good, "findings": [{"mirror": name, **finding.to_json()} for name, finding in found]})
    else:
        answers().print(tables.findings(found))
    raise typer.Exit(0 if good else PROBLEM)


def doctor(
    config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, for_: Measured = "3s", bandwidth: Line = None, as_json: AsJson = False
) -> None:
    """Measure both links and this host: round trips, what one connection and many can carry, the buffer's disk, clocks, limits.

    Reads records of the source for seconds and writes one file into the buffer's folder, which it removes. Changes nothing else.
    Exit code 1 when something should be changed.
    """
    opened, seconds = load.load(config), parse_duration(for_)
    try:
        line = float(parse_size(bandwidth)) if bandwidth is not None else None
    except ValueError as error:
        raise UsageError(f"--bandwidth {bandwidth}: {error}") from error
    reports = [opened.mirror(name).doctor(seconds=seconds, bandwidth=line) for name in opened.pick(mirror)]
    found = [(report.mirror, finding) for report in reports for finding in report.findings]
    if as_json:
        print_json({"mirrors": [report.to_json() for report in reports]})
    else:
        answers().print(tables.findings(found))
    raise typer.Exit(0 if all(finding.ok for _, finding in found) else PROBLEM)


def plan(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, as_json: AsJson = False) -> None:
    """Show what a run would do: topics, target names, record counts, changes, and which topics are excluded and why.

    Records are counted by offsets, which is an upper bound; their size is an estimate by samples of the source's logs. `price` has
    the time at the last run's rate, and the disk on the target and of the buffer. Changes nothing. Exit code 1 when a mirror selects
    no topic, or a topic is blocked or halted.
    """
    opened = load.load(config)
    plans = [opened.mirror(name).plan() for name in opened.pick(mirror)]
    if as_json:
        print_json({"mirrors": [answer.to_json() for answer in plans]})
    else:
        answers().print(each([tables.plan(answer) for answer in plans]))
    empty = [answer for answer in plans if not answer.topics]
    for answer in empty:
        note(f"error: the selection of {answer.mirror} matches no topic")
        if answer.excluded:
            note("hint: compare the regexes under 'topics:' with the names under \"not mirrored\"; each must match a whole name")
    blocked = any(topic.blockers or topic.state == HALTED for answer in plans for topic in answer.topics)
    raise typer.Exit(PROBLEM if empty or blocked else 0)


_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")


def filled_template(source: str | None, target: str | None) -> str:
    """The template with ``source`` and ``target``, each ``[NAME=]HOST:PORT``, as its two clusters.

    Raises:
        UsageError: a name cannot be one, or an address is not ``host:port`` or a comma-separated list of them.
    """
    facts: dict[str, str] = {}
    for side, given in (("source", source), ("target", target)):
        if given is not None:
            name, facts[f"{side}_servers"] = _cluster(given)
            facts |= {side: name} if name else {}
    if facts.get("source", "east") == facts.get("target", "west"):
        raise UsageError("source and target have the same name", hint="give each its own, such as --source berlin=host:9092")
    return template(**facts)  # type: ignore[arg-type]


def _cluster(text: str) -> tuple[str, str]:
    """Name, "" if none is given, and addresses."""
    name, given, address = text.rpartition("=")
    if given and not NAME.fullmatch(name):
        raise UsageError(f"'{name}' cannot be a cluster's name", hint="use letters, digits, - and _, such as --source berlin=host:9092")
    return name, _servers(address)


def _servers(address: str) -> str:
    parts = [part.strip() for part in address.split(",")]
    if not all(_SERVER.fullmatch(part) for part in parts):
        raise UsageError(f"'{address}' is not a bootstrap address", hint="write host:port, several separated by commas")
    return ",".join(parts)

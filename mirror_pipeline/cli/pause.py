"""``mirror pause`` and ``mirror resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, AsJson, ConfigFile, Mirrors
from mirror_pipeline.errors import UsageError
from mirror_pipeline.reports import PauseReport

Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this source topic.")]


def pause(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, topic: Topic = None, as_json: AsJson = False) -> None:
    """Stop copying, of a mirror or of one topic, until `mirror resume`; the ledger records who did it and when.

    Nothing more is read; what is staged is still delivered. A running lane follows within half a minute and goes on running, later
    runs and Dagster's sensors leave paused topics alone. Contacts no cluster.
    """
    _tell([load.load(config).mirror(name).pause(topic) for name in _names(config, mirror, topic)], as_json)


def resume(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, topic: Topic = None, as_json: AsJson = False) -> None:
    """Continue what `mirror pause` has stopped: without --topic everything, also topics that were paused one by one."""
    _tell([load.load(config).mirror(name).resume(topic) for name in _names(config, mirror, topic)], as_json)


def _names(config: ConfigFile, mirror: list[str] | None, topic: str | None) -> list[str]:
    names = load.load(config).pick(mirror)
    if topic is not None and len(names) > 1:
        raise UsageError(f"which mirror? {config} has {', '.join(names)}", hint="name one with --mirror")
    return names


def _tell(done: list[PauseReport], as_json: bool) -> None:
    if as_json:
        print_json({"mirrors": [report.to_json() for report in done]})
        return
    for report in done:
        what = f"topic {report.topic}" if report.topic is not None else "all topics"
        then = "paused: a running lane follows within half a minute" if report.paused else "resumed"
        answers().print(f"mirror {report.mirror}: {what} {then}", markup=False, soft_wrap=True)

"""``mirror pause`` and ``mirror resume``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, AsJson, ConfigFile, Mirrors, OnlyTopic
from mirror_pipeline.reports import PauseReport

if TYPE_CHECKING:
    from mirror_pipeline.mirror import Mirror


def pause(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, topic: OnlyTopic = None, as_json: AsJson = False) -> None:
    """Stop copying, of a mirror or of one topic, until `mirror resume`; the ledger records who did it and when.

    Nothing more is read; what is staged is still delivered. A running lane follows within half a minute and goes on running, later
    runs and Dagster's sensors leave paused topics alone. Contacts no cluster.
    """
    _tell([each.pause(topic) for each in _mirrors(config, mirror, topic)], as_json)


def resume(config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, topic: OnlyTopic = None, as_json: AsJson = False) -> None:
    """Continue what `mirror pause` has stopped: without --topic everything, also topics that were paused one by one."""
    _tell([each.resume(topic) for each in _mirrors(config, mirror, topic)], as_json)


def _mirrors(config: Path, wanted: list[str] | None, topic: str | None) -> list[Mirror]:
    """A topic is one mirror's."""
    opened = load.load(config)
    names = opened.pick(wanted) if topic is None else [opened.one(*wanted or ())]
    return [opened.mirror(name) for name in names]


def _tell(done: list[PauseReport], as_json: bool) -> None:
    if as_json:
        print_json({"mirrors": [report.to_json() for report in done]})
        return
    for report in done:
        what = f"topic {report.topic}" if report.topic is not None else "all topics"
        then = "paused: a running lane follows within half a minute" if report.paused else "resumed" if report.stood else "was not paused"
        answers().print(f"mirror {report.mirror}: {what} {then}", markup=False, soft_wrap=True)

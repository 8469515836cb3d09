"""Options shared by several commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mirror_pipeline.config import load_config
from mirror_pipeline.config.settings import MirrorConfig
from mirror_pipeline.errors import MirrorError

DEFAULT_CONFIG_PATH = Path("mirror.yaml")
NAMED_WHOLE = re.compile(r"(?:[A-Za-z0-9._-]|\\\.)+")
"""A regex that stands for one topic name; its dots may be escaped."""
NO_VALUE = ""
"""metavar of a switch."""

ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", metavar=NO_VALUE, help="Print one JSON document on standard output.")]


def _mirrors(context: typer.Context) -> tuple[MirrorConfig, ...]:
    """The mirrors of the file that the line names, for shells that complete it; none where it does not load."""
    given = [each.params.get("config") for each in (context, context.parent) if each is not None]
    path = next((Path(each) for each in given if each and Path(each) != DEFAULT_CONFIG_PATH), DEFAULT_CONFIG_PATH)
    try:
        return tuple(load_config(path).mirrors)
    except MirrorError:
        return ()


def known_mirrors(context: typer.Context, incomplete: str) -> list[str]:
    """Names of mirrors for shells that complete a line."""
    return [mirror.name for mirror in _mirrors(context) if mirror.name.startswith(incomplete)]


def named_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Topics that ``include`` names whole, for shells that complete a line: no cluster is asked what a regex would match."""
    named = context.params.get("mirror") or context.params.get("name") or ()
    chosen = (named,) if isinstance(named, str) else tuple(named)
    patterns = {each for mirror in _mirrors(context) if not chosen or mirror.name in chosen for each in mirror.topics.include}
    names = {each.replace("\\.", ".") for each in patterns if NAMED_WHOLE.fullmatch(each)}
    return sorted(name for name in names if name.startswith(incomplete))


Mirrors = Annotated[
    list[str] | None,
    typer.Option("--mirror", "-m", metavar="NAME", autocompletion=known_mirrors, help="Only this mirror; may be given several times."),
]
OnlyTopic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=named_topics, help="Only this source topic."),
]
OneTopic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=named_topics, help="The source topic.")]
OneMirror = Annotated[
    str | None,
    typer.Option("--mirror", "-m", metavar="NAME", autocompletion=known_mirrors, help="The mirror; needed if the file has several."),
]


@dataclass(frozen=True, slots=True)
class Settings:
    """Options given before the command (``context.obj``)."""

    debug: bool = False


class PlainCommand(TyperCommand):
    """A command whose ``--help`` shows no type."""

    def get_help_option(self, ctx: Any) -> Any:
        return _plain(super().get_help_option(ctx))


class PlainGroup(TyperGroup):
    """A group whose ``--help`` shows no type."""

    def get_help_option(self, ctx: Any) -> Any:
        return _plain(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> Any:
        """With switches shown as such: those of the completion are typer's own."""
        return [_plain(each) if (each.name or "").endswith("_completion") else each for each in super().get_params(ctx)]


def _plain(option: Any) -> Any:
    if option is not None:
        option.metavar = NO_VALUE
    return option

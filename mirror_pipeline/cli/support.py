"""``mirror support-bundle``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, AsJson, ConfigFile
from mirror_pipeline.reports import gap_json

if TYPE_CHECKING:
    from mirror_pipeline.mirror import Mirror

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The archive; default: mirror-support-TIME.tar.gz here.")]


def support_bundle(config: ConfigFile = DEFAULT_CONFIG_PATH, out: Out = None, as_json: AsJson = False) -> None:
    """Pack what somebody needs who is to help: settings, versions, status, lag, health, gaps, last logs. Without secrets.

    Passwords, keys, tokens and addresses of `notify` are hidden in every file, as they are and encoded; records are in none. A cluster that
    does not answer is in the archive with its error. Only you may read the file: look through it before you send it.
    """
    from mirror_pipeline.operations.support_bundle import support_bundle as bundle

    opened = load.load(config)
    path = out or Path(time.strftime("mirror-support-%Y%m%d-%H%M%S.tar.gz"))
    names = bundle(opened.mirror(opened.names[0]).flow.config, dict(_documents(opened)), path)
    if as_json:
        print_json({"file": str(path), "contents": names})
        return
    answers().print(f"{path}: {len(names)} files", markup=False, soft_wrap=True)
    for name in names:
        answers().print(f"  {name}", markup=False, soft_wrap=True)


def _documents(opened: load.LoadedConfig) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in opened.pick(None):
        mirror = opened.mirror(name)
        yield f"{name}/status", partial(_json, mirror.status)
        yield f"{name}/health", partial(_json, mirror.health)
        yield f"{name}/lag", partial(_json, mirror.lag)
        yield f"{name}/gaps", partial(_gaps, mirror)


def _json(ask: Callable[[], Any]) -> Any:
    return ask().to_json()


def _gaps(mirror: Mirror) -> Any:
    return [gap_json(gap) for gap in mirror.gaps()]

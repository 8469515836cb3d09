"""The text ``mirror init`` writes: the configuration template with the user's addresses in it."""

from __future__ import annotations

import re
from functools import partial

from mirror_pipeline.config.template import template
from mirror_pipeline.errors import UsageError

_SERVER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")


def filled_template(source: str | None, target: str | None) -> str:
    """The template with ``source`` and ``target`` as the addresses of its two clusters.

    Raises:
        UsageError: an address is not ``host:port`` or a comma-separated list of them.
    """
    fill = template
    if source is not None:
        fill = partial(fill, source_servers=_servers(source))
    if target is not None:
        fill = partial(fill, target_servers=_servers(target))
    return fill()


def _servers(address: str) -> str:
    parts = [part.strip() for part in address.split(",")]
    if not all(_SERVER.fullmatch(part) for part in parts):
        raise UsageError(f"'{address}' is not a bootstrap address", hint="write host:port, several separated by commas")
    return ",".join(parts)

"""The mirror.yaml of a benchmark: two clusters, one mirror between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE, TARGET = "source", "target"


def write_mirror_yaml(
    folder: Path,
    addresses: tuple[str, str],
    topics: str,
    *,
    name: str = "bench",
    naming: str = "",
    offsets: str = "translated",
    engine: Mapping[str, Any] | None = None,
    buffer: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
    groups: Mapping[str, Any] | None = None,
) -> Path:
    """Write the file into ``folder`` and return its path.

    Args:
        folder: also holds the buffer.
        addresses: bootstrap servers of source and target.
        topics: pattern of the topics to copy.
        name: of the mirror.
        naming: template of the target topics' names; empty: the default.
        offsets: translated or exact.
        engine: settings that differ from the defaults.
        buffer: further settings of the buffer.
        source: further settings of the source cluster, such as security.
        groups: consumer groups that are carried over.
    """
    mirror: dict[str, Any] = {"name": name, "source": SOURCE, "target": TARGET, "topics": {"include": [topics]}, "offsets": offsets}
    body: dict[str, Any] = {
        "clusters": {SOURCE: dict(source or {}, bootstrap_servers=addresses[0]), TARGET: {"bootstrap_servers": addresses[1]}},
        "buffer": {"uri": str(folder / "buffer"), **(buffer or {})},
        "mirrors": [{**mirror, **({"naming": naming} if naming else {}), **({"groups": dict(groups)} if groups else {})}],
        **({"engine": dict(engine)} if engine else {}),
    }
    path = folder / "mirror.yaml"
    path.write_text(json.dumps(body, indent=1))
    return path

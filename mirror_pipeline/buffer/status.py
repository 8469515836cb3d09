"""The file in which a running lane describes itself to other processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mirror_pipeline.buffer.store import LaneStore, explained, replace_file

STATUS = "status.json"


def write_status(store: LaneStore, status: Mapping[str, Any]) -> None:
    """Replace the lane's status as a whole: a reader sees the old or the new one. Raises BufferUnusable."""
    with explained(store.uri):
        replace_file(store.file(STATUS), json.dumps(dict(status)))


def read_status(store: LaneStore) -> dict[str, Any] | None:
    """The lane's last status, or None when it never ran (or a power failure left the file empty)."""
    try:
        body = json.loads(store.file(STATUS).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return body if isinstance(body, dict) else None

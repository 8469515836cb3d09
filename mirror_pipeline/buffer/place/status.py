"""The file in which a running lane describes itself to other processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore

STATUS = "status.json"


def write_status(store: LaneStore, status: Mapping[str, Any]) -> None:
    """Replace the lane's status as a whole: a reader sees the old or the new one. Raises BufferUnusable."""
    with explained(store.uri):
        store.write_file(STATUS, json.dumps(dict(status)))


def read_status(store: LaneStore) -> dict[str, Any] | None:
    """The lane's last status, or None when it never ran (or a power failure left the file empty). Raises BufferUnusable."""
    with explained(store.uri):
        text = store.read_file(STATUS)
    try:
        body = json.loads(text or b"")
    except ValueError:
        return None
    return body if isinstance(body, dict) else None

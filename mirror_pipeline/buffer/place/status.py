"""The file in which a running lane describes itself to other processes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore

STATUS = "status.json"
# Times in the status, by the clock of the lane's host.
TIMES = ("heartbeat", "started", "target_down_since", "source_down_since", "buffer_full_since")
# Clocks that differ by less need no correction. It comes in steps of this, so that one heartbeat reads the same each time.
ORDINARY_SECONDS = 10.0


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
    return _by_this_clock(store, body) if isinstance(body, dict) else None


def _by_this_clock(store: LaneStore, body: dict[str, Any]) -> dict[str, Any]:
    """The status with its times as this host's clock would have told them: the lane's host may have another one.

    The file's age says when it was written. Where that and the heartbeat agree, to what clocks differ on any two hosts, nothing changes.
    """
    beat = body.get("heartbeat")
    if not store.local or not body.get("host") or not isinstance(beat, float) or 0.0 <= time.time() - beat <= ORDINARY_SECONDS:
        return body
    try:
        age = store.now() - store.file(STATUS).stat().st_mtime
    except FileNotFoundError:
        return body
    shift = round((time.time() - age - beat) / ORDINARY_SECONDS) * ORDINARY_SECONDS
    return body | {name: body[name] + shift for name in TIMES if body.get(name)} if shift else body

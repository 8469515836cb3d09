"""The last round over the groups, as the run that did it describes it: a small file beside the table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore

ROUND_FILE = "round.json"


@dataclass(frozen=True, slots=True)
class LastRound:
    """When it began (seconds since the epoch), how long it took, how many groups and offsets; why it failed, or "".

    ``source_down_since`` (seconds since the epoch) is the first round in a row that the source did not answer; 0 if it did.
    """

    at: float
    seconds: float
    groups: int
    written: int
    error: str = ""
    source_down_since: float = 0.0


def write_last_round(store: LaneStore, done: LastRound) -> None:
    """Replace the file. Raises BufferUnusable."""
    with explained(store.uri):
        store.write_file(ROUND_FILE, json.dumps(asdict(done)))


def read_last_round(store: LaneStore) -> LastRound | None:
    """The file's content; None when there was no round. Raises BufferUnusable."""
    with explained(store.uri):
        text = store.read_file(ROUND_FILE)
    try:
        return LastRound(**json.loads(text)) if text else None
    except (ValueError, TypeError):  # of a later version
        return None

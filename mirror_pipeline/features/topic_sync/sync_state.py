"""The last round over a mirror's topics, as the run that did it describes it: a small file beside the table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.features.topic_sync.topic_changes import TOPICS_LANE
from mirror_pipeline.flow import Flow

SYNC_FILE = "round.json"


@dataclass(frozen=True, slots=True)
class SyncState:
    """When the round began (seconds since the epoch), how long it took, the number of topics and of changes; why it failed, or "".

    ``drift`` and ``waiting`` are sentences by source topic, ``notes`` concern all topics.
    """

    at: float
    seconds: float = 0.0
    topics: int = 0
    changes: int = 0
    error: str = ""
    drift: dict[str, list[str]] = field(default_factory=dict)
    waiting: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> tuple[str, ...]:
        """Drift, changes that wait, and what concerns all topics, as sentences."""
        told = [f"{topic}: {line}" for by_topic in (self.drift, self.waiting) for topic, own in sorted(by_topic.items()) for line in own]
        return (*([f"settings and ACLs of target topics are not compared: {self.error}"] if self.error else []), *self.notes, *told)


def write_state(store: LaneStore, state: SyncState) -> None:
    """Replace the file. Raises BufferUnusable."""
    with explained(store.uri):
        store.write_file(SYNC_FILE, json.dumps(asdict(state)))


def syncs_topics(flow: Flow) -> bool:
    """Whether the mirror keeps anything of its target topics in step beside records. Mirrors that share a topic have several sources."""
    topics = flow.settings.topics
    return (topics.configs.sync or topics.acls.sync or topics.follow_trim) and not flow.settings.shared


def topics_store(flow: Flow) -> LaneStore | None:
    """The folder of the rounds; None before the first one."""
    return next((store for store in find_lanes(flow.config.buffer, flow.name) if store.lane == TOPICS_LANE), None)


def sync_notes(flow: Flow) -> tuple[str, ...]:
    """What the last round found of settings and ACLs that differ; nothing where none are kept in step. Raises BufferUnusable."""
    state = read_state(flow) if syncs_topics(flow) else None
    return () if state is None else state.lines()


def read_state(flow: Flow) -> SyncState | None:
    """What the last round has said; None where there was none. Contacts no cluster. Raises BufferUnusable."""
    store = topics_store(flow)
    if store is None:
        return None
    with explained(store.uri):
        text = store.read_file(SYNC_FILE)
    try:
        return SyncState(**json.loads(text)) if text else None
    except (ValueError, TypeError):  # of a later version
        return None

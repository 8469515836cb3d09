"""``status.json``: the file in which a lane's run describes itself to other processes, and to the next run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.reports import Progress, TopicProgress

STATUS = "status.json"
NEVER_RUN, RUNNING, FAILED = "never run", "running", "failed"
# A running lane writes its heartbeat every two seconds.
STALE_SECONDS = 30.0
# Times in the file, by the clock of the lane's host.
TIMES = ("heartbeat", "started", "target_down_since", "source_down_since", "buffer_full_since")
# Clocks that differ by less need no correction. It comes in steps of this, so that one heartbeat reads the same each time.
ORDINARY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LaneFile:
    """A lane as its run last described it; times are seconds since the epoch.

    Args:
        progress: of the run; its topics carry what the next run needs, such as the batches read last.
        state: ``running``, ``finished``, ``failed``, ``never run``.
        message: why it failed.
        heartbeat: when this was written; None if the lane never ran.
        decisions: the last decision that the run knows; -1 if none.
        house: what its maintenance says.
        time_up: it ended because its time was up.
    """

    progress: Progress = field(default_factory=lambda: Progress("", ""))
    state: str = NEVER_RUN
    message: str = ""
    exit_code: int = 0
    heartbeat: float | None = None
    decisions: int = -1
    started: float | None = None
    pid: int | None = None
    host: str = ""
    target_down_since: float | None = None
    source_down_since: float | None = None
    buffer_full_since: float | None = None
    house: Mapping[str, Any] = field(default_factory=dict)
    time_up: bool = False

    @property
    def topics(self) -> dict[str, TopicProgress]:
        """The topics of the run."""
        return self.progress.topics

    def topic(self, name: str, incarnation: str) -> TopicProgress:
        """One of them; an empty one if the run did not have it: offsets of another topic of its name say nothing of this one."""
        said = self.topics.get(name)
        return said if said is not None and said.incarnation == incarnation else TopicProgress("")

    @property
    def age(self) -> float:
        """Seconds since the last heartbeat; endless if there was none."""
        return time.time() - self.heartbeat if self.heartbeat is not None else float("inf")

    @property
    def running(self) -> bool:
        """Whether a run is at work."""
        return self.state == RUNNING and self.age <= STALE_SECONDS

    @property
    def stale(self) -> bool:
        """Whether the run was interrupted: it says that it runs, and has sent no heartbeat for STALE_SECONDS."""
        return self.state == RUNNING and not self.running


_OWN = tuple(each.name for each in fields(LaneFile) if each.name != "progress")
_PROGRESS = tuple(each.name for each in fields(Progress) if each.name != "topics")
_TOPIC = tuple(each.name for each in fields(TopicProgress))


def write_lane_file(store: LaneStore, file: LaneFile) -> None:
    """Replace the file as a whole: a reader sees the old or the new one. Raises BufferUnusable."""
    # ``asdict`` would copy every one of thousands of offsets.
    body = _plain(file, _OWN) | _plain(file.progress, _PROGRESS)
    body["topics"] = {name: _plain(topic, _TOPIC) for name, topic in file.topics.items()}
    with explained(store.uri):
        store.write_file(STATUS, json.dumps(body))


def read_lane_file(store: LaneStore) -> LaneFile:
    """What the lane's last run wrote; state ``never run`` if none has, or a power failure left the file empty.

    Fields that an older version did not write have their defaults; what a newer one added is ignored.

    Raises:
        BufferUnusable: it cannot be read.
    """
    with explained(store.uri):
        text = store.read_file(STATUS)
    try:
        body = json.loads(text or b"")
    except ValueError:
        return LaneFile()
    return _by_this_clock(store, _parsed(body)) if isinstance(body, dict) else LaneFile()


def _plain(facts: object, names: tuple[str, ...]) -> dict[str, Any]:
    return dict(zip(names, attrgetter(*names)(facts), strict=True))


def _known(body: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: body[name] for name in names if name in body}


def _parsed(body: Mapping[str, Any]) -> LaneFile:
    topics = {name: _topic(said) for name, said in body.get("topics", {}).items()}
    progress = Progress(**{"mirror": "", "lane": "", **_known(body, _PROGRESS)}, topics=topics)
    return LaneFile(progress, **_known(body, _OWN))


def _topic(said: Mapping[str, Any]) -> TopicProgress:
    """A topic; keys of JSON are text, its lists were tuples."""
    topic = TopicProgress(**{"target_topic": "", **_known(said, _TOPIC)})
    topic.position = {int(number): int(offset) for number, offset in topic.position.items()}
    topic.end = {int(number): int(offset) for number, offset in topic.end.items()}
    topic.marks = {int(number): (offset, crc, epoch) for number, (offset, crc, epoch) in topic.marks.items()}
    topic.halted_span = (topic.halted_span[0], topic.halted_span[1]) if topic.halted_span else None
    return topic


def _by_this_clock(store: LaneStore, file: LaneFile) -> LaneFile:
    """The file with its times as this host's clock would have told them: the lane's host may have another one.

    Its age says when it was written. Where that and the heartbeat agree, to what clocks differ on any two hosts, nothing changes.
    """
    if not store.local or not file.host or file.heartbeat is None or 0.0 <= file.age <= ORDINARY_SECONDS:
        return file
    try:
        age = store.now() - store.file(STATUS).stat().st_mtime
    except FileNotFoundError:
        return file
    shift = round((time.time() - age - file.heartbeat) / ORDINARY_SECONDS) * ORDINARY_SECONDS
    return replace(file, **{name: at + shift for name in TIMES if (at := getattr(file, name))}) if shift else file

"""Backfill: the records of a past time range, once, into an empty or another topic.

A time range becomes offset ranges once, at its first run: from the first record at or after the start to the
first record at or after the end (ListOffsets by time). Adjacent time ranges therefore give adjacent offset ranges
without overlap, even if record times are out of order. The offsets are kept with the buffer, so a repeated run
continues with the same ones. Those that the source has deleted meanwhile come from the archive, see :mod:`.kept_ranges`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes, open_lane
from mirror_pipeline.engine.driver.context import open_context
from mirror_pipeline.engine.driver.lane import LaneRun
from mirror_pipeline.engine.driver.read.kept import KeptSource
from mirror_pipeline.errors import UsageError
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.operations.kept_ranges import KeptPlan, Ranges, source_log
from mirror_pipeline.operations.state.plan import backfill_blockers, filled_topics
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import BackfillReport, Observer, RecordSource, RunReport
from mirror_pipeline.topics.lanes import BACKFILL_PREFIX, LaneTopic, select_topics
from mirror_pipeline.verify.staged import verify_staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MANIFEST = "backfill.json"
BESIDE = ".backfill"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one backfill copies; saved once, before the first record is written."""

    topic: str
    target_topic: str
    from_time: int
    to_time: int
    ranges: dict[int, tuple[int, int]]

    def save(self, store: LaneStore) -> None:
        """Keep it beside the lane's tables."""
        body = {
            "topic": self.topic,
            "target_topic": self.target_topic,
            "from_time": self.from_time,
            "to_time": self.to_time,
            "ranges": {str(number): list(bounds) for number, bounds in self.ranges.items()},
        }
        with explained(store.uri):
            store.write_file(MANIFEST, json.dumps(body), durable=True)


def read_manifest(store: LaneStore) -> Manifest | None:
    """The manifest of a backfill's lane, None before it has one."""
    with explained(store.uri):
        text = store.read_file(MANIFEST)
    if text is None:
        return None
    body = json.loads(text)
    ranges = {int(number): (bounds[0], bounds[1]) for number, bounds in body["ranges"].items()}
    return Manifest(body["topic"], body["target_topic"], body["from_time"], body["to_time"], ranges)


def run(
    flow: Flow,
    topic: str,
    from_time: int,
    to_time: int,
    *,
    into: str | None,
    source: RecordSource,
    observer: Observer | None,
    stop: threading.Event,
    session: SparkSession | None,
) -> BackfillReport:
    """See :meth:`Mirror.backfill`."""
    if from_time >= to_time:
        raise UsageError("the time range is empty: --from is not before --to", hint="the end is exclusive")
    if from_time > time.time() * 1000:
        raise UsageError("the time range lies in the future", hint="a backfill copies past records; `mirror run` copies new ones")
    if into is None:
        _refuse_directed(flow, topic)
    target = into or _selected(flow, topic)
    lane = lane_name(topic, target, from_time, to_time)
    store = next((s for s in find_lanes(flow.config.buffer, flow.name) if s.lane == lane), None)
    manifest = read_manifest(store) if store is not None else None
    if manifest is None:
        _refuse_live(flow, topic, target)
    plan = KeptPlan(flow, topic, source_log(flow, topic, from_time, to_time), source)
    if manifest is None:
        manifest = Manifest(topic, target, from_time, to_time, plan.ranges(from_time, to_time).ranges)
        _refuse(flow, manifest)
        manifest.save(open_lane(flow.config.buffer, flow.name, lane))
    until = plan.until(manifest.ranges)
    report = _copy(flow, lane, manifest, plan.source(manifest.ranges, until), observer, stop, session)
    kept = {number: (manifest.ranges[number][0], limit) for number, limit in until.items()}
    return BackfillReport(flow.name, topic, target, from_time, to_time, manifest.ranges, report, kept)


def copy_ranges(
    flow: Flow, topic: str, topic_id: str, into: str, ranges: Ranges, *, observer: Observer | None, stop: threading.Event, session: Session
) -> RunReport:
    """Copy these source offsets of a topic into another topic, once: a repeated call continues, or finds everything there.

    The same offsets of a topic with another id are other records.

    Raises:
        UsageError: ``into`` holds records that no backfill has written.
    """
    lane = lane_name(topic, f"{into}|{topic_id}|{sorted(ranges.items())}", 0, 0)
    store = next((s for s in find_lanes(flow.config.buffer, flow.name) if s.lane == lane), None)
    manifest = read_manifest(store) if store is not None else None
    if manifest is None:
        manifest = Manifest(topic, into, 0, 0, ranges)
        _refuse(flow, manifest)
        manifest.save(open_lane(flow.config.buffer, flow.name, lane))
    return _copy(flow, lane, manifest, None, observer, stop, session)


def _copy(
    flow: Flow, lane: str, manifest: Manifest, kept: KeptSource | None, observer: Observer | None, stop: threading.Event, session: Session
) -> RunReport:
    # Time-based retention would delete old records at once.
    wanted = [LaneTopic(manifest.topic, manifest.target_topic, manifest.ranges, {"retention.ms": "-1"}, filled=True)]
    placement = flow.placement(session)
    placement.prepare()
    context = open_context(flow, lane, placement, once=True, stop=stop, verify_staged=verify_staged)
    context.permits.directions = None  # a backfill names its target, and writes into no topic that is mirrored
    context.kept = kept
    return LaneRun(context, lambda: wanted, observer=observer).run()


def default_target(flow: Flow, topic: str) -> str:
    """The mirrored name while no lane copies into it and it holds no records but those of backfills; else that name with ``.backfill``."""
    _refuse_directed(flow, topic)
    target = _selected(flow, topic)
    begun = _live(flow, topic, target)
    ours = {manifest.target_topic for manifest in _manifests(flow)}
    with Snapshot(flow) as snapshot:
        filled = target in snapshot.target.names and filled_topics(snapshot.target, [target]) and target not in ours
    return f"{target}{BESIDE}" if begun or filled else target


def lane_name(topic: str, target: str, from_time: int, to_time: int) -> str:
    """A folder name that stays the same for the same backfill."""
    key = hashlib.sha256(f"{topic}|{target}|{from_time}|{to_time}".encode()).hexdigest()[:12]
    return f"{BACKFILL_PREFIX}{re.sub('[^A-Za-z0-9_-]', '_', topic)[:40]}-{key}"


def _selected(flow: Flow, topic: str) -> str:
    """The mirrored name of a topic that the mirror selects."""
    return select_topics(flow.config, flow.settings, flow.source_topics()).target_of(flow.name, topic)


def _live(flow: Flow, topic: str, target: str) -> bool:
    """Whether a continuous lane copies into ``target``."""
    generations = [Ledger(store).incarnations().get(topic) for store in flow.lane_stores()]
    return any(generation is not None and generation.target_topic == target for generation in generations)


def _manifests(flow: Flow) -> list[Manifest]:
    stores = [store for store in find_lanes(flow.config.buffer, flow.name) if store.lane.startswith(BACKFILL_PREFIX)]
    return [manifest for store in stores if (manifest := read_manifest(store)) is not None]


def _refuse_directed(flow: Flow, topic: str) -> None:
    """A topic that applications took over, or that is copied the other way, gets no old records unless the target is named."""
    halt = flow.directions().look().refused([topic]).get(topic)
    if halt is not None:
        raise UsageError(halt.message, hint=f"to copy old records of {topic} into another topic, name it with --into")


def _refuse_live(flow: Flow, topic: str, target: str) -> None:
    if _live(flow, topic, target):
        raise UsageError(
            f"{target} is mirrored continuously: old records would be appended after newer ones",
            hint=f"copy into another topic: --into {target}{BESIDE}",
        )


def _refuse(flow: Flow, manifest: Manifest) -> None:
    """Raise UsageError for whatever prevents this backfill, before anything is created."""
    with Snapshot(flow) as snapshot:
        if manifest.target_topic in snapshot.target.names:
            _refuse_filled(snapshot, manifest)
    blockers = backfill_blockers(flow, manifest.topic, manifest.target_topic, manifest.from_time)
    if blockers:
        raise UsageError(blockers[0], hint="; ".join(blockers[1:]) or "nothing was changed")


def _refuse_filled(snapshot: Snapshot, manifest: Manifest) -> None:
    """A target that holds records takes a backfill only after an earlier one of the same topic."""
    if not filled_topics(snapshot.target, [manifest.target_topic]):
        return
    before = [earlier for earlier in _manifests(snapshot.flow) if earlier.target_topic == manifest.target_topic]
    if not before or any(m.topic != manifest.topic or m.to_time > manifest.from_time for m in before):
        raise UsageError(
            f"target topic {manifest.target_topic} already holds records"
            + (" of a later or overlapping time range" if before else ""),
            hint=f"copy into another topic: --into {manifest.target_topic}{BESIDE}",
        )

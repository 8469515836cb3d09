"""Which copies of the source may be read (``sources``), and for which offsets.

A copy is a cluster that holds the source's topics under the same names with the same offsets. None is trusted untried: of what would be
read from it, samples are compared with the source record by record, all of it where that is little, again when its topic was made anew,
and with each look what has come to its end. While the source does not answer, a copy is compared with the end of what the target has. A
copy that differs is left out, topic by topic. One thread for each copy, so that neither the lane nor another copy waits for one that is
silent.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.state import PartitionState
from mirror_pipeline.engine.tasks.longlink.several import Holding
from mirror_pipeline.engine.tasks.read.messages import ReadResult
from mirror_pipeline.errors import ClusterUnreachable, ConnectionLost, MirrorError, UsageError
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.kafka.client import Routes, WireClient
from mirror_pipeline.kafka.offsets import log_ranges
from mirror_pipeline.model import TopicPartition

log = logging.getLogger(__name__)

WORTH_COPIES_BYTES = 16 * 2**20
"""A backlog of less is read from the source alone, without asking anybody else."""
COPIES_LOOK_SECONDS = 5.0
CONNECTED_EARLY = 3
"""Brokers of each copy."""
OFFER_SECONDS = 10.0
"""While a copy is compared, what it holds is fetched already; after so long the others read it."""
AWAITED_SECONDS = 3.0
"""For what a copy holds; an answer takes four round trips."""
SOURCE_SECONDS = 5.0
"""Without an answer of the source: a copy is then compared with what the target has."""
COMPARED_SAMPLES, COMPARED_BYTES = 6, 64 * 1024
"""Of each partition: so many samples at random places, one at the position and one at the end, of about so many bytes."""
WHOLE_BYTES = 4 * 2**20
"""What is not more than this is compared as a whole."""

Bounds = dict[TopicPartition, tuple[int, int]]
Ranges = list[tuple[int, int]]
Sample = tuple[TopicPartition, TopicPartition, int, int]


@dataclass(slots=True)
class ProvenTopic:
    """A topic of a copy: offsets ``[start, end)`` by partition that agree with the source, as far as samples tell; or why they do not."""

    topic_id: str
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    differs: str = ""

    def begins_at(self, partition: int, start: int) -> None:
        """The copy has deleted what is below ``start``."""
        if partition in self.bounds:
            self.bounds[partition] = start, max(start, self.bounds[partition][1])


class Copies:
    """Proves copies while there is a backlog. ``holdings`` never waits for a cluster.

    The lane's lock may be held when this one's is taken, never the other way round.
    """

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._proven: dict[str, dict[str, ProvenTopic]] = {}
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._routes: dict[str, Routes] = {}
        self._offered: dict[str, tuple[float, Bounds]] = {}
        self._looked: set[str] = set()
        self._awaited_until = 0.0
        for cluster in context.copies:
            threading.Thread(target=self._work, args=(cluster,), name=f"copy-{cluster.alias}", daemon=True).start()

    @property
    def compared(self) -> bool:
        """Whether each copy was compared once, or could not be."""
        with self._lock:
            return len(self._looked) == len(self._context.copies)

    @property
    def wanted(self) -> bool:
        """Whether there is a backlog that is worth copies, and there are some."""
        return self._wanted.is_set()

    @property
    def awaited(self) -> bool:
        """Whether a copy may say any moment what it holds, for the next micro-batch to read."""
        with self._lock:
            told = self._looked | self._routes.keys()
            return time.monotonic() < self._awaited_until and len(told) < len(self._context.copies)

    def holdings(self, waiting: float) -> tuple[Holding, ...]:
        """What copies may be read for now, if a backlog of ``waiting`` bytes is worth it."""
        if not self._context.copies or waiting < WORTH_COPIES_BYTES:
            self._wanted.clear()
            return ()
        if not self._wanted.is_set():
            self._awaited_until = time.monotonic() + AWAITED_SECONDS
            self._wanted.set()
        with self._lock:
            found = [self._holding(cluster) for cluster in self._context.copies if cluster.alias in self._routes]
        return tuple(holding for holding in found if holding.offsets or holding.offered)

    def found(self, result: ReadResult) -> None:
        """What a reader has found: a topic that is wrong is not read any more, a copy that does not answer not before it does."""
        with self._lock:
            for alias in result.lost_copies:
                self._proven.pop(alias, None)
        for (alias, source), why in result.left_out.items():
            self._leave_out(alias, source.topic, f"{source}: {why}")

    def end(self) -> None:
        """Prove nothing more; a thread that waits for a silent broker ends after it."""
        self._over.set()
        self._wanted.set()

    def _holding(self, cluster: ClusterSettings) -> Holding:
        topics = {name: topic for name, topic in self._proven.get(cluster.alias, {}).items() if topic.bounds and not topic.differs}
        offsets = {TopicPartition(name, number): bounds for name, topic in topics.items() for number, bounds in topic.bounds.items()}
        until, offered = self._offered.get(cluster.alias, (0.0, {}))
        return Holding(cluster, offsets, self._routes[cluster.alias], offered if time.monotonic() < until else {})

    def _work(self, cluster: ClusterSettings) -> None:
        try:
            self._connect(cluster)
            while not self._over.is_set():
                self._wanted.wait()
                if not self._over.is_set():
                    self._look_at(cluster)
                self._over.wait(COPIES_LOOK_SECONDS)
        finally:
            worker_cache.close()

    def _connect(self, cluster: ClusterSettings) -> None:
        """Open connections while the lane begins: a backlog then waits for fewer round trips."""
        client = worker_cache.client_of(cluster, timeout=self._context.mirror.engine.request_timeout)
        try:
            for node in sorted(client.metadata([]).brokers)[:CONNECTED_EARLY]:
                client.connection(node)
        except MirrorError as error:
            log.info("source_not_connected source=%s: %s", cluster.alias, error.message)  # it is tried again when it is wanted

    def _look_at(self, cluster: ClusterSettings) -> None:
        try:
            self._prove(cluster, worker_cache.client_of(cluster, timeout=self._context.mirror.engine.request_timeout))
            self._context.state.copy_answers(cluster.alias)
        except MirrorError as error:
            worker_cache.forget(cluster)
            with self._lock:
                self._proven.pop(cluster.alias, None)
            self._context.state.leave_copy_out(cluster.alias, error.message)
        with self._lock:
            self._looked.add(cluster.alias)
            self._offered.pop(cluster.alias, None)

    def _prove(self, cluster: ClusterSettings, client: WireClient) -> None:
        with self._context.state.lock:
            thinned = {name for name, run in self._context.state.topics.items() if run.compacted or run.settings_unread}
            live = [part for part in self._context.state.live() if part.reading.hard_end is None and part.source.topic not in thinned]
        parts = {part.source: part for part in live}
        found = client.metadata(sorted({source.topic for source in parts}))
        if found.cluster_id in (self._context.source.cluster_id, self._context.target.cluster_id):
            raise UsageError(f"{cluster.alias} is the mirror's source or target by another name", hint="leave it out of sources")
        known = {name: self._topic(cluster.alias, name, topic.topic_id) for name, topic in found.topics.items() if not topic.error}
        bounds = _bounds(client, [source for source in parts if source.topic in known and not known[source.topic].differs])
        with self._lock:
            for source, (start, _) in bounds.items():
                known[source.topic].begins_at(source.partition, start)
            fresh = {source: samples for source in bounds if (samples := _samples(parts[source], known[source.topic], bounds[source]))}
            unproven = {source: bounds[source] for source in fresh if source.partition not in known[source.topic].bounds}
            self._routes[cluster.alias] = client.routes()
            self._offered[cluster.alias] = time.monotonic() + OFFER_SECONDS, unproven
        ours = self._source_bounds(list(fresh))
        for name in sorted({source.topic for source in fresh}):
            mine = [parts[source] for source in fresh if source.topic == name and (ours is None or source in ours)]
            if ours is None:
                of_target = _of_target(mine, bounds)
                comparable = {source for _, source, _, _ in of_target}
                mine = [part for part in mine if part.source in comparable]
                why = self._compared(self._context.target, cluster, of_target)
            else:
                why = _longer(mine, bounds, ours) or self._compared(self._context.source, cluster, _of_source(mine, fresh, ours))
            if why:
                self._leave_out(cluster.alias, name, why)
                continue
            with self._lock:
                known[name].bounds |= {part.source.partition: bounds[part.source] for part in mine}

    def _source_bounds(self, wanted: list[TopicPartition]) -> Bounds | None:
        """Of the source's logs; None while it does not answer, or is not asked."""
        if self._context.drain:
            return None
        try:
            return _bounds(worker_cache.client_of(self._context.source, timeout=SOURCE_SECONDS), wanted)
        except (ConnectionLost, ClusterUnreachable):
            worker_cache.forget(self._context.source)
            return None

    def _topic(self, alias: str, name: str, topic_id: str) -> ProvenTopic:
        with self._lock:
            topics = self._proven.setdefault(alias, {})
            if name not in topics or topics[name].topic_id != topic_id:
                topics[name] = ProvenTopic(topic_id)
            return topics[name]

    def _compared(self, known: ClusterSettings, copy: ClusterSettings, samples: list[Sample]) -> str:
        """Why a topic of the copy is left out; "" if all samples agree."""
        prove = self._context.samples_differ
        if prove is None:
            return "this run compares nothing"
        found = prove(known, copy, samples, timeout=self._context.mirror.engine.request_timeout)
        return next((found[tp] for tp in sorted(found)), "")

    def _leave_out(self, alias: str, name: str, why: str) -> None:
        with self._lock:
            topic = self._proven.get(alias, {}).get(name)
            if topic is None or topic.differs:
                return
            topic.differs = why
        log.warning("source_left_out source=%s topic=%s: %s; it is copied from the others", alias, name, why)
        self._context.state.leave_copy_out(f"{alias} {name}", why)


def _bounds(client: WireClient, wanted: list[TopicPartition]) -> Bounds:
    """Start and last stable offset of the partitions that answer."""
    return {tp: log for tp, log in log_ranges(client, wanted, isolation=1).items() if isinstance(log, tuple) and min(log) >= 0}


def _longer(parts: Iterable[PartitionState], bounds: Bounds, ours: Bounds) -> str:
    """Why a copy is none that holds more than the source, which was asked after it."""
    longer = next((part.source for part in parts if bounds[part.source][1] > ours[part.source][1]), None)
    return f"{longer} ends at offset {bounds[longer][1]:,}, the source at {ours[longer][1]:,}" if longer else ""


def _of_source(parts: Iterable[PartitionState], fresh: Mapping[TopicPartition, Ranges], ours: Bounds) -> list[Sample]:
    """The samples of what the source still holds."""
    return [
        (part.source, part.source, max(low, ours[part.source][0]), high)
        for part in parts for low, high in fresh[part.source] if high > ours[part.source][0]
    ]  # fmt: skip


def _of_target(parts: Iterable[PartitionState], bounds: Bounds) -> list[Sample]:
    """The end of what the target has."""
    found = []
    for part in parts:
        end = min(part.writing.position.target_next, bounds[part.source][1])
        low = max(bounds[part.source][0], end - max(1, int(COMPARED_BYTES / max(1.0, part.reading.bytes_per_offset))))
        found += [(part.target, part.source, low, end)] if low < end else []
    return found


def _samples(part: PartitionState, known: ProvenTopic, bounds: tuple[int, int]) -> Ranges:
    """Offset ranges of a partition to compare: of all that would be read, or of what has come since; none if nothing has."""
    start, end = bounds
    _, proven = known.bounds.get(part.source.partition, (0, -1))
    low, each = max(start, part.staged, proven), max(1.0, part.reading.bytes_per_offset)
    if low >= end:
        return []
    if proven < 0 and (end - start) * each <= WHOLE_BYTES:
        return [(start, end)]
    offsets = max(1, int(COMPARED_BYTES / each))
    if end - low <= offsets:
        return [(low, end)]
    places = sorted(random.randrange(low, end - offsets) for _ in range(COMPARED_SAMPLES if proven < 0 else 1))  # noqa: S311 - no secret
    return [(low, low + offsets), *((place, place + offsets) for place in places), (end - offsets, end)]

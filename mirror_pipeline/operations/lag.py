"""Lag and status: read by anyone at any time, beside a running lane, without touching it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.verified import different_now
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.status import read_status
from mirror_pipeline.buffer.place.usage import buffer_use as whole_use
from mirror_pipeline.engine.topics.first_seen import FirstSeen
from mirror_pipeline.engine.topics.join import begins_at
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.halts import ACCEPTABLE
from mirror_pipeline.kafka.answers import EARLIEST, LATEST, ClusterMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.lags import HALTED, MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.model import Gap, TopicPartition
from mirror_pipeline.operations.buffer_status import buffer_use, ledger_of, span_table
from mirror_pipeline.operations.warnings import LogTimes
from mirror_pipeline.reports import LaneStatus, TopicState
from mirror_pipeline.topics.lanes import KnownCopy

ACCEPTED = "accepted"
NO_RECORD = -1
"""ListOffsets' answer for a time that no record has yet."""
NOTES_SHOWN = 5
STALE_SECONDS = 30.0
"""A running lane writes its heartbeat every two seconds."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a mirror's partitions stand by ledger and buffer: next source offset to produce, end of what is staged.

    ``starts`` are the first offsets of copies that have begun, ``first_seen`` what lanes know of those that have not.
    """

    positions: dict[TopicPartition, int]
    staged: dict[TopicPartition, int]
    staged_records: int
    staged_bytes: int
    gaps: tuple[Gap, ...]
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    first_seen: tuple[FirstSeen, ...] = ()


def standing(stores: list[LaneStore]) -> Standing:
    """Read ledger and buffer of some lanes."""
    positions: dict[TopicPartition, int] = {}
    staged: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    records = size = 0
    gaps: list[Gap] = []
    for store in stores:
        ledger, spans = ledger_of(store), span_table(store)
        if not (ledger.exists() and spans.exists()):
            continue  # a lane that is just being made
        lives = ledger.incarnations()
        incarnations = {name: life.incarnation for name, life in lives.items()}
        starts |= {TopicPartition(name, number): first for name, life in lives.items() for number, first in life.starts.items()}
        here = {tp: position.source_next for tp, position in ledger.positions().items()}
        positions |= here
        for span in spans.pending(here, incarnations=incarnations):
            staged[span.source] = max(staged.get(span.source, 0), span.end)
            records += span.records
            size += span.bytes
        gaps += ledger.gaps()
    return Standing(positions, staged, records, size, tuple(gaps), starts, tuple(map(FirstSeen, stores)))


def lag_of(
    mirror: str,
    targets: Mapping[str, str],
    client: WireClient,
    stand: Standing,
    *,
    ages: bool = True,
    start: str | datetime = "earliest",
    times: LogTimes | None = None,
) -> MirrorLag:
    """Compare a mirror's positions with the source's ends.

    A partition that no lane has begun stands where its copy would begin: at ``start``, the mirror's, or at the start of its log
    where its topic is copied already. What the source does not tell now is left out and named in the notes.
    """
    metadata = client.metadata(sorted(targets))
    parts = [
        TopicPartition(name, number)
        for name in targets
        if name in metadata.topics and not metadata.topics[name].error
        for number in metadata.topics[name].partitions
    ]
    ends = offsets_or_errors(client, parts, LATEST)
    firsts = _first_offsets(client, [tp for tp in parts if tp not in stand.positions], stand, start, metadata)
    rows: dict[str, list[PartitionLag]] = {name: [] for name in targets}
    unknown: list[str] = []
    for tp in sorted(parts):
        end, position = ends[tp], stand.positions.get(tp, firsts.get(tp, 0))
        if isinstance(end, BrokerError) or isinstance(position, BrokerError):
            unknown.append(f"{tp} is left out: {(end if isinstance(end, BrokerError) else cast(BrokerError, position)).message}")
            continue
        staged = max(position, stand.staged.get(tp, position))
        rows[tp.topic].append(PartitionLag(tp.partition, position, end, staged, max(0, end - position)))
    found = _ages(times or LogTimes(client), rows) if ages else {}
    topics = tuple(
        TopicLag(name, targets[name], tuple(partitions), _oldest(found, name, partitions)) for name, partitions in sorted(rows.items())
    )
    behind = [topic for topic in topics if topic.lag_records]
    known = [topic.lag_seconds for topic in behind if topic.lag_seconds is not None]
    return MirrorLag(mirror, topics, max(known) if known else None if behind else 0.0, _short(unknown))


def _first_offsets(
    client: WireClient, parts: list[TopicPartition], stand: Standing, start: str | datetime, metadata: ClusterMetadata
) -> dict[TopicPartition, int | BrokerError]:
    """Where the copy of partitions would begin that nothing has been sent of."""
    found: dict[TopicPartition, int | BrokerError] = {tp: stand.starts[tp] for tp in parts if tp in stand.starts}
    copied = {tp.topic for tp in stand.starts}
    asked: dict[int, list[TopicPartition]] = {}
    for tp in parts:
        seen = _seen(stand, metadata, tp.topic) if start == "latest" and tp.topic not in copied else None
        if tp not in found and seen is not None and tp.partition in seen:
            found[tp] = seen[tp.partition]
        elif tp not in found:
            asked.setdefault(EARLIEST if tp.topic in copied or seen is not None else begins_at(start), []).append(tp)
    for at, mine in asked.items():
        found |= offsets_or_errors(client, mine, at)
    return found | offsets_or_errors(client, [tp for tp, offset in found.items() if offset == NO_RECORD], LATEST)


def _seen(stand: Standing, metadata: ClusterMetadata, topic: str) -> dict[int, int] | None:
    """The offsets at which ``start: latest`` begins as a lane wrote them down at its first look; None when they are the ends now."""
    told = [seen.offsets(topic, metadata.topics[topic].topic_id, metadata.cluster_id) for seen in stand.first_seen if seen.looked]
    return None if not told or None in told else next((offsets for offsets in told if offsets), {})


def _short(lines: list[str]) -> tuple[str, ...]:
    return (*lines[:NOTES_SHOWN], f"and {len(lines) - NOTES_SHOWN} more partitions") if len(lines) > NOTES_SHOWN else tuple(lines)


def staged_lag(mirror: str, known: Mapping[str, KnownCopy], stand: Standing) -> MirrorLag:
    """Lag as far as ledger and buffer tell: a partition ends where the buffer does."""
    topics = []
    for name, copy in sorted(known.items()):
        rows = []
        for number, start in sorted(copy.life.starts.items()):
            position = stand.positions.get(TopicPartition(name, number), start)
            staged = max(position, stand.staged.get(TopicPartition(name, number), position))
            rows.append(PartitionLag(number, position, staged, staged, staged - position))
        topics.append(TopicLag(name, copy.target_topic, tuple(rows)))
    return MirrorLag(mirror, tuple(topics), None)


def _oldest(ages: Mapping[TopicPartition, float], name: str, partitions: list[PartitionLag]) -> float | None:
    if all(p.lag == 0 for p in partitions):
        return 0.0
    known = [age for tp, age in ages.items() if tp.topic == name]
    return max(known) if known else None


def _ages(times: LogTimes, rows: Mapping[str, list[PartitionLag]]) -> dict[TopicPartition, float]:
    """Seconds since the time of the first record that is not on the target, for the partitions furthest behind."""
    behind = sorted(((p.lag, name, p) for name, parts in rows.items() for p in parts if p.lag), key=lambda row: -row[0])
    first = times.first({TopicPartition(name, part.partition): part.position for _, name, part in behind}, isolation=1)
    now = time.time()
    return {tp: max(0.0, now - at) for tp, at in first.items()}


def total_bytes(stores: list[LaneStore]) -> int:
    """What all mirrors of the buffer that these lanes are in take on its disk, backfills included."""
    return sum(use.total for use in whole_use(stores[0]).values()) if stores else 0


def verification(stores: list[LaneStore]) -> dict[str, Any]:
    """When something was last compared (seconds since the epoch; None: never), and the topics that differed when they last were."""
    rows = [row for store in stores for row in ledger_of(store).verifications()]
    return {"verified_at": max((row.at / 1000 for row in rows), default=None), "different": tuple(sorted(different_now(rows)))}


def lane_status(store: LaneStore) -> LaneStatus:
    """The lane as its run last described it."""
    body = read_status(store)
    use = buffer_use(store, body or {})
    if body is None:
        return LaneStatus(store.lane, "never run", None, None, "", None, (), 0, 0, 0, 0.0, 0.0, buffer=use)
    state = body["state"]
    if state == "running" and time.time() - body["heartbeat"] > STALE_SECONDS:
        state = "stale"
    seconds = max(body["seconds"], 0.001)
    topics = tuple(_topic_state(store, name, t, body["heartbeat"]) for name, t in sorted(body["topics"].items()))
    return LaneStatus(
        lane=store.lane,
        state=state,
        heartbeat=body["heartbeat"],
        pid=body["pid"],
        host=body["host"],
        started=body["started"],
        topics=topics,
        micro_batches=body["micro_batches"],
        records=body["records"],
        bytes=body["bytes"],
        records_per_second=body["records"] / seconds,
        bytes_per_second=body["bytes"] / seconds,
        target_down_since=body["target_down_since"],
        message=body["message"] or body["target_down"] or body.get("source_down", ""),
        buffer=use,
        decided=Decisions(store).latest(),
        source_down=body.get("source_down", ""),
        exit_code=body.get("exit_code", 0),
    )


def _topic_state(store: LaneStore, name: str, said: Mapping[str, Any], at: float) -> TopicState:
    state, hint, code = said["state"], said["hint"], said.get("code", "")
    if state == HALTED and accepted_since(store, name, code, at):
        state, hint = ACCEPTED, "the next run goes on"
    return TopicState(name, state, said["reason"], hint, said["target_topic"], said["records"], said["bytes"], code)


def accepted_since(store: LaneStore, topic: str, code: str, at: float) -> bool:
    """Whether a person has accepted a halt after ``at``, in seconds since the epoch. Raises BufferUnusable."""
    kind = ACCEPTABLE.get(code)
    return kind is not None and any(d.kind is kind and d.topic == topic and d.at / 1000 > at for d in Decisions(store).all())

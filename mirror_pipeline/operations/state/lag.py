"""Lag: may be read at any time, also while a lane is running, which it does not affect."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from mirror_pipeline.config.starts import Start, StartOffsets, start_of
from mirror_pipeline.engine.driver.topics.join import begins_at
from mirror_pipeline.errors import BrokerError, WrongCluster
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME, ClusterMetadata
from mirror_pipeline.kafka.offsets import led, offsets_or_errors
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state.cluster_view import ClusterView
from mirror_pipeline.operations.state.halts import HaltLook
from mirror_pipeline.operations.state.ledger_view import LedgerView, ahead
from mirror_pipeline.operations.state.log_times import least_ages
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.text import few
from mirror_pipeline.topics.configs import retention_ms
from mirror_pipeline.topics.lanes import known_topics
from mirror_pipeline.topics.select import unmatched

NO_RECORD = -1
"""ListOffsets' answer for a time that no record has yet."""


def lag(snapshot: Snapshot, *, notes: Sequence[str] = (), plan: bool = False) -> MirrorLag:
    """See ``Mirror.lag``, with the ``notes`` of features; for a ``plan`` without ages, and with the halts that only the target shows."""
    flow, view = snapshot.flow, snapshot.ledger
    try:
        selected = snapshot.selected.topics
        rows, left_out = measure(snapshot.source, view, selected, start=flow.settings.start, ages=not plan)
        silent = () if selected else unmatched(snapshot.names, flow.settings.topics.include)
    except WrongCluster:
        if not view.kept:
            raise
        rows, left_out, silent = _staged(snapshot), (), ()
    look = HaltLook(snapshot)
    look.at_source()
    if plan:
        look.at_target()
    topics = look.shown(rows)
    seconds, at_least = _oldest(topics)
    return MirrorLag(flow.name, topics, seconds, (*left_out, *silent, *view.notes, *notes), lag_seconds_at_least=at_least)


def undelivered(snapshot: Snapshot) -> MirrorLag:
    """See ``Mirror.undelivered``: by ledger and buffer alone, a partition ends where the buffer does."""
    files = [lane.file for lane in snapshot.ledger.lanes]
    known = [file.source_down_since for file in files if file.source_down_since]
    notes = tuple(line for file in files for line in ahead(file))
    return MirrorLag(snapshot.flow.name, tuple(_staged(snapshot).values()), None, notes, min(known, default=None))


def _staged(snapshot: Snapshot) -> dict[str, TopicLag]:
    known = sorted(known_topics(snapshot.flow.config, snapshot.flow.settings).items())
    return {name: TopicLag(name, copy.target_topic, snapshot.ledger.staged_rows(copy.generation)) for name, copy in known}


def _oldest(topics: Collection[TopicLag]) -> tuple[float | None, bool]:
    """The age of the oldest record that the target lacks, None if unknown, and whether a topic may have an older one."""
    behind = [topic for topic in topics if topic.lag_records]
    known = [topic.lag_seconds for topic in behind if topic.lag_seconds is not None]
    at_least = bool(known) and any(topic.lag_seconds_at_least or topic.lag_seconds is None for topic in behind)
    return (max(known) if known else None if behind else 0.0), at_least


def measure(
    source: ClusterView, view: LedgerView, targets: Mapping[str, str], *, start: Start = "earliest", ages: bool = True
) -> tuple[dict[str, TopicLag], tuple[str, ...]]:
    """Compare a mirror's positions with the source's ends; the rows by topic, and a line for each partition left out.

    A partition that no lane has begun has the position at which its copy would begin: the mirror's ``start``, or the start of
    its log where its topic is copied already; so has all of a topic that was made anew. Partitions that the source cannot report now are
    left out.
    """
    metadata = source.metadata(targets)
    found = (topic for topic in metadata.topics.values() if not topic.error)
    parts = [TopicPartition(topic.name, number) for topic in found for number in topic.partitions]
    asked, unled = led(metadata, parts)
    ends = source.offsets(asked, LATEST_TIME) | unled
    anew = _made_anew(view, metadata)
    positions = {tp: at for tp, at in view.positions.items() if tp.topic not in anew}
    firsts = _first_offsets(source, [tp for tp in asked if tp not in positions and tp.topic not in anew], view, start, metadata)
    firsts |= source.offsets([tp for tp in asked if tp.topic in anew], EARLIEST_TIME)
    rows: dict[TopicPartition, PartitionLag] = {}
    left_out: list[str] = []
    for tp in sorted(parts):
        end, position = ends[tp], positions.get(tp, firsts.get(tp, 0))
        if isinstance(end, BrokerError) or isinstance(position, BrokerError):
            left_out.append(f"{tp} is left out: {(end if isinstance(end, BrokerError) else cast(BrokerError, position)).message}")
            continue
        staged = position if tp.topic in anew else max(position, view.staged.get(tp, position))
        rows[tp] = PartitionLag(tp.partition, position, end, staged, max(0, end - position))
    notes = _Notes.taken(source, rows, ages=ages)
    grouped: dict[str, dict[TopicPartition, PartitionLag]] = {name: {} for name in targets}
    for tp, row in rows.items():
        grouped[tp.topic][tp] = row
    topics = {name: _topic(name, targets[name], mine, notes) for name, mine in sorted(grouped.items())}
    return topics, tuple(few(left_out, "more partitions"))


def _made_anew(view: LedgerView, metadata: ClusterMetadata) -> set[str]:
    """Topics of another id than the one that was copied: an offset of the old log says nothing of the new one."""
    there = {name: topic.topic_id for name, topic in metadata.topics.items() if not topic.error and topic.topic_id}
    return {name for name, copied in view.copied.items() if name in there and copied.generation.topic_id != there[name]}


def _first_offsets(
    source: ClusterView, parts: list[TopicPartition], view: LedgerView, start: Start, metadata: ClusterMetadata
) -> dict[TopicPartition, int | BrokerError]:
    """Where the copy would begin of partitions from which nothing has been sent."""
    found: dict[TopicPartition, int | BrokerError] = {tp: view.starts[tp] for tp in parts if tp in view.starts}
    copied = {tp.topic for tp in view.starts}
    asked: dict[int, list[TopicPartition]] = {}
    for tp in (tp for tp in parts if tp not in view.starts):
        begins = start_of(start, tp.topic)
        seen = first_ends(view, metadata, tp.topic) if begins != "earliest" and tp.topic not in copied else None
        later = tp.topic in copied or (seen is not None and tp.partition not in seen)
        if isinstance(begins, StartOffsets) and not later and tp.partition in begins.by_partition:
            found[tp] = begins.by_partition[tp.partition]
        elif begins == "latest" and seen is not None and not later:
            found[tp] = seen[tp.partition]
        else:
            asked.setdefault(EARLIEST_TIME if later or isinstance(begins, StartOffsets) else begins_at(begins), []).append(tp)
    for at, mine in asked.items():
        found |= source.offsets(mine, at)
    return found | source.offsets([tp for tp, offset in found.items() if offset == NO_RECORD], LATEST_TIME)


def first_ends(view: LedgerView, metadata: ClusterMetadata, topic: str) -> dict[int, int] | None:
    """The ends that a lane recorded at its first look, {} for a topic that it did not find; None when they are the current ends."""
    known = [seen.offsets(topic, metadata.topics[topic].topic_id, metadata.cluster_id) for seen in view.first_seen if seen.looked]
    return None if not known or None in known else next((offsets for offsets in known if offsets), {})


@dataclass(frozen=True, slots=True)
class _Notes:
    """What the source says of partitions beside offsets; times in seconds since the epoch, ``least`` in seconds.

    ``first`` is when the first record was written that the target lacks, ``least`` how old it is at least where that is unknown;
    ``unread`` is when the first record was written that is not read yet, ``kept`` how long its topic keeps it, in milliseconds.
    ``held`` are the offsets that an open transaction holds back, ``since`` when that began (KIP-98).
    """

    now: float
    first: Mapping[TopicPartition, float]
    least: Mapping[TopicPartition, float]
    unread: Mapping[TopicPartition, float]
    kept: Mapping[str, int]
    held: Mapping[TopicPartition, int]
    since: Mapping[TopicPartition, float]

    @classmethod
    def taken(cls, source: ClusterView, rows: Mapping[TopicPartition, PartitionLag], *, ages: bool) -> _Notes:
        """Ask the source."""
        behind = {tp: rows[tp].position for tp in _most_behind_first(rows)} if ages else {}
        first = source.first_times(behind)
        begun = time.time()
        least = least_ages(source.client, {tp: at for tp, at in behind.items() if tp not in first})
        held = _held(source, {tp: row.end for tp, row in rows.items()})
        unread = {tp: row.staged for tp, row in rows.items() if row.staged < row.end}
        names = sorted({tp.topic for tp in unread})
        configs = source.admin.topic_configs(names) if names else {}
        kept = {name: limit for name, found in configs.items() if (limit := retention_ms(found)) is not None}
        expiring = {tp: at for tp, at in unread.items() if tp.topic in kept}
        oldest = source.first_times(expiring | unread if ages else expiring)
        since = source.first_times({tp: at for tp, (at, _) in held.items()}, isolation=0)
        return cls(begun, first, least, oldest, kept, {tp: end - at for tp, (at, end) in held.items()}, since)


def _most_behind_first(rows: Mapping[TopicPartition, PartitionLag]) -> list[TopicPartition]:
    """The partitions that lag: of each topic the most lagging one first."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in sorted((tp for tp in rows if rows[tp].lag), key=lambda tp: -rows[tp].lag):
        by_topic.setdefault(tp.topic, []).append(tp)
    ranked = sorted((rank, -rows[tp].lag, tp) for mine in by_topic.values() for rank, tp in enumerate(mine))
    return [tp for _, _, tp in ranked]


def _held(source: ClusterView, stable: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
    """Partitions whose last stable offset is below their end, with both (KIP-98)."""
    ends = source.offsets(stable, LATEST_TIME, isolation=0)
    higher = {tp: end for tp, end in ends.items() if isinstance(end, int) and end > stable[tp]}
    again = offsets_or_errors(source.client, higher, LATEST_TIME)  # the log may have grown since the stable offsets were read
    return {tp: (at, end) for tp, end in higher.items() if isinstance(at := again[tp], int) and at < end}


def _topic(name: str, target: str, rows: Mapping[TopicPartition, PartitionLag], notes: _Notes) -> TopicLag:
    """One topic; a broker deletes whole segments, none before its newest record is too old: it ``expires`` at the earliest then."""
    behind = [tp for tp in rows if rows[tp].lag]
    ages = [max(0.0, notes.now - notes.first[tp]) for tp in behind if tp in notes.first]
    ages += [notes.least[tp] for tp in behind if tp in notes.least]
    oldest = min((notes.unread[tp] for tp in rows if tp in notes.unread), default=None)
    kept = notes.kept.get(name)
    since = min((notes.since[tp] for tp in rows if tp in notes.since), default=None)
    now = time.time()
    return TopicLag(
        name,
        target,
        tuple(rows.values()),
        max(ages, default=None) if behind else 0.0,
        expires_seconds=max(0.0, oldest + kept / 1000 - now) if oldest is not None and kept is not None else None,
        held_records=sum(notes.held.get(tp, 0) for tp in rows),
        held_seconds=max(0.0, now - since) if since is not None else None,
        lag_seconds_at_least=bool(ages) and any(tp not in notes.first for tp in behind),
        unread_seconds=max(0.0, now - oldest) if oldest is not None else None,
    )

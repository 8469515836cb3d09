"""Lag: may be read at any time, also while a lane is running, which it does not affect."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from mirror_pipeline.config.starts import Start, StartOffsets, start_of
from mirror_pipeline.engine.driver.topics.join import begins_at
from mirror_pipeline.errors import BrokerError, WrongCluster
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME, ClusterMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import led, offsets_or_errors
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state import halts
from mirror_pipeline.operations.state.ledger_view import LedgerView, ledger_view
from mirror_pipeline.operations.state.warnings import LogTimes, least_ages, with_warnings
from mirror_pipeline.operations.topic_sync.sync_state import sync_notes
from mirror_pipeline.topics.lanes import KnownCopy, known_topics, select_topics
from mirror_pipeline.topics.select import unmatched

NO_RECORD = -1
"""ListOffsets' answer for a time that no record has yet."""
NOTES_SHOWN = 5


def lag(flow: Flow) -> MirrorLag:
    """See ``Mirror.lag``."""
    with flow.source_client() as client, flow.source_admin() as admin:
        view = ledger_view(flow.lane_stores())
        kept = names = view.kept
        try:
            names = {*admin.topics(), *kept}
            selected = select_topics(flow.config, flow.settings, names)
            times = LogTimes(client)
            found = lag_of(flow.name, selected.topics, client, view, start=flow.settings.start, times=times)
            found = with_warnings(found, client, admin, times)
        except WrongCluster:
            if not kept:
                raise
            selected = select_topics(flow.config, flow.settings, kept)
            found = staged_lag(flow.name, known_topics(flow.config, flow.settings), view)
        look = halts.look(flow, view, selected)
        look.source(client, flow.settings.source)
        silent = () if selected.topics else unmatched(names, flow.settings.topics.include)
        return halts.with_halts(found, look, view, (*silent, *view.notes, *sync_notes(flow)))


def undelivered(flow: Flow) -> MirrorLag:
    """See ``Mirror.undelivered``."""
    view = ledger_view(flow.lane_stores())
    found = staged_lag(flow.name, known_topics(flow.config, flow.settings), view)
    known = [since for lane in view.lanes if (since := lane.file.source_down_since)]
    return replace(found, source_down_since=min(known, default=None))


def lag_of(
    mirror: str,
    targets: Mapping[str, str],
    client: WireClient,
    view: LedgerView,
    *,
    ages: bool = True,
    start: Start = "earliest",
    times: LogTimes | None = None,
) -> MirrorLag:
    """Compare a mirror's positions with the source's ends.

    A partition that no lane has begun has the position at which its copy would begin: the mirror's ``start``, or the start of
    its log where its topic is copied already. Partitions that the source cannot report now are left out and named in the notes.
    """
    metadata = client.metadata(sorted(targets))
    parts = [
        TopicPartition(name, number)
        for name in targets
        if name in metadata.topics and not metadata.topics[name].error
        for number in metadata.topics[name].partitions
    ]
    asked, unled = led(metadata, parts)
    ends = offsets_or_errors(client, asked, LATEST_TIME) | unled
    firsts = _first_offsets(client, [tp for tp in asked if tp not in view.positions], view, start, metadata)
    rows: dict[str, list[PartitionLag]] = {name: [] for name in targets}
    unknown: list[str] = []
    for tp in sorted(parts):
        end, position = ends[tp], view.positions.get(tp, firsts.get(tp, 0))
        if isinstance(end, BrokerError) or isinstance(position, BrokerError):
            unknown.append(f"{tp} is left out: {(end if isinstance(end, BrokerError) else cast(BrokerError, position)).message}")
            continue
        staged = max(position, view.staged.get(tp, position))
        rows[tp.topic].append(PartitionLag(tp.partition, position, end, staged, max(0, end - position)))
    found = _ages(times or LogTimes(client), client, rows) if ages else _Ages({}, {})
    topics = tuple(_topic(name, targets[name], tuple(partitions), found) for name, partitions in sorted(rows.items()))
    behind = [topic for topic in topics if topic.lag_records]
    known = [topic.lag_seconds for topic in behind if topic.lag_seconds is not None]
    at_least = bool(known) and any(topic.lag_seconds_at_least or topic.lag_seconds is None for topic in behind)
    return MirrorLag(mirror, topics, max(known) if known else None if behind else 0.0, _short(unknown), lag_seconds_at_least=at_least)


def _first_offsets(
    client: WireClient, parts: list[TopicPartition], view: LedgerView, start: Start, metadata: ClusterMetadata
) -> dict[TopicPartition, int | BrokerError]:
    """Where the copy would begin of partitions from which nothing has been sent."""
    found: dict[TopicPartition, int | BrokerError] = {tp: view.starts[tp] for tp in parts if tp in view.starts}
    copied = {tp.topic for tp in view.starts}
    asked: dict[int, list[TopicPartition]] = {}
    for tp in parts:
        begins = start_of(start, tp.topic)
        seen = first_ends(view, metadata, tp.topic) if begins != "earliest" and tp.topic not in copied else None
        later = tp.topic in copied or (seen is not None and tp.partition not in seen)
        if tp in found:
            continue
        if isinstance(begins, StartOffsets) and not later and tp.partition in begins.by_partition:
            found[tp] = begins.by_partition[tp.partition]
        elif begins == "latest" and seen is not None and not later:
            found[tp] = seen[tp.partition]
        else:
            asked.setdefault(EARLIEST_TIME if later or isinstance(begins, StartOffsets) else begins_at(begins), []).append(tp)
    for at, mine in asked.items():
        found |= offsets_or_errors(client, mine, at)
    return found | offsets_or_errors(client, [tp for tp, offset in found.items() if offset == NO_RECORD], LATEST_TIME)


def first_ends(view: LedgerView, metadata: ClusterMetadata, topic: str) -> dict[int, int] | None:
    """The ends that a lane recorded at its first look, {} for a topic that it did not find; None when they are the current ends."""
    known = [seen.offsets(topic, metadata.topics[topic].topic_id, metadata.cluster_id) for seen in view.first_seen if seen.looked]
    return None if not known or None in known else next((offsets for offsets in known if offsets), {})


def _short(lines: list[str]) -> tuple[str, ...]:
    return (*lines[:NOTES_SHOWN], f"and {len(lines) - NOTES_SHOWN} more partitions") if len(lines) > NOTES_SHOWN else tuple(lines)


def staged_lag(mirror: str, known: Mapping[str, KnownCopy], view: LedgerView) -> MirrorLag:
    """Lag by ledger and buffer alone: a partition ends where the buffer does."""
    topics = (TopicLag(name, copy.target_topic, view.staged_rows(copy.generation)) for name, copy in sorted(known.items()))
    return MirrorLag(mirror, tuple(topics), None)


@dataclass(frozen=True, slots=True)
class _Ages:
    """Seconds since the time of the first record that is not on the target: as its batch says, and at least."""

    known: Mapping[TopicPartition, float]
    least: Mapping[TopicPartition, float]


def _topic(name: str, target: str, partitions: tuple[PartitionLag, ...], ages: _Ages) -> TopicLag:
    behind = [TopicPartition(name, part.partition) for part in partitions if part.lag]
    if not behind:
        return TopicLag(name, target, partitions, 0.0)
    found = [age for tp in behind for age in (ages.known.get(tp), ages.least.get(tp)) if age is not None]
    at_least = bool(found) and any(tp not in ages.known for tp in behind)
    return TopicLag(name, target, partitions, max(found, default=None), lag_seconds_at_least=at_least)


def _ages(times: LogTimes, client: WireClient, rows: Mapping[str, list[PartitionLag]]) -> _Ages:
    """The ages of what lags, of the most lagging partition of each topic first."""
    behind = [
        (rank, -part.lag, TopicPartition(name, part.partition), part.position)
        for name, parts in rows.items()
        for rank, part in enumerate(sorted((p for p in parts if p.lag), key=lambda p: -p.lag))
    ]
    asked = {tp: position for _, _, tp, position in sorted(behind)}
    first, now = times.first(asked, isolation=1), time.time()
    least = least_ages(client, {tp: position for tp, position in asked.items() if tp not in first})
    return _Ages({tp: max(0.0, now - at) for tp, at in first.items()}, least)

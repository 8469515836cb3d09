"""Halted topics of a mirror, from the last run of each lane and from the current state of the clusters.

A look costs a metadata request and, for lanes that do not run, one question for log starts and ends to each leader. It sees
topics that were deleted, recreated, renamed or trimmed before any run does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from mirror_pipeline.config.naming import fill
from mirror_pipeline.engine.driver.read.divergence import of_same_topic
from mirror_pipeline.engine.driver.topics.target import target_changed
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.halts import ENDED, GONE, PAUSED, Halt, accept_hint, gone, other_cluster, recreated, renamed, trimmed, truncated
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME, ClusterMetadata
from mirror_pipeline.kafka.client import metadata_of
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION
from mirror_pipeline.kafka.offsets import led, offsets_or_errors
from mirror_pipeline.lags import BEHIND, HALTED, TopicLag
from mirror_pipeline.model import DecisionKind, TopicPartition
from mirror_pipeline.operations.state.ledger_view import Copied, ledger_view, state_of
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import TopicState
from mirror_pipeline.topics.lanes import select_topics

SETTLED_BY_SOURCE = frozenset({*GONE, "recreated", "renamed", "other_cluster"})
SETTLED_BY_TARGET = frozenset({"target_gone", "target_recreated", "other_target_cluster"})
"""Halts that the clusters' current state settles: when it no longer shows the cause, the next run resumes the topic."""
SEEN_NOW = "the next run stops here"


class HaltLook:
    """One look at a mirror's topics: what the runs reported, and what the clusters show.

    Args:
        snapshot: of the mirror.
        names: the topics to select among, where that is not the snapshot's selection.

    ``halts`` has all of them, ``seen`` those that only the clusters show; ``waiting`` are topics that a lane at work waits for. Of a
    topic that is paused, promoted, copied the other way, or cannot be copied under its name nothing else is said.

    Raises:
        BufferUnusable: the mirror's files cannot be read.
    """

    def __init__(self, snapshot: Snapshot, names: Collection[str] | None = None) -> None:
        self._snapshot, self._settings = snapshot, snapshot.flow.settings
        selected = snapshot.selected if names is None else select_topics(snapshot.flow.config, self._settings, names)
        self._targets = selected.topics | {name: fill(self._settings.naming, self._settings.source, name) for name in selected.refused}
        out = selected.refused | snapshot.turned_away(selected.topics)
        self.copied = {name: topic for name, topic in snapshot.ledger.copied.items() if name in self._targets and name not in out}
        self.halts = {name: TopicState(name, h.state, h.message, h.hint, self._targets[name], code=h.code) for name, h in out.items()}
        self.seen: dict[str, Halt] = {}
        self.waiting: dict[str, TopicState] = {}
        for lane in snapshot.ledger.lanes:
            down = lane.file.progress.target_down or lane.file.progress.source_down  # named once, not for each topic
            for name in lane.file.topics.keys() & self._targets.keys() - out.keys():
                said = lane.file.topics[name]
                halted = said.state == HALTED or (said.state == ENDED and name in self.copied)  # an ended one that is not copied is new
                if halted and not lane.accepted(name, said.code):
                    self.halts[name] = state_of(name, said)
                elif said.state == BEHIND and lane.file.running and not down:
                    self.waiting[name] = state_of(name, said)

    def at_source(self) -> None:
        """Compare the source's topics with the ledgers. Raises ClusterUnreachable, BrokerError."""
        if not self.copied:
            return
        cluster = self._snapshot.source
        metadata = metadata_of(cluster, self.copied)
        seen = {name: self._on_source(topic, metadata, cluster.alias) for name, topic in self.copied.items()}
        found = {name: metadata.topics[name] for name, halt in seen.items() if halt is None}
        whole = [name for name, topic in found.items() if not topic.error and topic.topic_id == self.copied[name].generation.topic_id]
        seen |= self._offsets(whole, metadata)
        self._settle(seen, SETTLED_BY_SOURCE)

    def at_target(self) -> None:
        """Compare the target topics with the ledgers. Raises ClusterUnreachable."""
        if not self.copied:
            return
        cluster = self._snapshot.target
        metadata = metadata_of(cluster, (topic.generation.target_topic for topic in self.copied.values()))
        seen: dict[str, Halt | None] = {}
        for name, topic in self.copied.items():
            found = metadata.topics.get(topic.generation.target_topic)
            try:
                halt = target_changed(topic.generation, found, metadata.cluster_id, cluster.alias)
            except BrokerError:
                continue  # it cannot be looked at now: what the run reported stands
            accepted = found is not None and topic.accepted(DecisionKind.TARGET, found.topic_id)
            ours = topic.accepted(DecisionKind.DELETION, topic.generation.target_topic_id)  # the next run writes that down
            seen[name] = None if halt is not None and (accepted or ours) else halt
        self._settle(seen, SETTLED_BY_TARGET)

    def _on_source(self, topic: Copied, metadata: ClusterMetadata, alias: str) -> Halt | None:
        generation, found = topic.generation, metadata.topics.get(topic.generation.topic)
        if generation.source_cluster_id != metadata.cluster_id:
            return other_cluster(generation.topic, alias, generation.source_cluster_id, metadata.cluster_id)
        if found is None or found.error == UNKNOWN_TOPIC_OR_PARTITION:
            return gone(generation.topic, alias, self._settings.topics.on_source_delete)
        if found.error:
            return None
        if found.topic_id != generation.topic_id:
            accepted = topic.accepted(DecisionKind.RECREATED, found.topic_id)
            return None if accepted else recreated(generation.topic, generation.incarnation, found.topic_id)
        wanted = self._targets[generation.topic]
        return renamed(generation.topic, generation.target_topic, wanted) if wanted != generation.target_topic else None

    def _offsets(self, names: Collection[str], metadata: ClusterMetadata) -> dict[str, Halt | None]:
        """Logs that begin after, or end before, the next offset to read; a lane that runs sees and says it itself."""
        cluster, view = self._snapshot.source, self._snapshot.ledger
        idle = [self.copied[name] for name in names if not self.copied[name].running]
        nexts = view.next_offsets(topic.generation for topic in idle)
        nexts = {tp: nexts[tp] for tp in led(metadata, nexts)[0]}
        starts = cluster.offsets(nexts, EARLIEST_TIME)
        ends = cluster.offsets(nexts, LATEST_TIME, isolation=0)
        odd = [tp for tp, at in nexts.items() if self._of_bounds(tp, at, starts[tp], ends[tp]) is not None]
        if not odd:
            return {}
        for tp in odd:
            cluster.client.forget(tp)
        ends |= offsets_or_errors(cluster.client, odd, LATEST_TIME, isolation=0)  # of the leader that there is now
        # A lane may have been started and have read on meanwhile.
        nexts = ledger_view([lane.store for lane in view.lanes]).next_offsets(topic.generation for topic in idle)
        outside = (self._of_bounds(tp, nexts[tp], starts[tp], ends[tp]) for tp in reversed(odd))  # the first partition's counts
        known = {name: topic.generation.incarnation for name, topic in self.copied.items()}
        return {halt.topic: halt for halt in of_same_topic(cluster.client, known, [halt for halt in outside if halt is not None])}

    def _of_bounds(self, tp: TopicPartition, at: int, start: int | BrokerError, end: int | BrokerError) -> Halt | None:
        topic = self.copied[tp.topic]
        if isinstance(end, int) and end < at:
            return None if topic.accepted(DecisionKind.TRUNCATED) else truncated(tp, end, at)
        if isinstance(start, int) and at < start and self._settings.on_loss == "halt":
            allowed = any(d.allows(tp.topic, tp.partition, at, start) for d in topic.decisions)
            return None if allowed else trimmed(tp, at, start)
        return None

    def _settle(self, seen: Mapping[str, Halt | None], settled: frozenset[str]) -> None:
        for name, halt in seen.items():
            known = self.halts.get(name)
            if halt is not None and (known is None or known.code != halt.code):
                accept = accept_hint(self._snapshot.flow.name, name, halt.code)
                hint = "; ".join(part for part in (halt.hint, f"{SEEN_NOW}, then {accept}" if accept else "") if part)
                self.halts[name] = TopicState(name, halt.state, halt.message, hint, self._targets[name], code=halt.code)
                self.seen[name] = halt
            elif halt is None and known is not None and known.code in settled:
                del self.halts[name]

    def shown(self, lag: Mapping[str, TopicLag]) -> tuple[TopicLag, ...]:
        """The topics of a lag with those that are gone from the source, each with its halt, or what it waits for."""
        rows = dict(lag)
        for name, state in self.waiting.items():
            if name in rows and (rows[name].lag_records or not rows[name].partitions):
                rows[name] = replace(rows[name], state=state.state, reason=state.reason, hint=state.hint)
        for name, halt in self.halts.items():
            row = rows.get(name) or TopicLag(name, halt.target_topic, ())
            if not row.partitions and name in self.copied:
                row = replace(row, partitions=self._snapshot.ledger.staged_rows(self.copied[name].generation), lag_seconds=None)
                row = replace(row, lag_seconds=0.0) if halt.state == ENDED and not row.lag_records else row
            if halt.state not in (HALTED, ENDED, PAUSED):  # what the source has more is not to be copied
                still = tuple(replace(part, lag=0) for part in row.partitions)
                row = replace(row, partitions=still, lag_seconds=0.0, expires_seconds=None, held_records=0, held_seconds=None)
            rows[name] = replace(row, state=halt.state, code=halt.code, reason=halt.reason, hint=halt.hint)
        return tuple(rows[name] for name in sorted(rows))

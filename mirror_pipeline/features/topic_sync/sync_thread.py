"""Rounds over a mirror's topics while it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.features.topic_sync.acl_round import AclOutcome, AclRounds
from mirror_pipeline.features.topic_sync.own_copies import own_copies
from mirror_pipeline.features.topic_sync.settings_round import SettingsOutcome, SettingsRounds
from mirror_pipeline.features.topic_sync.sync_state import SyncState, syncs_topics, write_state
from mirror_pipeline.features.topic_sync.topic_changes import TOPICS_LANE, TopicChanges
from mirror_pipeline.features.topic_sync.trim_round import TrimOutcome, TrimRounds
from mirror_pipeline.flow import Flow
from mirror_pipeline.operations.background import BackgroundRounds, RunEnd
from mirror_pipeline.topics.lanes import known_topics

log = logging.getLogger(__name__)

# A round may use at most 1/SYNC_SHARE of wall time, and begins two minutes after the last one at the latest.
SYNC_SHARE, LONGEST_PAUSE = 20, 120.0
# The first rounds follow each other sooner: a topic that has just been created is found in step before anyone can change it.
FIRST_PAUSE = 2.0
# How long the end of a run waits for a round in progress, which may be abandoned at any point.
SYNC_END_SECONDS = 5.0
SYNC_MAINTAIN_EVERY = 60


@contextmanager
def syncing_topics(flow: Flow) -> Iterator[None]:
    """Keep target topics in step while the block runs; an error of a round is logged and shown, it does not end the run."""
    if not syncs_topics(flow):
        yield
        return

    def rounds(store: LaneStore, ended: RunEnd) -> None:
        with ExitStack() as stack:
            run_rounds(flow, store, open_rounds(flow, stack, store), ended)

    interval = flow.settings.topics.configs.interval
    with BackgroundRounds(flow, "topics", TOPICS_LANE, rounds, interval, SYNC_END_SECONDS).beside():
        yield


@dataclass(slots=True)
class Rounds:
    """What a mirror keeps in step: settings, ACLs, starts of logs, or some of them."""

    flow: Flow
    table: TopicChanges
    settings: SettingsRounds | None
    acls: AclRounds | None
    starts: TrimRounds | None

    def run(self, *, write: bool = True) -> tuple[SettingsOutcome, AclOutcome, TrimOutcome]:
        """One round; without ``write`` it only says what it would change. Raises ClusterUnreachable, ConnectionLost, BufferUnusable."""
        own = own_copies(self.flow)
        settings = SettingsOutcome(topics=len(own.copies)) if self.settings is None else self.settings.run(own, write=write)
        acls = AclOutcome() if self.acls is None else self.acls.run(own, write=write)
        return settings, acls, TrimOutcome() if self.starts is None else self.starts.run(own, write=write)


def open_rounds(flow: Flow, stack: ExitStack, store: LaneStore) -> Rounds:
    """Rounds with connections of their own, which the stack closes."""
    target = stack.enter_context(flow.target_admin())
    table, topics = TopicChanges(store, durable=flow.config.buffer.durable), flow.settings.topics
    settings = SettingsRounds(flow, table, target) if topics.configs.sync else None
    acls = AclRounds(flow, table, target) if topics.acls.sync else None
    return Rounds(flow, table, settings, acls, TrimRounds(flow, target) if topics.follow_trim else None)


def run_rounds(flow: Flow, store: LaneStore, rounds: Rounds, ended: RunEnd) -> None:
    """Rounds until the run has ended, and one after that if it has begun topics since the last one, or something waited for it."""
    said: set[str] = set()
    count, seen, pause = 0, set[str](), FIRST_PAUSE
    while True:
        began, outcome, acls, starts, error = time.time(), SettingsOutcome(), AclOutcome(), TrimOutcome(), ""
        try:
            seen = set(known_topics(flow.config, flow.settings))
            outcome, acls, starts = rounds.run()
            if count % SYNC_MAINTAIN_EVERY == 0:
                rounds.table.maintain()
        except MirrorError as failed:
            error = str(failed)
        if not error or ended.may_say():
            tell(flow, outcome, [acls, starts], error, said)
        changes = sum(len(lines) for lines in outcome.changed.values()) + len(acls.changed) + len(starts.changed)
        notes = [*outcome.notes, *acls.notes, *starts.notes]
        seconds = time.time() - began
        write_state(store, SyncState(began, seconds, outcome.topics, changes, error, outcome.drift, outcome.waiting, notes))
        count += 1
        if ended.is_set():
            return
        interval, waits = flow.settings.topics.configs.interval, bool(outcome.waiting) or starts.waits
        if ended.wait(min(pause, pause_after(seconds, interval))) and (error or not (waits or _began_more(flow, seen))):
            return
        pause *= 2


def pause_after(seconds: float, interval: float) -> float:
    """How long to wait after a round that took some seconds."""
    return max(interval, min(LONGEST_PAUSE, SYNC_SHARE * seconds))


def _began_more(flow: Flow, seen: Collection[str]) -> bool:
    try:
        return not set(known_topics(flow.config, flow.settings)) <= set(seen)
    except MirrorError:
        return False


def tell(flow: Flow, outcome: SettingsOutcome, others: Sequence[AclOutcome | TrimOutcome], error: str, said: set[str]) -> None:
    """Log what was changed, and what an operator should know, each line once."""
    for topic, lines in outcome.changed.items():
        log.info("topics mirror=%s topic=%s: %s", flow.name, topic, "; ".join(lines))
    for line in (line for other in others for line in other.changed):
        log.info("topics mirror=%s: %s", flow.name, line)
    notes = [line for other in others for line in other.notes]
    drift, waiting = ([f"{topic}: {line}" for topic, own in sorted(by.items()) for line in own] for by in (outcome.drift, outcome.waiting))
    for text in [line for line in (error, *outcome.notes, *notes, *drift, *waiting) if line and line not in said]:
        log.log(logging.INFO if text in waiting else logging.WARNING, "topics mirror=%s: %s", flow.name, text)
        said.add(text)

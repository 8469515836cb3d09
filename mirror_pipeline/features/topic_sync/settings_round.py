"""One round over the settings of a mirror's target topics: read both sides, change what may be changed, say what may not.

A round may end at any point: the ledger names what is about to be set before it is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.features.topic_sync.own_copies import OwnCopies
from mirror_pipeline.features.topic_sync.settings_sync import SettingsStep, settings_step
from mirror_pipeline.features.topic_sync.topic_changes import SETTING, Made, TopicChanges
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.kafka.topic_settings import TopicSettings
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.topics import rights
from mirror_pipeline.topics.alter import Changes, alter_topics
from mirror_pipeline.topics.configs import Settings
from mirror_pipeline.topics.lanes import KnownCopy
from mirror_pipeline.topics.manage import broker_defaults

log = logging.getLogger(__name__)

UNAUTHORIZED = 29
MANAGED = "topics.manage is false, so the mirror does not"


@dataclass(slots=True)
class SettingsOutcome:
    """What a round found, by source topic: what it changed, or would change; what waits; drift. ``notes`` concern all topics."""

    changes: dict[str, Changes] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)
    waiting: dict[str, list[str]] = field(default_factory=dict)
    drift: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    topics: int = 0


@dataclass(slots=True)
class _Pair:
    """A copy with the settings of both sides."""

    copy: KnownCopy
    source: Settings
    target: Settings
    made: dict[str, str]
    step: SettingsStep


@dataclass(slots=True)
class SettingsRounds:
    """Rounds over the topics of one mirror.

    Args:
        flow: the mirror.
        table: what it has made on target topics.
        target: administration of its target.
    """

    flow: Flow
    table: TopicChanges
    target: Admin
    _source_settings: TopicSettings = field(default_factory=TopicSettings)
    _target_settings: TopicSettings = field(default_factory=TopicSettings)
    _floors: dict[str, tuple[tuple[str, ...], dict[TopicPartition, int]]] = field(default_factory=dict)
    _broker: Settings | None = None

    def run(self, own: OwnCopies, *, write: bool = True) -> SettingsOutcome:
        """One round; without ``write`` it changes nothing and says what it would change.

        Args:
            own: the copies whose settings are compared.
            write: change settings.

        Raises:
            ClusterUnreachable, ConnectionLost: a cluster does not answer.
            BufferUnusable: a ledger cannot be read, or the table cannot be written.
        """
        outcome = SettingsOutcome()
        pairs = self._look(outcome, own)
        self._release({topic: pair for topic, pair in pairs.items() if pair.step.waiting})
        outcome.topics = len(pairs)
        for topic, pair in pairs.items():
            _note(outcome.waiting, topic, pair.step.waiting)
            _note(outcome.drift, topic, pair.step.drift)
            if pair.step.changes and not self.flow.settings.topics.manage:
                _note(outcome.drift, topic, [f"{MANAGED}: {line}" for line in pair.step.told(pair.target)])
            elif pair.step.changes:
                outcome.changes[topic] = pair.step.changes
                outcome.changed[topic] = pair.step.told(pair.target)
        if write and self.flow.settings.topics.manage:
            self._write(pairs, outcome)
        return outcome

    def _look(self, outcome: SettingsOutcome, own: OwnCopies) -> dict[str, _Pair]:
        """Read both sides: one question each for all topics."""
        for topic, why in own.left.items():
            _note(outcome.drift, topic, [why])
        if not own.copies:
            return {}
        with self.flow.source_client() as here, self.flow.target_client() as there:
            sources = self._source_settings.read(here, list(own.copies))
            targets = self._target_settings.read(there, [copy.generation.target_topic for copy in own.copies.values()])
        broker, made = broker_defaults(self.target), self._made()
        pairs = {}
        for topic, copy in own.copies.items():
            name = copy.generation.target_topic
            wanted, held = sources[topic], targets[name]
            unread = next((answer for answer in (wanted, held) if isinstance(answer, BrokerError)), None)
            if isinstance(wanted, BrokerError) or isinstance(held, BrokerError):
                if unread is not None and unread.code != UNKNOWN_TOPIC_OR_PARTITION:
                    _note(outcome.drift, topic, [f"its settings are not compared: {unread.message}"])
                continue
            before = made.get(name, {})
            step = settings_step(wanted, held, self.flow.settings.topics.configs, before, broker=broker)
            pairs[topic] = _Pair(copy, wanted, held, before, step)
        self._broker = broker
        return pairs

    def _made(self) -> dict[str, dict[str, str]]:
        made: dict[str, dict[str, str]] = {}
        for key, value in self.table.read().items():
            if key.kind == SETTING:
                made.setdefault(key.topic, {})[key.name] = value
        return made

    def _release(self, waiting: Mapping[str, _Pair]) -> None:
        """Let changes that wait be made where everything is on the target that the source held when they were first seen."""
        for topic in self._floors.keys() - waiting.keys():
            del self._floors[topic]
        fresh = [topic for topic, pair in waiting.items() if self._floors.get(topic, ((), {}))[0] != pair.step.waiting]
        if fresh:
            with self.flow.source_client() as client:
                found = client.metadata(fresh).topics
                parts = [TopicPartition(topic, number) for topic in fresh for number in found[topic].partitions]
                ends = offsets_or_errors(client, parts, LATEST_TIME, isolation=0)
            for topic in fresh:
                own = {tp: end for tp, end in ends.items() if tp.topic == topic}
                known = {tp: end for tp, end in own.items() if isinstance(end, int)}
                if own and len(known) == len(own):
                    self._floors[topic] = (waiting[topic].step.waiting, known)
        stores = {store.lane: store for store in self.flow.lane_stores()} if waiting else {}
        at = {lane: Ledger(stores[lane]).positions() for lane in {pair.copy.lane for pair in waiting.values()} if lane in stores}
        for topic, pair in waiting.items():
            positions, starts = at.get(pair.copy.lane, {}), pair.copy.generation.starts
            floors = self._floors.get(topic, ((), {}))[1]
            if floors and all(
                (positions[tp].source_next if tp in positions else starts.get(tp.partition, 0)) >= floor for tp, floor in floors.items()
            ):
                rules = self.flow.settings.topics.configs
                pair.step = settings_step(pair.source, pair.target, rules, pair.made, broker=self._broker, delivered=True)

    def _write(self, pairs: Mapping[str, _Pair], outcome: SettingsOutcome) -> None:
        """Name what is about to be set, set it, and take out of the table what is not ours any more."""
        named, over = {}, []
        before = {}
        for pair in pairs.values():
            name = pair.copy.generation.target_topic
            before.update({Made(SETTING, name, k): v for k, v in pair.made.items()})
            named.update({Made(SETTING, name, k): v for k, v in pair.step.made.items() if pair.made.get(k) != v})
            removed = {key for key, value in pair.step.changes.items() if value is None}
            over += [Made(SETTING, name, k) for k in pair.made if k not in pair.step.made or k in removed]
        self.table.write(named)
        back: dict[Made, str] = {}
        if outcome.changes:
            crash_point("settings.named")
            targets = {pairs[topic].copy.generation.target_topic: topic for topic in outcome.changes}
            refused = self._alter({name: outcome.changes[topic] for name, topic in targets.items()})
            crash_point("settings.changed")
            self._refusals(refused, targets, pairs, outcome)
            back, over = _as_before(named, over, before, {Made(SETTING, name, key) for name, keys in refused.items() for key in keys})
        self.table.write(back, over)

    def _alter(self, changes: Mapping[str, Changes]) -> dict[str, dict[str, BrokerError]]:
        """Change settings; where a topic's changes are refused together each is tried alone. The refused ones, by topic and setting."""
        refused: dict[str, dict[str, BrokerError]] = {}
        answers = alter_topics(self.target, changes)
        again = {}
        for name, error in answers.items():
            if error is not None and len(changes[name]) > 1 and error.code != UNAUTHORIZED and not error.retryable:
                again[name] = list(changes[name].items())
            elif error is not None:
                refused[name] = dict.fromkeys(changes[name], error)
        while again:
            single = {name: {own[0][0]: own[0][1]} for name, own in again.items()}
            for name, error in alter_topics(self.target, single).items():
                if error is not None:
                    refused.setdefault(name, {}).update(dict.fromkeys(single[name], error))
            again = {name: own[1:] for name, own in again.items() if len(own) > 1}
        return refused

    def _refusals(
        self, refused: Mapping[str, Mapping[str, BrokerError]], targets: Mapping[str, str], pairs: Mapping[str, _Pair],
        outcome: SettingsOutcome,
    ) -> None:  # fmt: skip
        """Turn what the target refused into drift, and a missing right into one note."""
        lacking = []
        for name, errors in refused.items():
            topic = targets[name]
            pair, done = pairs[topic], {k: v for k, v in outcome.changes[topic].items() if k not in errors}
            for key, error in errors.items():
                (line,) = replace(pair.step, changes={key: outcome.changes[topic][key]}).told(pair.target)
                why = "no right to ALTER_CONFIGS" if error.code == UNAUTHORIZED else error.message
                _note(outcome.drift, topic, [f"{line}: refused: {why}"])
            lacking += [name] if any(error.code == UNAUTHORIZED for error in errors.values()) else []
            outcome.changes[topic], outcome.changed[topic] = done, replace(pair.step, changes=done).told(pair.target)
        outcome.changes = {topic: changes for topic, changes in outcome.changes.items() if changes}
        outcome.changed = {topic: lines for topic, lines in outcome.changed.items() if lines}
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            grant = rights.grant(self.target.cluster, ("ALTER_CONFIGS",), lacking[0])
            where = f"topic {lacking[0]}{more} on cluster {self.target.cluster.alias}"
            outcome.notes.append(f"no right to ALTER_CONFIGS {where}: settings are not kept in step; grant it: {grant}")


def _as_before(
    named: Mapping[Made, str], over: Collection[Made], before: Mapping[Made, str], refused: Collection[Made]
) -> tuple[dict[Made, str], list[Made]]:
    """What the table should say of refused changes: what it said before them, so that a setting of ours stays ours.

    Returns:
        Entries to write, and entries to take out.
    """
    back = {key: before[key] for key in refused if key in before and key in named}
    return back, [key for key in over if key not in refused] + [key for key in refused if key in named and key not in before]


def _note(by_topic: dict[str, list[str]], topic: str, lines: Collection[str]) -> None:
    if lines:
        by_topic.setdefault(topic, []).extend(lines)

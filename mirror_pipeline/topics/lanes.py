"""Which topics a lane copies: the mirror's selection, assigned to lanes so that a topic never changes its lane."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, partial

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.promotions import latest_of, promoted_topics
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.config import BufferConfig, Config, MirrorConfig
from mirror_pipeline.config.naming import fill
from mirror_pipeline.errors import NothingSelected, UsageError
from mirror_pipeline.halts import Halt
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.model import Incarnation
from mirror_pipeline.reports import Excluded
from mirror_pipeline.topics.naming import choose, name_topics, partner_of
from mirror_pipeline.topics.select import unmatched

LANE_PREFIX = "lane-"
BACKFILL_PREFIX = "backfill-"


@dataclass(frozen=True, slots=True)
class LaneTopic:
    """A topic to copy.

    A backfill gives ``ranges`` (partition to ``[start, end)``) and ``configs`` for a target topic that it creates;
    ``filled`` permits a target topic with records in it. ``refusal``: why it cannot be copied under its name.
    """

    topic: str
    target_topic: str
    ranges: dict[int, tuple[int, int]] | None = None
    configs: dict[str, str] | None = None
    filled: bool = False
    refusal: Halt | None = None


@dataclass(frozen=True, slots=True)
class Selected:
    """A mirror's topics with their target names, and what is left out and why.

    ``refused`` topics are selected, but cannot be copied under their names; those of which nothing was copied are left out too.
    """

    topics: dict[str, str]
    excluded: tuple[Excluded, ...]
    refused: dict[str, Halt] = field(default_factory=dict)

    def target_of(self, mirror: str, topic: str) -> str:
        """The target name of a topic. Raises UsageError where it is not selected, or cannot be copied."""
        if topic in self.topics:
            return self.topics[topic]
        if topic in self.refused:
            raise UsageError(self.refused[topic].message, hint=self.refused[topic].hint)
        raise UsageError(
            f"mirror {mirror} does not select topic {topic}", hint="`mirror plan` shows which topics are excluded, and why"
        )


def lane_names(mirror: MirrorConfig) -> list[str]:
    """Names of the configured lanes; new topics are assigned to these."""
    return [f"{LANE_PREFIX}{number}" for number in range(mirror.lanes)]


def lanes_to_run(buffer: BufferConfig, mirror: MirrorConfig) -> list[str]:
    """The configured lanes, and every further one whose ledger has topics: ``lanes`` was greater once, and a topic keeps its lane.

    Raises:
        BufferUnusable: a lane's ledger cannot be read.
    """
    return with_further(mirror, [store.lane for store in _homes(buffer, mirror) if Ledger(store).incarnations()])


def with_further(mirror: MirrorConfig, homes: Iterable[str]) -> list[str]:
    """The configured lanes and those of ``homes`` beyond them, by number."""
    configured = lane_names(mirror)
    return [*configured, *sorted(set(homes) - set(configured), key=lambda lane: (lane_number(lane), lane))]


def lane_number(lane: str) -> int:
    """N of ``lane-N``; -1 for a folder that no run has made."""
    number = lane.removeprefix(LANE_PREFIX)
    return int(number) if number.isdecimal() else -1


def select_topics(config: Config, mirror: MirrorConfig, names: Collection[str]) -> Selected:
    """Apply the mirror's regexes and naming to the source's topic names.

    Raises:
        BufferUnusable: a ledger cannot be read; it is needed with ``originals_only``, and where topics are refused.
    """
    chosen, excluded = choose(config.mirrors, mirror, names, config.clusters, written_on_source(config, mirror))
    known = cache(partial(begun_targets, config.buffer))
    named = name_topics(config.mirrors, mirror, chosen, config.clusters, known)
    if named.refused:
        new = named.refused.keys() - known(mirror).keys()
        excluded = sorted([*excluded, *(Excluded(topic, named.refused[topic].message) for topic in new)], key=lambda each: each.topic)
    return Selected(named.names, tuple(excluded), named.refused)


def begun_targets(buffer: BufferConfig, mirror: MirrorConfig) -> dict[str, str]:
    """Target topic by source topic, of everything that a mirror has begun. Raises BufferUnusable."""
    return {
        topic: generation.target_topic
        for store in lane_stores(buffer, mirror)
        for topic, generation in Ledger(store).incarnations().items()
    }


def written_on_source(config: Config, mirror: MirrorConfig) -> dict[str, str]:
    """What other mirrors of the file have written to this one's source, with the mirror's name; nothing without ``originals_only``.

    Not what was promoted, which applications write now, and not what this mirror's reverse wrote: which of the two copies a topic is
    decided by the promotions alone. Asks no cluster.

    Raises:
        BufferUnusable: a ledger cannot be read.
    """
    found: dict[str, str] = {}
    if not mirror.topics.originals_only:
        return found
    partner = partner_of(config.mirrors, mirror)
    for other in config.mirrors:
        if other.target == mirror.source and other is not partner:
            promoted = promoted_topics(latest_of(config.buffer, other.name))
            for store in lane_stores(config.buffer, other):
                generations = Ledger(store).incarnations().items()
                found |= {generation.target_topic: other.name for topic, generation in generations if topic not in promoted}
    return found


def discover(
    config: Config, mirror: MirrorConfig, admin: Admin, *, lane: str, only: Collection[str] | None
) -> list[LaneTopic]:
    """The topics of one lane as the source cluster names them now, and those that were copied and are gone there.

    Raises:
        ClusterUnreachable: the source does not answer.
        NothingSelected: the mirror's selection (or ``only``) matches no topic.
        UsageError: it matches only topics that cannot be copied under their names.
    """
    found = admin.topics()
    gone = [LaneTopic(name, t.target_topic) for name, t in known_topics(config, mirror).items() if name not in found]
    topics = {topic.topic: topic for topic in [*_lane_topics(mirror, select_topics(config, mirror, list(found))), *gone]}
    if only is not None:
        unknown = sorted(set(only) - set(topics))
        if unknown:
            raise NothingSelected(
                f"mirror {mirror.name} does not select topic {unknown[0]}", hint="`mirror plan` shows what is selected and why not"
            )
        topics = {name: topic for name, topic in topics.items() if name in only}
    if not topics:
        raise NothingSelected(
            f"mirror {mirror.name}: topics.include matches none of the {len(found)} topics of cluster {mirror.source}",
            hint="; ".join([*unmatched(list(found), mirror.topics.include), "`mirror plan` shows every topic and why it is left out"]),
        )
    refusals = [topic.refusal for topic in topics.values() if topic.refusal is not None]
    if len(refusals) == len(topics):
        raise UsageError(refusals[0].message, hint=refusals[0].hint)
    homes = lane_of(config.buffer, mirror, list(topics))
    return [replace(topic, filled=mirror.shared) for name, topic in sorted(topics.items()) if homes[name] == lane]


def _lane_topics(mirror: MirrorConfig, selected: Selected) -> list[LaneTopic]:
    """The selected topics, and those that are refused under the names that they would have."""
    refused = [LaneTopic(name, fill(mirror.naming, mirror.source, name), refusal=halt) for name, halt in selected.refused.items()]
    return [*(LaneTopic(name, target) for name, target in selected.topics.items()), *refused]


@dataclass(frozen=True, slots=True)
class KnownCopy:
    """A selected topic that a lane has begun to copy: the lane, its target topic by the configuration, its partitions' first offsets.

    ``refusal``: why it cannot be copied any more under the name that the configuration gives it.
    """

    lane: str
    target_topic: str
    generation: Incarnation
    refusal: Halt | None = None


def known_topics(config: Config, mirror: MirrorConfig) -> dict[str, KnownCopy]:
    """The selected topics that the mirror's ledgers know, without those whose deletion an operator has accepted.

    Asks no cluster.

    Raises:
        BufferUnusable: a ledger cannot be read.
    """
    generations: dict[str, tuple[str, Incarnation]] = {}
    for store in _homes(config.buffer, mirror):
        here = Ledger(store).incarnations()
        out = Decisions(store).left_out(here) if here else set()
        generations |= {topic: (store.lane, generation) for topic, generation in here.items() if topic not in out}
    found = _lane_topics(mirror, select_topics(config, mirror, list(generations))) if generations else []
    homes = ((each, *generations[each.topic]) for each in found)
    return {each.topic: KnownCopy(lane, each.target_topic, generation, each.refusal) for each, lane, generation in homes}


def ledger_topics(config: Config, mirror: MirrorConfig, *, lane: str, only: Collection[str] | None) -> list[LaneTopic]:
    """The topics of one lane by the ledger alone, for a run that does not use the source."""
    known = known_topics(config, mirror)
    mine = {name: copy for name, copy in sorted(known.items()) if copy.lane == lane and (only is None or name in only)}
    return [LaneTopic(name, copy.target_topic, refusal=copy.refusal) for name, copy in mine.items()]


def lane_of(buffer: BufferConfig, mirror: MirrorConfig, names: Collection[str]) -> dict[str, str]:
    """The lane of each topic: where the ledger already has it, else by a hash of its name."""
    lanes = lane_names(mirror)
    homes = {name: lanes[zlib.crc32(name.encode()) % len(lanes)] for name in names}
    for store in _homes(buffer, mirror):
        for topic in Ledger(store).incarnations():
            if topic in homes:
                homes[topic] = store.lane
    return homes


def lane_stores(buffer: BufferConfig, mirror: MirrorConfig) -> list[LaneStore]:
    """Folders of the lanes that copy continuously, those that have run; makes nothing."""
    return [store for store in find_lanes(buffer, mirror.name) if store.lane.startswith(LANE_PREFIX) and Ledger(store).exists()]


def _homes(buffer: BufferConfig, mirror: MirrorConfig) -> list[LaneStore]:
    """Those of :func:`lane_stores` that may have topics."""
    stores = [store for store in find_lanes(buffer, mirror.name) if store.lane.startswith(LANE_PREFIX)]
    return [store for store in stores if Ledger.may_know_topics(store) and Ledger(store).exists()]

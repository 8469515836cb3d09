"""Which topics a lane copies: the mirror's selection, assigned to lanes so that a topic never changes its lane."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.promotions import latest_of, promoted_topics
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.config import BufferConfig, Config, MirrorConfig
from mirror_pipeline.errors import NothingSelected
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.model import Incarnation
from mirror_pipeline.reports import Excluded
from mirror_pipeline.topics.naming import choose, partner_of, target_names
from mirror_pipeline.topics.select import unmatched

LANE_PREFIX = "lane-"
BACKFILL_PREFIX = "backfill-"


@dataclass(frozen=True, slots=True)
class LaneTopic:
    """A topic to copy.

    A backfill gives ``ranges`` (partition to ``[start, end)``) and ``configs`` for a target topic that it creates;
    ``filled`` permits a target topic with records in it.
    """

    topic: str
    target_topic: str
    ranges: dict[int, tuple[int, int]] | None = None
    configs: dict[str, str] | None = None
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Selected:
    """A mirror's topics with their target names, and what is left out and why."""

    topics: dict[str, str]
    excluded: tuple[Excluded, ...]


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
        UsageError: two topics would get one target name, a target name is not legal, or a topic would come back to its source.
        BufferUnusable: with ``originals_only``, a ledger cannot be read.
    """
    chosen, excluded = choose(config.mirrors, mirror, names, config.clusters, written_on_source(config, mirror))
    return Selected(target_names(mirror.naming, mirror.source, mirror.target, chosen), tuple(excluded))


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
    """
    found = admin.topics()
    gone = {name: t for name, t in known_topics(config, mirror).items() if name not in found}
    selected = select_topics(config, mirror, list(found)).topics | {name: topic.target_topic for name, topic in gone.items()}
    if only is not None:
        unknown = sorted(set(only) - set(selected))
        if unknown:
            raise NothingSelected(
                f"mirror {mirror.name} does not select topic {unknown[0]}", hint="`mirror plan` shows what is selected and why not"
            )
        selected = {name: target for name, target in selected.items() if name in only}
    if not selected:
        raise NothingSelected(
            f"mirror {mirror.name}: topics.include matches none of the {len(found)} topics of cluster {mirror.source}",
            hint="; ".join([*unmatched(list(found), mirror.topics.include), "`mirror plan` shows every topic and why it is left out"]),
        )
    homes = lane_of(config.buffer, mirror, list(selected))
    return [LaneTopic(name, target, filled=mirror.shared) for name, target in sorted(selected.items()) if homes[name] == lane]


@dataclass(frozen=True, slots=True)
class KnownCopy:
    """A selected topic that a lane has begun to copy: the lane, its target topic by the configuration, its partitions' first offsets."""

    lane: str
    target_topic: str
    generation: Incarnation


def known_topics(config: Config, mirror: MirrorConfig) -> dict[str, KnownCopy]:
    """The selected topics that the mirror's ledgers know, without those whose deletion an operator has accepted.

    Asks no cluster.

    Raises:
        BufferUnusable: a ledger cannot be read.
        UsageError: as :func:`select_topics`.
    """
    generations: dict[str, tuple[str, Incarnation]] = {}
    for store in _homes(config.buffer, mirror):
        here = Ledger(store).incarnations()
        out = Decisions(store).left_out(here) if here else set()
        generations |= {topic: (store.lane, generation) for topic, generation in here.items() if topic not in out}
    targets = select_topics(config, mirror, list(generations)).topics if generations else {}
    return {topic: KnownCopy(generations[topic][0], target, generations[topic][1]) for topic, target in targets.items()}


def ledger_topics(config: Config, mirror: MirrorConfig, *, lane: str, only: Collection[str] | None) -> list[LaneTopic]:
    """The topics of one lane by the ledger alone, for a run that does not use the source."""
    known = known_topics(config, mirror)
    return [LaneTopic(n, k.target_topic) for n, k in sorted(known.items()) if k.lane == lane and (only is None or n in only)]


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

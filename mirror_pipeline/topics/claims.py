"""Two mirrors of one file that would write one target topic: the one that has begun continues, else the first in the file.

Both write it if both say ``writers: shared``.

What a mirror writes follows from its configuration and its source's topics. For a mirror whose source does not
answer its ledger and its saved catalogue are used. A topic begins under a lock of the whole buffer, so of two mirrors that begin
at the same time the second sees the first one's ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mirror_pipeline.buffer.place.lock import buffer_lock
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import Config, MirrorConfig
from mirror_pipeline.config.naming import same_to_kafka
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.halts import CLAIMED_HINT, Halt, target_claimed
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.topics.catalogue import load_catalogue
from mirror_pipeline.topics.lanes import known_topics, select_topics
from mirror_pipeline.topics.naming import partner_of, telling_sources

log = logging.getLogger(__name__)

# Only names are requested; for a cluster that takes longer the saved catalogue is used.
LIST_SECONDS = 5.0
CLAIMS_LOCK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Claim:
    """Another mirror's claim to a target topic; ``begun``: its ledger has the topic, ``first``: it is first in the file."""

    mirror: str
    topic: str
    begun: bool
    first: bool


class Claims:
    """What the other mirrors of the file write on one mirror's target.

    Args:
        config: the file.
        mirror: whose rivals they are.
        list_topics: the topic names of a cluster, by alias; asks the cluster when not given.
    """

    def __init__(self, config: Config, mirror: MirrorConfig, list_topics: Callable[[str], Collection[str]] | None = None) -> None:
        self._config = config
        self._mirror = mirror
        self._list = list_topics or self._ask
        order = [each.name for each in config.mirrors]
        self._rank = {name: order.index(name) for name in order}
        self.partner = partner_of(config.mirrors, mirror)
        self.neighbours = [other for other in config.mirrors if other.name != mirror.name and self._same_target(other)]
        self.rivals = [other for other in self.neighbours if not (mirror.shared and other.shared)]
        self._wanted: dict[str, dict[str, str]] = {}

    def look(self) -> None:
        """Ask the rivals' sources what they select now."""
        self._wanted = {rival.name: self._selected(rival) for rival in self.rivals}

    @contextmanager
    def held(self, store: LaneStore) -> Iterator[None]:
        """Keep other mirrors, the reverse one too, from beginning a topic meanwhile. Raises LaneBusy, BufferUnusable."""
        if not self.neighbours and self.partner is None:
            yield
            return
        with buffer_lock(store, patience=CLAIMS_LOCK_SECONDS):
            yield

    def on(self, targets: Collection[str]) -> dict[str, Claim]:
        """The rival, if any, of each of some target topics: one that has begun before one that has not, by the last :meth:`look`.

        Raises:
            BufferUnusable: a ledger cannot be read.
        """
        forms = {same_to_kafka(name): name for name in targets}
        found: dict[str, Claim] = {}
        for rival in self.rivals if targets else []:
            first = self._rank[rival.name] < self._rank[self._mirror.name]
            begun = {topic: copy.generation.target_topic for topic, copy in known_topics(self._config, rival).items()}
            for topic, target in (*begun.items(), *self._wanted.get(rival.name, {}).items()):
                name = forms.get(same_to_kafka(target))
                claim = Claim(rival.name, topic, begun.get(topic) == target, first)
                if name is not None and (name not in found or (claim.begun and not found[name].begun)):
                    found[name] = claim
        return found

    def refused(self, targets: Mapping[str, str], *, any_claim: Collection[str] = ()) -> dict[str, Halt]:
        """Topics, with their targets, that this mirror must not begin: another mirror has begun them or is first in the file.

        Args:
            targets: target topic by source topic; none of them is in this mirror's ledger.
            any_claim: source topics that yield to every claim, as a backfill's do.
        """
        claims = self.on(targets.values())
        halts = {}
        for topic, target in targets.items():
            claim = claims.get(target)
            if claim is not None and (claim.begun or claim.first or topic in any_claim):
                halts[topic] = target_claimed(topic, self.words(topic, target, claim))
        return halts

    def words(self, topic: str, target: str, claim: Claim) -> str:
        """Both mirrors and the topic, in words."""
        why = ", which has started it" if claim.begun else ", which is first in the file" if claim.first else ""
        return (
            f"target topic {target} on cluster {self._mirror.target} would get the records of two mirrors:"
            f" {topic} of {self._mirror.name}, and {claim.topic} of {claim.mirror}{why}"
        )

    def _same_target(self, other: MirrorConfig) -> bool:
        own, theirs = (self._config.clusters.get(each.target) for each in (self._mirror, other))
        if own is None or theirs is None or other.target == self._mirror.target:
            return other.target == self._mirror.target
        one = bool(own.cluster_id) and own.cluster_id == theirs.cluster_id
        return one or bool(set(own.bootstrap_servers) & set(theirs.bootstrap_servers))

    def _selected(self, rival: MirrorConfig) -> dict[str, str]:
        """Target topic by source topic of what a rival selects."""
        try:
            names = set(self._list(rival.source))
        except MirrorError as error:
            log.info("topics of mirror %s taken from its saved catalogue: %s", rival.name, error.message)
            saved = load_catalogue(self._config, rival.name)
            names = {topic.name for topic in saved.topics} if saved is not None else set()
            names |= set(known_topics(self._config, rival))
        return select_topics(self._config, rival, names).topics

    def _ask(self, alias: str) -> Collection[str]:
        with WireClient(self._config.clusters[alias], timeout=LIST_SECONDS) as client:
            return client.metadata(None).topics.keys()


@dataclass(frozen=True, slots=True)
class ClaimNotices:
    """What `plan` says of other mirrors' claims, by source topic."""

    blockers: Mapping[str, tuple[str, ...]]
    warnings: Mapping[str, tuple[str, ...]]


def of_claims(claims: Claims | None, targets: Mapping[str, str], begun: Collection[str]) -> ClaimNotices:
    """Which topics another mirror would write too: blocked where the other one continues, a warning where this one does.

    Args:
        claims: None where no other mirror writes on the target.
        targets: target topic by source topic.
        begun: topics that are in this mirror's ledger.
    """
    if claims is None:
        return ClaimNotices({}, {})
    claims.look()
    blockers: dict[str, tuple[str, ...]] = {}
    warnings: dict[str, tuple[str, ...]] = {}
    rivals = claims.on(targets.values())
    for topic, target in targets.items():
        claim = rivals.get(target)
        if claim is None:
            continue
        ahead = (topic in begun and not claim.begun) or not _ahead(claim)
        text = f"{claims.words(topic, target, claim)}; " + (f"{claim.mirror} is refused" if ahead else CLAIMED_HINT)
        (warnings if ahead else blockers)[topic] = (text,)
    return ClaimNotices(blockers, warnings)


def _ahead(claim: Claim) -> bool:
    return claim.begun or claim.first


def chained(config: Config, mirror: MirrorConfig, topics: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Warnings for source topics that another mirror of the file writes there: a copy of a copy. Asks no cluster.

    Raises:
        BufferUnusable: a ledger cannot be read.
    """
    warnings: dict[str, tuple[str, ...]] = {}
    for other in config.mirrors:
        if other.target != mirror.source:
            continue
        saved = load_catalogue(config, other.name)
        written = {topic.target_topic for topic in saved.topics} if saved is not None else set()
        written |= {copy.generation.target_topic for copy in known_topics(config, other).values()}
        for topic in topics:
            if topic in written or telling_sources(other.naming, other.source, topic):
                said = f"it is a copy itself: mirror {other.name} writes it from cluster {other.source};"
                said = f"{said} exclude it unless a chain is intended"
                warnings[topic] = (*warnings.get(topic, ()), said)
    return warnings

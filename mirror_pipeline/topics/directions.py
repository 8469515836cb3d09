"""Of a mirror and its reverse only one copies a topic: which topics a mirror must leave alone now, by the ledgers of both.

A topic that was promoted belongs to applications on the target. A topic that the other mirror writes is not copied back. A mirror that
is declared the reverse of another one stands by until `mirror failback` opens it. A topic that neither has begun is the reverse's while
the reverse is open and all that the other one has begun is promoted, else the other one's: both may find it on both clusters, so a
topic begins under a lock, and this is looked at again there. Asks no cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.promotions import Latest, Promotion, PromotionState, is_promoted, latest_of
from mirror_pipeline.config import Config, MirrorConfig
from mirror_pipeline.config.naming import fill
from mirror_pipeline.halts import Halt, promoted, standing_by, written_by_reverse
from mirror_pipeline.topics.lanes import begun_targets, lane_stores
from mirror_pipeline.topics.naming import partner_of


@dataclass(slots=True)
class Directions:
    """What one mirror may copy.

    Args:
        config: the file.
        mirror: one of its mirrors.
    """

    config: Config
    mirror: MirrorConfig
    partner: MirrorConfig | None = None
    own: Latest = field(default_factory=dict)
    theirs: Latest = field(default_factory=dict)
    _begun: dict[str, str] = field(default_factory=dict)
    _own_begun: dict[str, str] = field(default_factory=dict)
    _reverse_open: bool = False

    def __post_init__(self) -> None:
        self.partner = partner_of(self.config.mirrors, self.mirror)

    def look(self) -> Directions:
        """Read the ledgers as they are now. Raises BufferUnusable."""
        self.own = latest_of(self.config.buffer, self.mirror.name)
        if self.partner is not None:
            self.theirs = latest_of(self.config.buffer, self.partner.name)
            self._begun = begun_targets(self.config.buffer, self.partner)
            self._own_begun = begun_targets(self.config.buffer, self.mirror)
            self._reverse_open = self._is_reverse_open(self.partner)
        return self

    def _is_reverse_open(self, partner: MirrorConfig) -> bool:
        """Whether topics that neither mirror knows are the reverse mirror's."""
        sides = (self.mirror, self.own), (partner, self.theirs)
        (forward, handed), (_, opened) = reversed(sides) if self.mirror.reverse_of else sides
        if not any(_is_opened(rows) for rows in opened.values()):
            return False
        live = _live(self.config, forward)
        return bool(live) and all(is_promoted(handed.get(topic)) for topic in live)

    def promoted(self) -> set[str]:
        """The topics that are promoted now."""
        return {topic for topic, rows in self.own.items() if is_promoted(rows)}

    def refused(self, topics: Collection[str]) -> dict[str, Halt]:
        """Those of some source topics that must not be copied now, with the reason."""
        return {topic: halt for topic in topics if (halt := self._refused(topic)) is not None}

    def _refused(self, topic: str) -> Halt | None:
        rows = self.own.get(topic)
        if rows and is_promoted(rows):
            row = rows[min(rows)]
            return promoted(topic, row.target_topic, self.mirror.target, row.by, row.at)
        if self.partner is None:
            return None
        if any(target == topic and not is_promoted(self.theirs.get(theirs)) for theirs, target in self._begun.items()):
            return written_by_reverse(topic, self.partner.name)
        if (rows and _is_opened(rows)) or self._may_copy(topic, self.partner):
            return None
        return standing_by(topic, self.mirror.name, self.partner.name)

    def _may_copy(self, topic: str, partner: MirrorConfig) -> bool:
        """Whether a topic that was never handed over is this mirror's."""
        if topic in self._own_begun:
            return not self.mirror.reverse_of or topic not in {*self._begun, *self._begun.values()}
        theirs = counterpart(self.mirror, partner, topic)
        if theirs in self._begun and not is_promoted(self.theirs.get(theirs)):
            return False
        if self.mirror.reverse_of:
            return self._reverse_open and topic not in {*self._begun, *self._begun.values()}
        return not self._reverse_open


def counterpart(forward: MirrorConfig, reverse: MirrorConfig, topic: str) -> str:
    """The topic that the reverse mirror copies once ``topic`` of the forward mirror is promoted: the copy itself where names come back
    to the same topic (`identity`), else the topic of the same name, into which applications write from then on (`prefix`)."""
    there = fill(forward.naming, forward.source, topic)
    return there if fill(reverse.naming, reverse.source, there) == topic else topic


def _is_opened(rows: Mapping[int, Promotion]) -> bool:
    return any(row.state is PromotionState.OPEN for row in rows.values())


def _live(config: Config, mirror: MirrorConfig) -> set[str]:
    """What a mirror has begun and still copies. Raises BufferUnusable."""
    found: set[str] = set()
    for store in lane_stores(config.buffer, mirror):
        here = Ledger(store).incarnations()
        found |= here.keys() - (Decisions(store).left_out(here) if here else set())
    return found

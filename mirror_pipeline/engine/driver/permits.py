"""What an operator, other mirrors and the other direction allow a lane; read again by whoever prepares topics."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.halts import Halt
from mirror_pipeline.model import Decision, DecisionKind, Send, TopicPartition
from mirror_pipeline.topics.pauses import paused_topics

if TYPE_CHECKING:
    from mirror_pipeline.topics.claims import Claims
    from mirror_pipeline.topics.directions import Directions


@dataclass(slots=True)
class Permits:
    """Decisions about a lane's topics, and claims on them.

    ``cases`` is the table of decisions and of quarantined data, ``decisions`` what it held when it was last read.
    ``claims`` knows what other mirrors write on the target; None if there are none.
    ``directions`` knows which topics were promoted, or are copied the other way; None in a backfill.
    """

    cases: Decisions
    claims: Claims | None = None
    directions: Directions | None = None
    decisions: tuple[Decision, ...] = ()

    def read(self) -> None:
        """Read decisions, and what was promoted, again. Raises BufferUnusable."""
        self.decisions = self.cases.all()
        if self.directions is not None:
            self.directions.look()

    @property
    def revision(self) -> int:
        """The last decision that was read; -1 without one."""
        return max((decision.revision for decision in self.decisions), default=-1)

    def turned_away(self, topics: Collection[str]) -> dict[str, Halt]:
        """Topics that this mirror must not copy now, as last read."""
        away = {} if self.directions is None else self.directions.refused(topics)
        return paused_topics(self.decisions, topics) | away

    def approved(self, incarnation: str, tp: TopicPartition) -> tuple[tuple[int, int], ...]:
        """Source offset ranges of a partition that an operator allowed to be missing."""
        return tuple(
            (d.start, d.end)
            for d in self.decisions
            if d.kind is DecisionKind.GAP and (d.topic, d.partition, d.incarnation) == (tp.topic, tp.partition, incarnation)
        )

    def accepted(self, kind: DecisionKind, incarnation: str, subject: str = "") -> list[Decision]:
        """Decisions of a kind about one generation of a topic, and about one topic id if ``subject`` names it."""
        decisions = [d for d in self.decisions if d.kind is kind and d.incarnation == incarnation]
        return [d for d in decisions if not subject or d.subject == subject]

    def decided_by(self, send: Send, on_loss: str) -> str:
        """Who allowed these source offsets to be missing: an operator by ``mirror resolve``, or the mirror's ``on_loss``."""
        covering = (d for d in self.decisions if d.allows(send.topic, send.partition, send.source_start, send.source_end))
        decision = next(covering, None)
        return decision.decided_by if decision else f"on_loss: {on_loss}"

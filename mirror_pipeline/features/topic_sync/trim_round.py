"""One round that moves the starts of a mirror's target logs after those of its source (`topics.follow_trim`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.features.topic_sync.own_copies import OwnCopies
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import EARLIEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.text import count

POLICY_FORBIDS = 44


@dataclass(slots=True)
class TrimOutcome:
    """What a round has deleted, or would delete, and what an operator should know; in words. ``waits``: not all is copied yet."""

    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    waits: bool = False


@dataclass(frozen=True, slots=True)
class TrimRounds:
    """Rounds over the topics of one mirror with exact offsets.

    Args:
        flow: the mirror.
        target: deletes the records.
    """

    flow: Flow
    target: Admin

    def run(self, own: OwnCopies, *, write: bool = True) -> TrimOutcome:
        """One round; without ``write`` it deletes nothing and says what it would delete.

        Raises:
            ClusterUnreachable, ConnectionLost: a cluster does not answer.
            BufferUnusable: a ledger cannot be read.
        """
        outcome = TrimOutcome()
        for topic, ends in sorted(self._behind(own, outcome).items()):
            try:
                if write:
                    self.target.delete_records(ends)
            except BrokerError as error:
                why = "a compacted topic takes no DeleteRecords" if error.code == POLICY_FORBIDS else error.message
                outcome.notes.append(f"{topic}: the start of its copy is not moved: {why}")
                continue
            outcome.changed += [f"{tp}: delete records before offset {count(end)}, as the source has" for tp, end in sorted(ends.items())]
        return outcome

    def _behind(self, own: OwnCopies, outcome: TrimOutcome) -> dict[str, dict[TopicPartition, int]]:
        """By source topic, the target partitions that begin before their source, with its start.

        Left out are sources that begin after the copy's position: whether their loss is accepted is for a person to say.
        """
        lanes = {copy.lane for copy in own.copies.values()}
        at = [Ledger(store).positions() for store in self.flow.lane_stores() if store.lane in lanes]
        positions = {tp: position for known in at for tp, position in known.items() if tp.topic in own.copies}
        targets = {tp: TopicPartition(own.copies[tp.topic].generation.target_topic, tp.partition) for tp in positions}
        with self.flow.source_client() as here, self.flow.target_client() as there:
            first, kept = _starts(here, targets), _starts(there, {target: target for target in targets.values()})
        found: dict[str, dict[TopicPartition, int]] = {}
        for tp, target in targets.items():
            start, begins = first.get(tp), kept.get(target)
            if start is None or begins is None or begins >= start:
                continue
            if start <= positions[tp].source_next:
                found.setdefault(tp.topic, {})[target] = start
            else:
                outcome.waits = True
        return found


def _starts(client: WireClient, parts: Mapping[TopicPartition, TopicPartition]) -> dict[TopicPartition, int]:
    """Log starts of the partitions that can be asked now."""
    return {tp: start for tp, start in offsets_or_errors(client, parts, EARLIEST_TIME).items() if isinstance(start, int)}

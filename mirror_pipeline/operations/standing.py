"""Positions and staged offsets of a mirror's partitions, by ledger and buffer alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.engine.driver.topics.first_seen import FirstSeen
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.buffer_status import ledger_of, span_table


@dataclass(frozen=True, slots=True)
class Standing:
    """A mirror's partitions by ledger and buffer: next source offset to produce, end of what is staged.

    ``starts`` are the first offsets of copies that have begun, ``first_seen`` what lanes know of those that have not.
    """

    positions: dict[TopicPartition, int]
    staged: dict[TopicPartition, int]
    staged_records: int
    staged_bytes: int
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    first_seen: tuple[FirstSeen, ...] = ()


def standing(stores: list[LaneStore]) -> Standing:
    """Read ledger and buffer of some lanes."""
    positions: dict[TopicPartition, int] = {}
    staged: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    records = size = 0
    for store in stores:
        ledger, spans = ledger_of(store), span_table(store)
        if not (ledger.exists() and spans.exists()):
            continue  # a lane that is being created
        generations = ledger.incarnations()
        incarnations = {name: generation.incarnation for name, generation in generations.items()}
        starts |= {TopicPartition(name, n): first for name, copied in generations.items() for n, first in copied.starts.items()}
        here = {tp: position.source_next for tp, position in ledger.positions().items()}
        positions |= here
        for span in spans.pending(here, incarnations=incarnations):
            staged[span.source] = max(staged.get(span.source, 0), span.end)
            records += span.records
            size += span.bytes
    return Standing(positions, staged, records, size, starts, tuple(map(FirstSeen, stores)))

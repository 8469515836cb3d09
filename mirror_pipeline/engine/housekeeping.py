"""Buffer life: forget what the target has, keep the tables small."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mirror_pipeline.buffer.evict import SpanKey
from mirror_pipeline.buffer.ledger import Ledger
from mirror_pipeline.buffer.spans import SpanTable

READER_GRACE_SECONDS = 600.0
"""How long files stay after they left the table, for people's queries that still read them."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """What one round of housekeeping did in one lane; bytes on disk."""

    lane: str
    micro_batches: int
    freed_bytes: int
    joined_files: int
    removed_files: int


def make_room(spans: SpanTable, positions: Mapping[SpanKey, int], *, target_bytes: int, grace: float) -> int:
    """Drop micro-batches that lie on the target, oldest first, until ``target_bytes`` are left; the bytes freed."""
    spans.evict(spans.produced(positions), target_bytes=target_bytes)
    return spans.vacuum(grace=grace)


def keep_house(lane: str, spans: SpanTable, ledger: Ledger, *, retention: int, grace: float = READER_GRACE_SECONDS) -> Eviction:
    """Drop what lies on the target for longer than ``retention`` seconds, join the ledger's small files."""
    lives = ledger.incarnations()
    positions = {
        (tp.topic, tp.partition, lives[tp.topic].incarnation): position.source_next for tp, position in ledger.positions().items()
    }
    before = int((time.time() - retention) * 1000)
    gone = spans.evict(spans.produced(positions), older_than=before)
    freed = spans.vacuum(grace=grace)
    upkeep = ledger.maintain()
    return Eviction(lane, len(gone), freed + upkeep.freed, upkeep.joined, upkeep.removed)

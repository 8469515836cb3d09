"""Which topics a mirror has handed over to applications, and the steps that led there: two small tables of a mirror.

A topic without rows is copied as the configuration says. ``promoted`` ends that: the target's topic belongs to applications from there
on. ``open`` begins it again; a mirror that is the reverse of another one copies a topic only once it is open.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mirror_pipeline.buffer.place.place import DIRECTED_FORMAT, LaneStore, find_lanes, raise_format
from mirror_pipeline.buffer.tables import columns
from mirror_pipeline.buffer.tables.latest import LatestTable
from mirror_pipeline.buffer.tables.schema import FAILOVER_STEPS, PROMOTIONS
from mirror_pipeline.config import BufferConfig

FAILOVER_LANE = "failover"
"""The folder beside the lanes' folders; failovers and failbacks of one mirror exclude each other by its lock."""
FAILOVER_APP_ID = "mirror-failover"
WHOLE = -1
"""The partition of a row that is about a whole topic, and offsets that have no meaning."""


class PromotionState(StrEnum):
    """Whose a topic is."""

    PROMOTED = "promoted"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Promotion:
    """Source and target offset at which the copy of a partition ended; ``at`` in milliseconds since the epoch.

    ``generation`` is the copy's, or in a row that opens a topic the promotion that it answers (:func:`promotion_name`). ``revision`` is
    the row's in its table once it is written: rows are ordered by it, never by ``at``, which comes from the clocks of several hosts.
    """

    topic: str
    partition: int
    generation: str
    state: PromotionState
    source_offset: int
    target_offset: int
    target_topic: str
    by: str
    at: int
    revision: int = field(default=WHOLE, compare=False)


Latest = dict[str, dict[int, Promotion]]
"""The last rows of each topic, by topic and partition."""


@dataclass(frozen=True, slots=True)
class FailoverStep:
    """A step of a failover or failback that is done: ``number`` counts them, ``detail`` is what later steps need of it."""

    number: int
    kind: str
    step: str
    detail: Mapping[str, Any]
    by: str
    at: int


class Promotions:
    """Both tables of one mirror; one writer at a time.

    Args:
        store: the mirror's ``failover`` folder.
        durable: bring commits to the disk before they count (local paths).
    """

    def __init__(self, store: LaneStore, *, durable: bool = True) -> None:
        self._store = store
        self._promotions = LatestTable(store, PROMOTIONS, FAILOVER_APP_ID, durable=durable)
        self._steps = LatestTable(store, FAILOVER_STEPS, FAILOVER_APP_ID, durable=durable)

    def latest(self) -> Latest:
        """The last rows of each topic. Raises BufferUnusable."""
        found: Latest = {}
        last: dict[str, int] = {}
        for row in self.history():
            if row.revision > last.get(row.topic, WHOLE):
                found[row.topic] = {}
                last[row.topic] = row.revision
            found[row.topic][row.partition] = row
        return found

    def history(self) -> list[Promotion]:
        """Every row, in order. Raises BufferUnusable."""
        table = self._promotions.rows().sort_by([("revision", "ascending"), ("topic", "ascending"), ("partition", "ascending")])
        return [
            Promotion(
                row["topic"], row["partition"], row["generation"], PromotionState(row["state"]), row["source_offset"],
                row["target_offset"], row["target_topic"], row["promoted_by"], at, row["revision"],
            )
            for row, at in zip(table.drop_columns(["promoted_at"]).to_pylist(), _milliseconds(table["promoted_at"]), strict=True)
        ]  # fmt: skip

    def add(self, rows: Sequence[Promotion]) -> None:
        """Write rows down, all or none. Raises BufferUnusable, also when another process has written meanwhile."""
        if rows:
            raise_format(self._store, DIRECTED_FORMAT)
            self._promotions.append(
                len(rows),
                columns.strings([row.topic for row in rows]),
                columns.int32s(row.partition for row in rows),
                columns.strings([row.generation for row in rows]),
                columns.strings([row.state.value for row in rows]),
                columns.int64s(row.source_offset for row in rows),
                columns.int64s(row.target_offset for row in rows),
                columns.strings([row.target_topic for row in rows]),
                columns.strings([row.by for row in rows]),
                columns.times(row.at for row in rows),
            )

    def steps(self) -> list[FailoverStep]:
        """Every step that is done, in order. Raises BufferUnusable."""
        table = self._steps.rows()
        return [
            FailoverStep(row["number"], row["kind"], row["step"], json.loads(row["detail"]), row["done_by"], at)
            for row, at in zip(table.drop_columns(["done_at"]).to_pylist(), _milliseconds(table["done_at"]), strict=True)
        ]

    def note(self, step: FailoverStep) -> None:
        """Write a step down. Raises BufferUnusable."""
        texts = (columns.strings([text]) for text in (step.kind, step.step, json.dumps(step.detail), step.by))
        self._steps.append(1, columns.int64s([step.number]), *texts, columns.times([step.at]))


def promotions_of(buffer: BufferConfig, mirror: str) -> Promotions | None:
    """The tables of a mirror, to be read; None for a mirror that was never failed over. Raises BufferUnusable."""
    store = next((found for found in find_lanes(buffer, mirror) if found.lane == FAILOVER_LANE), None)
    return None if store is None else Promotions(store, durable=buffer.durable)


def latest_of(buffer: BufferConfig, mirror: str) -> Latest:
    """:meth:`Promotions.latest` of a mirror. Raises BufferUnusable."""
    known = promotions_of(buffer, mirror)
    return {} if known is None else known.latest()


def is_promoted(rows: Mapping[int, Promotion] | None) -> bool:
    """Whether the last rows of a topic say that it is promoted."""
    return bool(rows) and all(row.state is PromotionState.PROMOTED for row in (rows or {}).values())


def promotion_name(mirror: str, rows: Mapping[int, Promotion]) -> str:
    """What one promotion of a topic is called in the tables of the other mirror."""
    return f"{mirror}/{max(row.revision for row in rows.values())}"


def promoted_topics(latest: Latest) -> set[str]:
    """The topics that are promoted now."""
    return {topic for topic, rows in latest.items() if is_promoted(rows)}


def now() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


def _milliseconds(column: pa.ChunkedArray) -> list[int]:
    return [value // 1000 for value in pc.cast(column, pa.int64()).to_pylist()]

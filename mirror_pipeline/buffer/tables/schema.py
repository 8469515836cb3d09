"""Names and columns of the Delta tables of a lane; docs/buffer.md explains each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from mirror_pipeline.buffer.place.place import ARCHIVE_FOLDER, SPANS_FOLDER
from mirror_pipeline.buffer.tables.columns import DIGESTS, HOLES, OFFSETS, TIME

LOG_SETTINGS = {
    # These tables need no time travel: their rows hold the history. Short retention keeps opening and committing cheap.
    "delta.logRetentionDuration": "interval 2 minutes",
    "delta.enableExpiredLogCleanup": "true",
    # evict and maintain decide on physical removal; this only bounds the tombstones in checkpoints.
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    "delta.checkpointInterval": "50",
}


@dataclass(frozen=True)
class TableSpec:
    """One Delta table: its name, columns, partition columns and the columns whose minimum and maximum go into the log."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    skipping: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=lambda: dict(LOG_SETTINGS))

    @property
    def file_schema(self) -> pa.Schema:
        """Columns in the Parquet files: a partition column's value is in the Delta log only."""
        return pa.schema([column for column in self.schema if column.name not in self.partition_by])


def _columns(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


_TEXT, _INT, _LONG = pa.string(), pa.int32(), pa.int64()
# Nullable: older buffers have rows without it.
_REVISION = pa.field("revision", _LONG, nullable=True)

SPANS = TableSpec(
    SPANS_FOLDER,
    _columns(
        topic=_TEXT,
        partition=_INT,
        incarnation=_TEXT,
        micro_batch=_LONG,
        start_offset=_LONG,
        end_offset=_LONG,
        records=_LONG,
        batches=_LONG,
        bytes=_LONG,
        min_timestamp=_LONG,
        max_timestamp=_LONG,
        staged_at=TIME,
        holes=HOLES,
    )
    # Nullable: older buffers have rows without it. The payload stays last, where SpanReader expects it.
    .append(pa.field("digests", DIGESTS, nullable=True))
    .append(pa.field("payload", pa.binary(), nullable=False)),
    partition_by=("micro_batch",),
    skipping=("topic", "partition", "start_offset", "end_offset", "min_timestamp", "max_timestamp"),
)

# The columns of spans in the same order, so that both tables' files are read and written alike. `topic` is in the files as well.
ARCHIVE = TableSpec(
    ARCHIVE_FOLDER,
    pa.schema([*(column for column in SPANS.schema if column.name != "micro_batch"), pa.field("day", _TEXT, nullable=False)]),
    partition_by=("topic", "day"),
    skipping=("partition", "incarnation", "start_offset", "end_offset", "min_timestamp", "max_timestamp"),
)

SENDS = TableSpec(
    "sends",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        topic=_TEXT,
        partition=_INT,
        incarnation=_TEXT,
        source_start=_LONG,
        source_end=_LONG,
        target_topic=_TEXT,
        target_start=_LONG,
        target_end=_LONG,
        records=_LONG,
        ordinal=_LONG,
        micro_batch=_LONG,
    )
    .append(pa.field("cause", _TEXT, nullable=True))
    .append(pa.field("recorded_at", TIME, nullable=False))
    # Nullable: holes have no delay, nor have rows of older ledgers.
    .append(pa.field("delay_ms", _LONG, nullable=True)),
    skipping=("topic", "partition", "source_start", "source_end", "target_topic", "target_start", "target_end", "micro_batch"),
)

GAPS = TableSpec(
    "gaps",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        topic=_TEXT,
        partition=_INT,
        incarnation=_TEXT,
        start_offset=_LONG,
        end_offset=_LONG,
        cause=_TEXT,
        decided_by=_TEXT,
        decided_at=TIME,
    ),
    skipping=("topic", "partition", "start_offset", "end_offset"),
)

INCARNATIONS = TableSpec(
    "incarnations",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        revision=_LONG,
        topic=_TEXT,
        incarnation=_TEXT,
        source_cluster_id=_TEXT,
        target_cluster_id=_TEXT,
        target_topic=_TEXT,
        target_topic_id=_TEXT,
        starts=OFFSETS,
        target_starts=OFFSETS,
        bound_at=TIME,
    )
    .append(pa.field("ordinals", OFFSETS, nullable=True))
    .append(pa.field("producer_epoch", pa.int32(), nullable=True))
    .append(pa.field("kept", OFFSETS, nullable=True)),
)

DECISIONS = TableSpec(
    "decisions",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        topic=_TEXT,
        partition=_INT,
        incarnation=_TEXT,
        kind=_TEXT,
        start_offset=_LONG,
        end_offset=_LONG,
        subject=_TEXT,
        decided_by=_TEXT,
        decided_at=TIME,
    ).append(_REVISION),
)

QUARANTINE = TableSpec(
    "quarantine",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        topic=_TEXT,
        partition=_INT,
        incarnation=_TEXT,
        start_offset=_LONG,
        end_offset=_LONG,
        reason=_TEXT,
        quarantined_at=TIME,
        payload=pa.binary(),
    ),
)

PRODUCERS = TableSpec(
    "producers",
    _columns(mirror=_TEXT, lane=_TEXT, revision=_LONG, target_cluster_id=_TEXT, producer_id=_LONG, producer_epoch=_INT, taken_at=TIME),
)

VERIFICATIONS = TableSpec(
    "verifications",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        topic=_TEXT,
        partition=_INT,
        incarnation=_TEXT,
        source_start=_LONG,
        source_end=_LONG,
        leaves=_LONG,
        records=_LONG,
        root=_TEXT,
        verdict=_TEXT,
        kind=_TEXT,
        verified_at=TIME,
    ).append(_REVISION),
    skipping=("topic", "partition", "source_start", "source_end"),
)

GROUP_OFFSETS = TableSpec(
    "group_offsets",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        revision=_LONG,
        group=_TEXT,
        topic=_TEXT,
        partition=_INT,
        source_offset=_LONG,
        metadata=_TEXT,
        target_offset=_LONG,
        previous_offset=_LONG,
        moved_back=pa.bool_(),
        written_at=TIME,
    ).append(pa.field("opened", _LONG, nullable=True)),
)

PROMOTIONS = TableSpec(
    "promotions",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        revision=_LONG,
        topic=_TEXT,
        partition=_INT,
        generation=_TEXT,
        state=_TEXT,
        source_offset=_LONG,
        target_offset=_LONG,
        target_topic=_TEXT,
        promoted_by=_TEXT,
        promoted_at=TIME,
    ),
)

FAILOVER_STEPS = TableSpec(
    "failover_steps",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        revision=_LONG,
        number=_LONG,
        kind=_TEXT,
        step=_TEXT,
        detail=_TEXT,
        done_by=_TEXT,
        done_at=TIME,
    ),
)

TOPIC_CHANGES = TableSpec(
    "topic_changes",
    _columns(
        mirror=_TEXT,
        lane=_TEXT,
        revision=_LONG,
        kind=_TEXT,
        topic=_TEXT,
        name=_TEXT,
        value=_TEXT,
        removed=pa.bool_(),
        written_at=TIME,
    ),
)

LEDGER = (SENDS, GAPS, INCARNATIONS, PRODUCERS, VERIFICATIONS, DECISIONS, QUARANTINE)
TABLES = (SPANS, *LEDGER)

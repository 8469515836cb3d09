"""Control batches: what a transaction marker says (KIP-98; Kafka sources: ``ControlRecordType``)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.content import content
from mirror_pipeline.kafka.records.header import Buffer
from mirror_pipeline.kafka.records.records import only_header, open_batch

_KEY = Struct(">hh")  # version, type


class ControlType(IntEnum):
    """Kind of a control batch; UNKNOWN is everything that ends no transaction."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1


def control_type(batch: Buffer) -> ControlType:
    """Whether a control batch commits or aborts the transaction of its producer id.

    UNKNOWN for other kinds and for a batch that compaction emptied, as Kafka's consumer takes them.

    Raises:
        CorruptBatch: Not a control batch, or malformed.
    """
    if not only_header(batch).is_control:
        raise CorruptBatch("not a control batch")
    for record in open_batch(batch):
        key = content(record).key
        if key is None or len(key) < _KEY.size:
            raise CorruptBatch(f"the control record at offset {record.offset} has no type")
        version, kind = _KEY.unpack_from(key)
        if version < 0:
            raise CorruptBatch(f"the control record at offset {record.offset} has version {version}")
        return ControlType(kind) if kind in (0, 1) else ControlType.UNKNOWN
    return ControlType.UNKNOWN

"""RecordBatch bytes: walk, check, restamp, open, seal, split, decode. Pure functions over bytes, no I/O."""

from __future__ import annotations

from mirror_pipeline.kafka.records.content import Record, content, decode, tail_of
from mirror_pipeline.kafka.records.control import ControlType, control_type
from mirror_pipeline.kafka.records.header import HEADER_BYTES, BatchHeader, Buffer, check, headers, restamp
from mirror_pipeline.kafka.records.records import OpenRecord, RecordTooLarge, open_batch, seal, seal_runs

__all__ = [
    "HEADER_BYTES",
    "BatchHeader",
    "Buffer",
    "ControlType",
    "OpenRecord",
    "Record",
    "RecordTooLarge",
    "check",
    "content",
    "control_type",
    "decode",
    "headers",
    "open_batch",
    "restamp",
    "seal",
    "seal_runs",
    "tail_of",
]

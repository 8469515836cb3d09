"""``quarantine``: what was left out of the copy, shown, written into files, or sent into a topic beside the copy."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.place.place import find_lanes
from mirror_pipeline.errors import CorruptBatch, UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.records.batch import decode, open_batch
from mirror_pipeline.kafka.records.records import OpenRecord
from mirror_pipeline.model import Quarantined
from mirror_pipeline.reports import QuarantinedRecords
from mirror_pipeline.topics.lanes import known_topics
from mirror_pipeline.verify.side_topic import SideTopic

QUARANTINE_SUFFIX = ".quarantine"
# Of a batch of one record, around its key and value.
BATCH_OVERHEAD = 512


@dataclass(frozen=True, slots=True)
class _Kept:
    """A batch in quarantine of a lane; ``records`` is None where it is damaged."""

    lane: str
    batch: Quarantined
    records: Sequence[OpenRecord] | None


def listed(flow: Flow, topic: str | None = None) -> list[QuarantinedRecords]:
    """See :meth:`Mirror.quarantine`."""
    return _rows(flow, _found(flow, topic))


def export(flow: Flow, folder: Path, topic: str | None = None) -> list[QuarantinedRecords]:
    """See :meth:`Mirror.export_quarantine`."""
    found = _found(flow, topic)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kept in found:
            name = f"{kept.batch.topic}-{kept.batch.partition}-{kept.batch.start}"
            (folder / f"{name}.batch").write_bytes(kept.batch.payload)
            if kept.records is not None:
                (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in _lines(kept.batch)))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="name another folder with --to") from error
    return _rows(flow, found)


def send(flow: Flow, topic: str) -> tuple[str, list[QuarantinedRecords]]:
    """See :meth:`Mirror.send_quarantine`."""
    found = [kept for kept in _found(flow, topic) if kept.records is not None]
    known = known_topics(flow.config, flow.settings).get(topic)
    if not found or known is None:
        raise UsageError(f"mirror {flow.name} has no records of {topic} in quarantine that can be read", hint="`mirror quarantine list`")
    name = known.target_topic + QUARANTINE_SUFFIX
    with flow.target_client() as client, flow.target_admin() as admin:
        side = SideTopic(admin, client, known.target_topic, name)
        side.ensure(largest=max(len(kept.batch.payload) for kept in found) + BATCH_OVERHEAD)
        for number, mine in groupby(found, key=lambda kept: kept.batch.partition):
            side.write(number, [record for kept in mine for record in kept.records or ()])
    return name, _rows(flow, found)


def _found(flow: Flow, topic: str | None) -> list[_Kept]:
    """By topic, partition and offset."""
    lanes = find_lanes(flow.config.buffer, flow.name)
    rows = [(store.lane, batch) for store in lanes for batch in Decisions(store).quarantined() if topic in (None, batch.topic)]
    rows.sort(key=lambda row: (row[1].topic, row[1].partition, row[1].start))
    return [_Kept(lane, batch, _records(batch)) for lane, batch in rows]


def _records(batch: Quarantined) -> Sequence[OpenRecord] | None:
    try:
        return open_batch(batch.payload)
    except CorruptBatch:
        return None


def _lines(batch: Quarantined) -> list[str]:
    def text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    return [
        json.dumps(
            {
                "topic": batch.topic, "partition": batch.partition, "offset": record.offset, "timestamp": record.timestamp,
                "key": text(record.key), "value": text(record.value), "headers": [[name, text(value)] for name, value in record.headers],
            }
        )
        for record in decode(batch.payload)
    ]  # fmt: skip


def _rows(flow: Flow, found: Sequence[_Kept]) -> list[QuarantinedRecords]:
    return [
        QuarantinedRecords(
            flow.name, kept.lane, kept.batch.topic, kept.batch.partition, kept.batch.start, kept.batch.end, kept.batch.reason,
            len(kept.batch.payload), kept.records is not None,
        )
        for kept in found
    ]  # fmt: skip

"""``quarantine``: what was left out of the copy, shown, written into files, or sent into a topic beside the copy."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
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


def listed(flow: Flow, topic: str | None = None) -> list[QuarantinedRecords]:
    """See :meth:`Mirror.quarantine`."""
    return [_row(flow, lane, found) for lane, found in _found(flow, topic)]


def export(flow: Flow, folder: Path, topic: str | None = None) -> list[QuarantinedRecords]:
    """See :meth:`Mirror.export_quarantine`."""
    found = _found(flow, topic)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for _, each in found:
            name = f"{each.topic}-{each.partition}-{each.start}"
            (folder / f"{name}.batch").write_bytes(each.payload)
            if _records(each) is not None:
                (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in _lines(each)))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="name another folder with --to") from error
    return [_row(flow, lane, each) for lane, each in found]


def send(flow: Flow, topic: str) -> tuple[str, list[QuarantinedRecords]]:
    """See :meth:`Mirror.send_quarantine`."""
    found = [(lane, each) for lane, each in _found(flow, topic) if _records(each) is not None]
    known = known_topics(flow.config, flow.settings).get(topic)
    if not found or known is None:
        raise UsageError(f"mirror {flow.name} has no records of {topic} in quarantine that can be read", hint="`mirror quarantine list`")
    name = known.target_topic + QUARANTINE_SUFFIX
    with flow.target_client() as client, flow.target_admin() as admin:
        side = SideTopic(admin, client, known.target_topic, name)
        side.ensure(largest=max(len(each.payload) for _, each in found) + BATCH_OVERHEAD)
        for number in sorted({each.partition for _, each in found}):
            mine = sorted((each for _, each in found if each.partition == number), key=lambda each: each.start)
            side.write(number, [record for each in mine for record in _records(each) or ()])
    return name, [_row(flow, lane, each) for lane, each in found]


def _found(flow: Flow, topic: str | None) -> list[tuple[str, Quarantined]]:
    lanes = find_lanes(flow.config.buffer, flow.name)
    rows = [(store.lane, each) for store in lanes for each in Decisions(store).quarantined() if topic in (None, each.topic)]
    return sorted(rows, key=lambda row: (row[1].topic, row[1].partition, row[1].start))


def _records(each: Quarantined) -> Sequence[OpenRecord] | None:
    """None for a batch that is damaged."""
    try:
        return open_batch(each.payload)
    except CorruptBatch:
        return None


def _lines(each: Quarantined) -> list[str]:
    def text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    return [
        json.dumps(
            {
                "topic": each.topic, "partition": each.partition, "offset": record.offset, "timestamp": record.timestamp,
                "key": text(record.key), "value": text(record.value), "headers": [[name, text(value)] for name, value in record.headers],
            }
        )
        for record in decode(each.payload)
    ]  # fmt: skip


def _row(flow: Flow, lane: str, each: Quarantined) -> QuarantinedRecords:
    readable = _records(each) is not None
    return QuarantinedRecords(flow.name, lane, each.topic, each.partition, each.start, each.end, each.reason, len(each.payload), readable)

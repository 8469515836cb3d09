"""What MirrorMaker 2 wrote down on the target: how far it has copied each partition, and which group offsets it has translated.

Positions are in Connect's offsets topic, ``mm2-offsets.<source alias>.internal``: key ``["MirrorSourceConnector", {"cluster", "partition",
"topic"}]``, value ``{"offset": N}``, the last source offset that was copied. Group offsets are in ``<source alias>.checkpoints.internal``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.kafka.records.batch import Record
from mirror_pipeline.kafka.records.cursor import Cursor
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.log_walk import READ_COMMITTED, read_log

CONNECTOR = "MirrorSourceConnector"
_CHECKPOINT = struct.Struct(">hqq")  # version, source offset, target offset


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """For each source partition the next offset that MirrorMaker would copy; ``ends`` of the topic when it was read."""

    topic: str
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)


class Checkpoint(NamedTuple):
    """The translation of one commit of a group: the source offset, and the offset of the target topic."""

    source_offset: int
    target_offset: int


Checkpoints = dict[tuple[str, TopicPartition], list[Checkpoint]]
"""By group and *target* partition, in the order in which they were written."""


def offsets_topic(alias: str) -> str:
    """Connect's offsets topic of the flow from cluster ``alias``, on the target."""
    return f"mm2-offsets.{alias}.internal"


def stored_positions(client: WireClient, alias: str) -> StoredPositions:
    """Read the positions of the flow from cluster ``alias``, as MirrorMaker's property file names it.

    Raises:
        UsageError: the target has no such topic.
        ProblemFound: a record there is not of a known form.
        ClusterUnreachable, BrokerError: it cannot be read.
    """
    topic = offsets_topic(alias)
    ends = _ends(client, topic)
    if ends is None:
        hint = "name the source cluster as `clusters` in mm2.properties does; MirrorMaker in a Connect cluster has another topic"
        raise UsageError(f"cluster {client.cluster.alias} has no topic {topic}: MirrorMaker has not copied from {alias} to it", hint=hint)
    positions = StoredPositions(topic, ends=ends)
    for tp, record in _records(client, ends):
        found = position(record, alias, tp)
        if found is None:
            continue
        source, offset = found
        if offset is None:
            positions.next_offsets.pop(source, None)
        else:
            positions.next_offsets[source] = offset + 1
    return positions


def checkpoints(client: WireClient, alias: str) -> Checkpoints:
    """Read the group offsets that MirrorMaker has translated; empty without such a topic. Raises as :func:`stored_positions`."""
    found: Checkpoints = {}
    for tp, record in _records(client, _ends(client, f"{alias}.checkpoints.internal") or {}):
        if record.key is not None and record.value is not None:
            group, target, point = checkpoint(record, tp)
            found.setdefault((group, target), []).append(point)
    return found


def _ends(client: WireClient, topic: str) -> dict[TopicPartition, int] | None:
    """The end of each partition; None when there is no such topic."""
    found = client.metadata([topic]).topics[topic]
    if found.error == UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if found.error:
        raise broker_error(found.error, f"{client.cluster.alias}: topic {topic}")
    parts = [TopicPartition(topic, number) for number in sorted(found.partitions)]
    return {tp: end for tp, (_, end) in log_range(client, parts, isolation=READ_COMMITTED).items()}


def _records(client: WireClient, ends: dict[TopicPartition, int]) -> Iterator[tuple[TopicPartition, Record]]:
    starts = log_range(client, list(ends), isolation=READ_COMMITTED) if ends else {}
    for tp, end in ends.items():
        for piece in read_log(client, tp, starts[tp][0], end, isolation=READ_COMMITTED):
            for record in piece.records():
                yield tp, record


def position(record: Record, alias: str, tp: TopicPartition) -> tuple[TopicPartition, int | None] | None:
    """The source partition with its last copied offset, None for a deleted one, from a record of the offsets topic, which lies in ``tp``.

    None for a record of another connector or cluster. Raises ProblemFound for one of another form.
    """
    try:
        connector, partition = json.loads(record.key or b"null")
        if connector != CONNECTOR or partition["cluster"] != alias:
            return None
        source = TopicPartition(str(partition["topic"]), int(partition["partition"]))
        value: Any = None if record.value is None else json.loads(record.value)
        return source, None if value is None else int(value["offset"])
    except (ValueError, TypeError, KeyError) as error:
        raise _unknown(tp, record, str(error)) from None


def checkpoint(record: Record, tp: TopicPartition) -> tuple[str, TopicPartition, Checkpoint]:
    """Group, target partition and offsets of a record of the checkpoints topic, which lies in ``tp``. Raises ProblemFound."""
    try:
        cursor = Cursor(memoryview(record.key or b""))
        group, topic, partition = cursor.string(), cursor.string(), cursor.int32()
        version, source, target = _CHECKPOINT.unpack_from(record.value or b"")
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _unknown(tp, record, str(error)) from None
    if version:
        raise _unknown(tp, record, f"version {version}")
    return group or "", TopicPartition(topic or "", partition), Checkpoint(source, target)


def _unknown(tp: TopicPartition, record: Record, why: str) -> ProblemFound:
    return ProblemFound(
        f"{tp} offset {record.offset} is not a record of MirrorMaker 2 as known here ({why})",
        hint="was the topic written by something else? `mirror adopt` without --from-mm2 relies on the data alone",
    )

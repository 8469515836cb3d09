"""Reading a target partition's tail: the target's own log is the ledger of what it holds.

Stored batch headers carry producer id, epoch, base sequence and base offset (KIP-98). A fetch ends at the high
watermark; what the leader appended and has not replicated yet is invisible to it. So a tail counts only when it ends
where the leader's log ends, asked *after* the scan, and when it reaches what DescribeProducers (KIP-664), asked
*before* it, names as our last sequence. The latter alone would not do: a broker forgets producers of old records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mirror_pipeline.engine.mapping import SEQUENCE_MASK
from mirror_pipeline.errors import BrokerError, ConnectionLost, TopicHalted
from mirror_pipeline.model import Position, Stamp, TopicPartition
from mirror_pipeline.wire.batch import BatchHeader, headers
from mirror_pipeline.wire.client import WireClient
from mirror_pipeline.wire.codes import Action, broker_error, lookup
from mirror_pipeline.wire.fetch import fetch

FETCH_BYTES = 8 * 1024 * 1024
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Tail:
    """What lies on a target partition behind a position: ``records`` of ours up to ``end``."""

    target: TopicPartition
    records: int
    end: int


class NotReplicated(ConnectionLost):
    """The leader has appended what its replicas do not have yet: whether that stays is unknown."""


def read_tail(
    client: WireClient, target: TopicPartition, position: Position, stamp: Stamp | None, *, timeout: float
) -> Tail:
    """Count our records on the target from ``position.target_next`` to the end of its log.

    Args:
        client: the target cluster.
        target: the partition to look at.
        position: where the lane believes to stand; everything before it is known to be there.
        stamp: the lane's producer id; None before it has one, then nothing may lie there.
        timeout: seconds to wait for the high watermark to reach the end of the leader's log.

    Raises:
        TopicHalted: the log ends before the position, or holds records behind it that are not the lane's next ones.
        NotReplicated: the end of the log stayed invisible for ``timeout`` seconds.
        BrokerError, ConnectionLost, ClusterUnreachable: the target cannot be asked now.
    """
    deadline = time.monotonic() + timeout
    while True:
        known = _last_sequence(client, target, stamp)
        tail = _scan(client, target, position, stamp)
        if _reaches(tail, position, known) and _log_end(client, target) == tail.end:
            return tail
        if time.monotonic() >= deadline:
            raise NotReplicated(
                f"{target}: the leader holds records that are not replicated yet", hint="waits for the in-sync replicas"
            )
        time.sleep(POLL_SECONDS)


def _scan(client: WireClient, target: TopicPartition, position: Position, stamp: Stamp | None) -> Tail:
    start, end = _bounds(client, target)
    if end < position.target_next:
        raise TopicHalted(
            target.topic,
            f"{target} ends at offset {end}, but {position.target_next - end} records more were acknowledged there:"
            " the target topic was truncated or recreated",
            hint="restore the target topic, or mirror into a new one",
            partition=target.partition,
            code="target_truncated",
        )
    if start > position.target_next:
        # Retention on the target was faster than this scan. The lane is the only writer, so the end offset counts.
        return Tail(target, end - position.target_next, end)
    at, records = position.target_next, 0
    while at < end:
        data = _fetch(client, target, at)
        before = at
        for _, header in headers(data):
            if header.next_offset <= at:
                continue
            records += _expect_ours(target, header, position, records, stamp)
            at = header.next_offset
        if at == before:
            break
    return Tail(target, records, at)


def _bounds(client: WireClient, target: TopicPartition) -> tuple[int, int]:
    bounds = []
    for which in (-2, -1):
        answer = client.list_offsets({target: which}, isolation=0)[target]
        if answer.error:
            client.forget(target)
            raise broker_error(answer.error, str(target))
        bounds.append(answer.offset)
    return bounds[0], bounds[1]


def _fetch(client: WireClient, target: TopicPartition, at: int) -> memoryview:
    connection = client.connection(client.leader(target))
    data = fetch(
        connection, {target: (at, FETCH_BYTES)}, max_wait_ms=100, min_bytes=1, max_bytes=FETCH_BYTES, isolation=0
    )[target]
    if data.error:
        if lookup(data.error).action in (Action.REFRESH, Action.RETRY):
            client.forget(target)
        raise broker_error(data.error, str(target))
    return data.records


def _expect_ours(
    target: TopicPartition, header: BatchHeader, position: Position, records: int, stamp: Stamp | None
) -> int:
    if stamp is None or header.is_control or header.producer_id != stamp.producer_id:
        raise TopicHalted(
            target.topic,
            f"{target} holds records at offset {header.base_offset} that this mirror did not write",
            hint="mirrored topics take no other records: stop the other writer and mirror into a new topic",
            partition=target.partition,
            code="foreign_writer",
        )
    expected = (position.ordinal + records) & SEQUENCE_MASK
    if header.base_sequence != expected:
        raise TopicHalted(
            target.topic,
            f"{target} holds a batch with sequence {header.base_sequence} at offset {header.base_offset} where"
            f" {expected} was expected: batches before it are missing",
            hint="mirror into a new topic and report this",
            partition=target.partition,
            code="sequence_gap",
        )
    return header.records


def _last_sequence(client: WireClient, target: TopicPartition, stamp: Stamp | None) -> int | None:
    """The last sequence of ours that the leader remembers; None when it has forgotten us, or we never wrote there."""
    if stamp is None:
        return None
    answer = client.describe_producers([target])[target]
    if isinstance(answer, BrokerError):
        raise answer
    return next((state.last_sequence for state in answer if state.producer_id == stamp.producer_id), None)


def _reaches(tail: Tail, position: Position, known: int | None) -> bool:
    """Whether nothing of ours lies behind the tail, as far as the leader remembers."""
    if known is None:
        return True
    ahead = (known - (position.ordinal + tail.records - 1)) & SEQUENCE_MASK
    return not 0 < ahead <= SEQUENCE_MASK // 2


def _log_end(client: WireClient, target: TopicPartition) -> int:
    answer = client.log_ends([target])[target]
    if answer.error:
        client.forget(target)
        raise broker_error(answer.error, str(target))
    return answer.offset


def read_tails(
    client: WireClient, wanted: Mapping[TopicPartition, Position], stamp: Stamp | None, *, timeout: float
) -> dict[TopicPartition, Tail | TopicHalted | BrokerError | ConnectionLost]:
    """:func:`read_tail` for many partitions; a partition's refusal is its answer, the others go on.

    ``timeout`` is for each partition. Of a broker that does not answer only the first partition is asked.

    Raises:
        ClusterUnreachable: no broker of the target answers.
    """
    tails: dict[TopicPartition, Tail | TopicHalted | BrokerError | ConnectionLost] = {}
    silent: dict[int, ConnectionLost] = {}
    for target, position in wanted.items():
        leader = -1
        try:
            leader = client.leader(target)
            tails[target] = silent[leader] if leader in silent else read_tail(client, target, position, stamp, timeout=timeout)
        except (TopicHalted, BrokerError) as problem:
            tails[target] = problem
        except ConnectionLost as problem:
            tails[target] = problem
            client.forget(target)
            if not isinstance(problem, NotReplicated):
                silent[leader] = problem
    return tails

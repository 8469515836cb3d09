"""Reads the tails of target partitions: the target's own log is the ledger of what it holds.

    asked first:  DescribeProducers -> last sequence of ours (q)
    then:         position |== our batches, sequence by sequence ==> high watermark
    asked last:   log end of the leader (e)
    Invariant: a tail counts only if the scan ended at e and reached q; otherwise it is scanned again.

Stored batch headers carry producer id, epoch, base sequence and base offset (KIP-98). A fetch ends at the high
watermark; what the leader appended and has not replicated yet is invisible to it. So a tail counts only when it ends
where the leader's log ends, asked *after* the scan, and when it reaches what DescribeProducers (KIP-664), asked
*before* it, names as our last sequence. The latter alone would not do: a broker forgets producers of old records.

Each step asks about all partitions together, in one request to each leader. A leader that does not answer costs one
``patience``; its partitions are left for another time, and the others continue.

The log of a sole writer is dense: the difference of two offsets is the number of records sent between them, whatever the
cleaner of a compacted topic has removed from its batches since. In a shared topic the sequences count (``shared_tail.py``). Others may
never stop to write there, so the end of the log is asked once, after DescribeProducers and *before* the scan: what we had appended
until then lies before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mirror_pipeline.engine.driver.write.shared_tail import SharedTail, Tail
from mirror_pipeline.engine.tasks.write.offset_map import SEQUENCE_MASK
from mirror_pipeline.errors import BrokerError, ConnectionLost, CorruptBatch, TopicHalted
from mirror_pipeline.halts import Halt, foreign_writer, internal, sequence_gap, target_truncated, unreadable
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME, OffsetAnswer
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import NETWORK_EXCEPTION, broker_error
from mirror_pipeline.kafka.fetch import FetchedPartition, fetch
from mirror_pipeline.kafka.records.batch import BatchHeader, headers
from mirror_pipeline.model import Position, Stamp, TopicPartition

__all__ = ["TAIL_ANSWER_SECONDS", "NoTailYet", "NotReplicated", "Tail", "read_tail", "read_tails"]

TAIL_FETCH_BYTES = 8 * 1024 * 1024
TAIL_POLL_SECONDS = 0.05
# How long a leader may take to answer before it counts as silent, unless it is known to be slow. Opening a connection over a long link
# takes half of it.
TAIL_ANSWER_SECONDS = 3.0
Failure = Halt | BrokerError | ConnectionLost


class NoTailYet(ConnectionLost):
    """The leader answers, but what its log and its memory of our producer say does not agree yet."""


class NotReplicated(NoTailYet):
    """The leader has appended records that its replicas do not have yet: whether they stay is unknown."""


@dataclass(slots=True)
class _Look:
    """One partition while its tail is read; ``at`` is the next offset to scan, ``end`` the last known high watermark.

    ``filled``: how many control markers of the producer id ``fillers`` lie between our records. In a shared topic ``sparse`` finds our
    records among the others, and the scan must reach ``goal``; ``idle``: none can be there.
    """

    target: TopicPartition
    position: Position
    stamp: Stamp | None
    leader: int = -1
    known: int | None = None
    at: int = field(init=False)
    end: int = 0
    deleted: bool = False
    sparse: SharedTail | None = None
    goal: int = -1
    idle: bool = False
    fillers: int = -1
    filled: int = 0
    answer: Tail | Failure | None = None

    def __post_init__(self) -> None:
        self.at = self.position.target_next

    @property
    def tail(self) -> Tail:
        return Tail(self.target, self.at - self.position.target_next - self.filled, self.at, not self.deleted)


def read_tails(
    client: WireClient,
    wanted: Mapping[TopicPartition, Position],
    stamp: Stamp | None,
    *,
    timeout: float,
    patience: float = TAIL_ANSWER_SECONDS,
    epochs: Mapping[TopicPartition, int] | None = None,
    shared: Mapping[TopicPartition, bool] | None = None,
    fillers: int = -1,
) -> dict[TopicPartition, Tail | Failure]:
    """Count our records on target partitions from ``position.target_next`` to the end of their logs.

    Args:
        client: the target cluster.
        wanted: the lane's position in each partition; everything before it is known to be there.
        stamp: the lane's producer id; None before it has one, then the partition must be empty after the position.
        timeout: seconds to wait for high watermarks to reach the ends of the leaders' logs, for all partitions together.
        patience: seconds that a leader may take to answer; then it counts as silent.
        epochs: what a partition adds to the stamp's epoch, if not 0.
        shared: partitions that others write too, and whether something may have been sent there after the position.
        fillers: the producer id of the markers that may lie between our records (``offsets: exact``).

    Returns:
        For each partition its tail, or why there is none: a Halt when the log ends before the position or holds
        records behind it that are not the lane's next ones (one answer's word: look again before you believe it),
        NoTailYet when the end of the log stayed invisible, ConnectionLost or BrokerError when it cannot be asked now.

    Raises:
        ClusterUnreachable: no broker of the target answers.
    """
    looks = {target: _Look(target, position, _stamp(stamp, (epochs or {}).get(target, 0))) for target, position in wanted.items()}
    for look in looks.values():
        look.fillers = fillers
    for target, sent in (shared or {}).items():
        looks[target].sparse, looks[target].idle = SharedTail(target, looks[target].position), not sent
    _find_leaders(client, looks)
    deadline = time.monotonic() + timeout
    while still := _open(looks.values()):
        for step in (_ask_producers, _ask_bounds, _scan, _compare_ends):
            _take_step(step, client, _open(still), patience)
        if not (late := _open(still)):
            break
        if time.monotonic() >= deadline:
            _give_up(client, late, patience)
            break
        time.sleep(TAIL_POLL_SECONDS)
    return {target: _answer(client, look) for target, look in looks.items()}


def read_tail(client: WireClient, target: TopicPartition, position: Position, stamp: Stamp | None, *, timeout: float) -> Tail:
    """:func:`read_tails` for one partition; why there is none is raised."""
    answer = read_tails(client, {target: position}, stamp, timeout=timeout)[target]
    if isinstance(answer, Tail):
        return answer
    raise answer.error() if isinstance(answer, Halt) else answer


def _give_up(client: WireClient, late: Collection[_Look], patience: float) -> None:
    """Say why tails do not count yet. Where the log was read to the end that the leader names, replicas are not the reason."""
    ends = client.log_ends([look.target for look in late], within=patience)
    for look in late:
        end = ends[look.target]
        if _refused(look, end.error):
            continue
        if look.at < (look.goal if look.sparse is not None else end.offset):
            said = f"{look.target}: the leader holds records that are not replicated yet"
            look.answer = NotReplicated(said, hint="waits for the in-sync replicas")
        else:
            said = f"{look.target}: the leader remembers sequence {look.known} of this mirror, which its log does not hold"
            look.answer = NoTailYet(said, hint="was the buffer restored from a copy? producer.id.expiration.ms ends it")


def _stamp(stamp: Stamp | None, epoch: int) -> Stamp | None:
    return replace(stamp, producer_epoch=stamp.producer_epoch + epoch) if stamp is not None and epoch else stamp


def _open(looks: Iterable[_Look]) -> list[_Look]:
    return [look for look in looks if look.answer is None]


def _answer(client: WireClient, look: _Look) -> Tail | Failure:
    """The outcome; the leader of a partition without a tail is looked up again next time."""
    assert look.answer is not None  # noqa: S101 - the loop ends only then
    if not isinstance(look.answer, Tail):
        client.forget(look.target)
    return look.answer


def _take_step(
    step: Callable[[WireClient, Collection[_Look], float], None], client: WireClient, looks: Collection[_Look], patience: float
) -> None:
    if not looks:
        return
    try:
        step(client, looks, patience)
    except BrokerError as error:  # the whole request was refused, as by a broker too old for it
        for look in looks:
            look.answer = look.answer or error


def _find_leaders(client: WireClient, looks: Mapping[TopicPartition, _Look]) -> None:
    leaders, errors = client.leaders(list(looks), patience=0.0)
    for target, look in looks.items():
        look.leader = leaders.get(target, -1)
        look.answer = errors.get(target)


def _refused(look: _Look, code: int) -> bool:
    """Whether an answer is an error, which then is the partition's outcome; an unreachable leader counts as a lost connection."""
    if code == NETWORK_EXCEPTION:
        look.answer = ConnectionLost(f"{look.target}: its leader, broker {look.leader}, does not respond")
    elif code:
        look.answer = broker_error(code, str(look.target))
    return bool(code)


def _ask_producers(client: WireClient, looks: Collection[_Look], patience: float) -> None:
    """The last sequence of ours that each leader remembers; None if it has forgotten us, or we never wrote there.

    A smaller epoch than ours belongs to an earlier copy that the emptied topic held, and does not count.
    """
    asked = [look for look in looks if look.stamp is not None and look.goal < 0]
    answers = client.describe_producers([look.target for look in asked], within=patience) if asked else {}
    for look in asked:
        answer = answers[look.target]
        if isinstance(answer, BrokerError):
            if not _refused(look, NETWORK_EXCEPTION if answer.code == NETWORK_EXCEPTION else 0):
                look.answer = answer
        elif look.stamp is not None:
            ours = (look.stamp.producer_id, look.stamp.producer_epoch)
            look.known = next((p.last_sequence for p in answer if (p.producer_id, p.producer_epoch) == ours), None)


def _ask_bounds(client: WireClient, looks: Collection[_Look], patience: float) -> None:
    starts, ends = (
        client.list_offsets(dict.fromkeys((look.target for look in looks), which), isolation=0, within=patience)
        for which in (EARLIEST_TIME, LATEST_TIME)
    )
    fresh = [look.target for look in looks if look.sparse is not None and look.goal < 0]
    goals = client.log_ends(fresh, within=patience) if fresh else {}
    for look in looks:
        goal = goals.get(look.target)
        if goal is not None and not _refused(look, goal.error):
            look.goal = goal.offset
        if look.answer is None:
            _begin(look, starts[look.target], ends[look.target])


def _begin(look: _Look, start: OffsetAnswer, end: OffsetAnswer) -> None:
    if _refused(look, start.error) or _refused(look, end.error):
        return
    target, first = look.target, look.position.target_next
    look.end = end.offset
    if end.offset < first:
        look.answer = target_truncated(target, end.offset, first)
    elif look.sparse is not None:
        _begin_shared(look, look.sparse, start.offset)
    elif start.offset > first:
        # Retention on the target was faster than this scan. The lane is the only writer, so the end offset counts.
        look.at, look.deleted = end.offset, True
    elif end.offset < look.at:
        look.at, look.filled = first, 0  # another leader: count again from the position


def _begin_shared(look: _Look, sparse: SharedTail, start: int) -> None:
    if look.idle:
        look.answer = sparse.tail(look.at)
    elif look.end < look.at:
        look.at = look.position.target_next  # another leader, as above
        look.sparse = SharedTail(look.target, look.position)
    look.at = max(look.at, start)


def _scan(client: WireClient, looks: Collection[_Look], patience: float) -> None:
    """Read up to the high watermarks; one request to each leader at a time, for all of its unfinished partitions."""
    unfinished = {look.target: look for look in looks if look.at < look.end}
    while unfinished:
        by_leader: dict[int, list[_Look]] = {}
        for look in unfinished.values():
            by_leader.setdefault(look.leader, []).append(look)
        moved: set[TopicPartition] = set()
        for leader, group in by_leader.items():
            moved |= _scan_some(client, leader, group, patience)
        moving = (unfinished[target] for target in moved)
        unfinished = {look.target: look for look in moving if look.answer is None and look.at < look.end}


def _scan_some(client: WireClient, leader: int, group: Collection[_Look], patience: float) -> set[TopicPartition]:
    """Read one answer of a leader; returns the partitions to ask about again: none if it brought none of them forward."""
    wants = {look.target: (look.at, TAIL_FETCH_BYTES) for look in group}
    try:
        connection = client.connection(leader, within=patience)
        connection.limit(min(connection.timeout, patience))
        answers = fetch(connection, wants, max_wait_ms=100, min_bytes=1, max_bytes=TAIL_FETCH_BYTES, isolation=0)
    except (BrokerError, ConnectionLost) as error:
        for look in group:
            look.answer = error
        return set()
    moved = [_take(look, answers[look.target]) for look in group]
    return {look.target for look in group} if any(moved) else set()


def _take(look: _Look, data: FetchedPartition) -> bool:
    """Take one partition's data; returns whether it brought the scan forward."""
    if _refused(look, data.error):
        return False
    before = look.at
    try:
        for _, header in headers(data.records):
            if header.next_offset > look.at:
                if look.sparse is not None:
                    look.sparse.see(header, look.stamp)
                elif header.is_control and header.producer_id == look.fillers:
                    look.filled += header.next_offset - max(header.base_offset, look.at)
                else:
                    _expect_ours(look, header)
                look.at = header.next_offset
    except TopicHalted as error:
        look.answer = error.halt
    except CorruptBatch as error:
        look.answer = unreadable(look.target, look.at, error, cluster="target")
    except Exception as error:  # noqa: BLE001 - an internal error over one partition: the others continue
        look.answer = internal(look.target, error)
    return look.at > before


def _expect_ours(look: _Look, header: BatchHeader) -> None:
    target, position, stamp = look.target, look.position, look.stamp
    ours = (stamp.producer_id, stamp.producer_epoch) if stamp is not None else None
    if header.is_control or (header.producer_id, header.producer_epoch) != ours:
        raise foreign_writer(target, header.base_offset).error()
    expected = (position.ordinal + header.base_offset - position.target_next - look.filled) & SEQUENCE_MASK
    if header.base_sequence != expected:
        raise sequence_gap(target, header.base_offset, header.base_sequence, expected).error()


def _reaches(tail: Tail, position: Position, known: int | None) -> bool:
    """Whether the tail includes our last sequence, as far as the leader remembers it."""
    if known is None:
        return True
    ahead = (known - (position.ordinal + tail.records - 1)) & SEQUENCE_MASK
    return not 0 < ahead <= SEQUENCE_MASK // 2


def _compare_ends(client: WireClient, looks: Collection[_Look], patience: float) -> None:
    """Accept tails that end where the leader's log ends now; in a shared topic, where it ended before the scan."""
    for look in looks:
        if look.sparse is not None and 0 <= look.goal <= look.at:
            look.answer = look.sparse.close(look.at, look.known)
    reached = [look for look in looks if look.sparse is None and _reaches(look.tail, look.position, look.known)]
    ends = client.log_ends([look.target for look in reached], within=patience) if reached else {}
    for look in reached:
        end = ends[look.target]
        if not _refused(look, end.error) and end.offset == look.at:
            look.answer = look.tail

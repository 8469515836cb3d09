"""Compare a partition with its copy by position, through the offset map: for compacted logs. Pure.

Compaction (KIP-58's cleaner) may remove records on either side at any time. A record missing on the source is no
difference. One missing on the target is none if a later record of its key is on either side, or if it is a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.offset_runs import Runs
from mirror_pipeline.kafka.records.batch import OpenRecord, Record, content
from mirror_pipeline.verify.align import AlignedSide, Alignment, between
from mirror_pipeline.verify.pieces import Candidate, Piece, Trace, contents, key_digest, trace


@dataclass(slots=True)
class Joined:
    """The outcome: what differs, and records whose key did not occur again on the target *within the compared range*."""

    alignment: Alignment
    unsettled: list[Trace] = field(default_factory=list)


@dataclass(slots=True)
class _Join:
    runs: Runs
    thin_source: bool
    thin_target: bool
    found: Alignment = field(default_factory=Alignment)
    lost: list[Record] = field(default_factory=list)
    more: list[Record] = field(default_factory=list)
    waiting: dict[bytes, list[Trace]] = field(default_factory=dict)

    def flush(self) -> None:
        if self.lost or self.more:
            self.found.candidates += between(self.lost, self.more)
            self.lost, self.more = [], []

    def gone_on_target(self, record: OpenRecord) -> None:
        full = content(record)
        if not self.thin_target or full.key is None:
            self.lost.append(full)
        elif full.value is not None:
            kept = trace(full)
            self.waiting.setdefault(kept.key, []).append(kept)
        else:  # a tombstone removes its key's earlier records, and later itself
            self.waiting.pop(key_digest(full.key), None)

    def seen_on_target(self, record: OpenRecord) -> None:
        if self.waiting and (key := content(record).key) is not None:
            self.waiting.pop(key_digest(key), None)

    def gone_on_source(self, record: OpenRecord, mapped: bool) -> None:
        if not (self.thin_source and mapped):
            self.more.append(content(record))


def join(
    source: Iterable[Piece],
    target: Iterable[Piece],
    runs: Runs,
    *,
    thin_source: bool,
    thin_target: bool,
    limit: int,
) -> Joined:
    """Match both streams by source offset.

    Args:
        source: batches of an offset range of one source partition.
        target: batches of the target range that the map gives for it.
        runs: the offset map of the range.
        thin_source: the source topic is compacted.
        thin_target: the target topic is.
        limit: stop at this many candidates.
    """
    left, right = AlignedSide(source), AlignedSide(target)
    state = _Join(runs, thin_source, thin_target)
    found = state.found
    while len(found.candidates) + len(state.lost) + len(state.more) < limit:
        if not left.pending and not right.pending and _skip(left, right, state):
            pass
        elif not (left.decode() | right.decode()):
            break
        else:
            _step(left, right, state)
    else:
        found.stopped = True
    state.flush()
    found.bytes = left.bytes
    return Joined(found, [kept for kepts in state.waiting.values() for kept in kepts])


def _skip(left: AlignedSide, right: AlignedSide, state: _Join) -> bool:
    a, b = left.peek(), right.peek()
    if state.waiting or a is None or b is None or state.runs.to_source(b.header.base_offset) != a.header.base_offset:
        return False
    if not a.same_bytes(b):
        return False
    left.take(a)
    right.take(b)
    state.found.records += a.header.records
    state.flush()
    return True


def _step(left: AlignedSide, right: AlignedSide, state: _Join) -> None:
    """Process the first record of both sides."""
    if not right.pending:
        state.gone_on_target(left.pending.popleft())
        state.found.records += 1
        return
    theirs = right.pending[0]
    place = state.runs.to_source(theirs.offset)
    if left.pending and place is not None and left.pending[0].offset < place:
        state.gone_on_target(left.pending.popleft())
        state.found.records += 1
        return
    right.pending.popleft()
    state.seen_on_target(theirs)
    if not left.pending or place is None or place < left.pending[0].offset:
        state.gone_on_source(theirs, place is not None)
        return
    ours = left.pending.popleft()
    state.found.records += 1
    if ours[1:3] == theirs[1:3] or contents(ours) == contents(theirs):
        state.flush()
    else:
        state.lost.append(content(ours))
        state.more.append(content(theirs))


def last_seen(source: Iterable[Piece], keys: Iterable[bytes]) -> dict[bytes, int]:
    """The last offset at which each of the key digests occurs in a stream; those that do not are left out."""
    wanted = set(keys)
    last: dict[bytes, int] = {}
    for piece in source:
        for record in piece.opened():
            key = content(record).key
            if key is not None and (mark := key_digest(key)) in wanted:
                last[mark] = record.offset
    return last


def keys_seen(target: Iterable[Piece], keys: Iterable[bytes]) -> set[bytes]:
    """Which of the key digests occur in a stream."""
    left = set(keys)
    seen: set[bytes] = set()
    for piece in target:
        for record in piece.opened():
            key = content(record).key
            if key is not None and (mark := key_digest(key)) in left:
                seen.add(mark)
        if len(seen) == len(left):
            break
    return seen


def compare_latest(source: Iterable[Piece], target: Iterable[Piece], *, limit: int) -> Alignment:
    """Compare what a reader knows after reading each log to its end: the last record of each key.

    A key whose last record is a tombstone may be gone on the other side. Memory grows with the number of keys, about
    300 bytes for each on each side.

    Args:
        source: batches of one partition.
        target: batches of the other.
        limit: stop at this many differing keys.
    """
    found = Alignment()
    ours, theirs = _latest(source, found), _latest(target, None)
    for key in ours.keys() | theirs.keys():
        mine, other = ours.get(key), theirs.get(key)
        if mine is not None and other is not None and mine.digest == other.digest:
            continue
        if (mine is None or other is None) and (mine or other or _NOBODY).tombstone:
            continue
        detail = "the key's last record differs" if mine and other else ""
        found.candidates.append(Candidate(mine, other, detail))
        if len(found.candidates) >= limit:
            found.stopped = True
            break
    found.candidates.sort(key=lambda c: (c.source or c.target or _NOBODY).offset)
    return found


_NOBODY = Trace(0, 0, b"")


def _latest(pieces: Iterable[Piece], count: Alignment | None) -> dict[bytes, Trace]:
    last: dict[bytes, Trace] = {}
    for piece in pieces:
        records = piece.opened()
        for record in records:
            kept = trace(content(record))
            last[kept.key or kept.digest] = kept
        if count is not None:
            count.records += len(records)
            count.bytes += piece.header.size
    return last

"""Comparing two compacted logs that no offset map connects: the last record of each key is what counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mirror_pipeline.kafka.records.batch import content
from mirror_pipeline.verify.align import Alignment
from mirror_pipeline.verify.pieces import Candidate, Piece, Trace, trace


def compare_latest(source: Iterable[Piece], target: Iterable[Piece], *, limit: int) -> Alignment:
    """Compare what a reader would know after reading each log to its end.

    A key whose last record is a tombstone may be gone on the other side. Memory grows with the number of keys, about
    300 bytes for each on each side.

    Args:
        source: batches of one partition.
        target: batches of the other.
        limit: stop at so many differing keys.
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

"""What each unmatched record is: missing, extra, altered, a duplicate, or out of order. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mirror_pipeline.verify.pieces import Candidate, Trace

FINDING_KINDS = ("missing", "extra", "altered", "duplicate", "order")


@dataclass(frozen=True, slots=True)
class RecordFinding:
    """One difference inside a partition; offsets are None where that side has no such record."""

    kind: str
    source_offset: int | None
    target_offset: int | None
    detail: str = ""


def surplus(candidates: Iterable[Candidate]) -> list[Trace]:
    """The surplus records on the target; only a search of the whole source shows whether they are foreign."""
    return [candidate.target for candidate in candidates if candidate.target is not None]


def classify(candidates: Sequence[Candidate], known: Collection[bytes]) -> list[RecordFinding]:
    """The kind of each candidate, in log order.

    A record that is missing in one place and surplus in another has moved, because everything else is equal on both sides.

    Args:
        candidates: all of one partition, in order.
        known: digests of those surplus records that occur on the source at all.
    """
    lost = Counter(c.source.digest for c in candidates if c.source)
    more = Counter(c.target.digest for c in candidates if c.target)
    moves = {mark: min(count, more[mark]) for mark, count in lost.items() if more[mark]}
    findings: list[RecordFinding] = []
    from_places: dict[bytes, deque[int]] = {}
    to_places: dict[bytes, deque[int]] = {}
    for candidate in candidates:
        ours, theirs = candidate.source, candidate.target
        if ours and theirs and ours.digest not in moves and theirs.digest not in moves and theirs.digest not in known:
            findings.append(RecordFinding("altered", ours.offset, theirs.offset, candidate.detail))
            continue
        if ours and not _moves(from_places, moves, ours):
            findings.append(RecordFinding("missing", ours.offset, None))
        if theirs and not _moves(to_places, moves, theirs):
            findings.append(RecordFinding("duplicate" if theirs.digest in known else "extra", None, theirs.offset))
    for mark, places in from_places.items():
        findings += [RecordFinding("order", a, b) for a, b in zip(places, to_places[mark], strict=True)]
    return sorted(findings, key=_place)


def _moves(places: dict[bytes, deque[int]], moves: dict[bytes, int], record: Trace) -> bool:
    """Whether a moved record came from or went to this place; surplus ones come last."""
    known = places.setdefault(record.digest, deque())
    if len(known) >= moves.get(record.digest, 0):
        if not known:
            del places[record.digest]
        return False
    known.append(record.offset)
    return True


def _place(finding: RecordFinding) -> tuple[int, int]:
    source = finding.source_offset
    target = finding.target_offset
    return (source if source is not None else target or 0, target or 0)

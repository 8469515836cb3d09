"""What each unmatched record is: missing, extra, altered, a duplicate, or out of order. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mirror_pipeline.local.compare_align import Alignment, Candidate, Piece, Trace, count_digests

KINDS = ("missing", "extra", "altered", "duplicate", "order")


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference inside a partition; offsets are None where that side has no such record."""

    kind: str
    source_offset: int | None
    target_offset: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What comparing one partition found."""

    records: int
    bytes: int
    differences: tuple[Finding, ...]


@dataclass(slots=True)
class _Book:
    """Differences found so far, and moved records seen on one side, waiting for their other half."""

    findings: list[Finding] = field(default_factory=list)
    moved_from: dict[bytes, int] = field(default_factory=dict)
    moved_to: dict[bytes, int] = field(default_factory=dict)


def judge(alignment: Alignment, source: Callable[[], Iterable[Piece]], target: Callable[[], Iterable[Piece]], *, limit: int) -> Found:
    """Turn candidates into differences; both streams are read once more when there are any.

    Args:
        alignment: outcome of pass one.
        source: opens the source stream anew.
        target: opens the target stream anew.
        limit: at most so many differences are returned, ordered as they lie in the log.
    """
    if not alignment.candidates:
        return Found(alignment.records, alignment.bytes, ())
    candidates = alignment.candidates[: limit * 2]
    wanted = [t for c in candidates for t in (c.source, c.target) if t is not None]
    here, there = count_digests(source(), wanted), count_digests(target(), wanted)
    findings = classify(candidates, here, there, stopped=alignment.stopped)
    return Found(alignment.records, alignment.bytes, tuple(findings[:limit]))


def classify(candidates: Iterable[Candidate], here: Counter[bytes], there: Counter[bytes], *, stopped: bool) -> list[Finding]:
    """The kind of each candidate, from how often it occurs on the source (``here``) and on the target (``there``)."""
    book = _Book()
    for candidate in candidates:
        lost, more = candidate.source, candidate.target
        if lost and more and there[lost.digest] < here[lost.digest] and not here[more.digest]:
            book.findings.append(Finding("altered", lost.offset, more.offset, candidate.detail))
            continue
        if lost:
            _lost(book, lost, here, there)
        if more:
            _more(book, more, here, there)
    _moved(book, stopped)
    return sorted(book.findings, key=_place)


def _lost(book: _Book, record: Trace, here: Counter[bytes], there: Counter[bytes]) -> None:
    if there[record.digest] < here[record.digest]:
        book.findings.append(Finding("missing", record.offset, None))
    else:
        book.moved_from.setdefault(record.digest, record.offset)


def _more(book: _Book, record: Trace, here: Counter[bytes], there: Counter[bytes]) -> None:
    if not here[record.digest]:
        book.findings.append(Finding("extra", None, record.offset))
    elif there[record.digest] > here[record.digest]:
        book.findings.append(Finding("duplicate", None, record.offset))
    else:
        book.moved_to.setdefault(record.digest, record.offset)


def _moved(book: _Book, stopped: bool) -> None:
    """A record seen missing at one place and extra at another was moved.

    When pass one ended early the other half may simply not have been reached; then half a move says nothing, unless
    it is all there is.
    """
    whole = [Finding("order", at, book.moved_to[mark]) for mark, at in book.moved_from.items() if mark in book.moved_to]
    halves = [Finding("order", at, None) for mark, at in book.moved_from.items() if mark not in book.moved_to]
    halves += [Finding("order", None, at) for mark, at in book.moved_to.items() if mark not in book.moved_from]
    book.findings += whole
    if not stopped or not book.findings:
        book.findings += halves


def _place(finding: Finding) -> tuple[int, int]:
    source = finding.source_offset
    target = finding.target_offset
    return (source if source is not None else target or 0, target or 0)

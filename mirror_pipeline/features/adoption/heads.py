"""Where the comparison of a copy with its source begins, when one of the two logs has lost its beginning.

Retention deletes the beginning of either log, a mirror may have started late, and a proof may leave out all but the last records. The
first records of one side are then searched on the other. They must be there once: records that repeat show no place.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.kafka.records.batch import OpenRecord
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.text import count
from mirror_pipeline.verify.compare import OffsetRange, PairTask
from mirror_pipeline.verify.pieces import Contents, Piece, contents
from mirror_pipeline.verify.record_tasks import source_pieces, target_pieces

# Records that must follow each other on both sides to count as the same place.
WINDOW = 64
# A second place is searched for among this many records after the first: equal records also have equal timestamps, so they are near.
NEAR_BYTES = 32_768
MEANT = "only a copy whose place in the source is certain is adopted: copy the topic afresh, under another name or after deleting it"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What may be missing at the beginning: ``late`` of the target (the mirror began later, or the proof leaves it out)."""

    source: WireClient
    target: WireClient
    late: bool


def with_common_start(task: PairTask, begin: Beginning) -> PairTask:
    """The task, narrowed to where both logs hold the same records.

    Raises:
        ProblemFound: no such place, several, or one that leaves out records which the target must have.
    """
    if not (task.ours[0] or task.theirs[0] or begin.late):
        return task
    first = _first_records(_target(task, task.theirs))
    if not first and task.theirs[0]:
        raise ProblemFound(f"{task.target}: the target has deleted all its records: nothing shows where its copy ends", hint=MEANT)
    at = _place(task.source, _source(task, _since(begin.source, task, first, ours=True)), first)
    if at is not None:
        return replace(task, ours=(_checked(task, begin, at), task.ours[1]))
    if not task.ours[0] and begin.late:
        raise ProblemFound(
            f"{task.target}: the records from offset {count(task.theirs[0])} on, where the comparison begins, do not follow each other"
            f" on the source ({task.source})", hint=MEANT,
        )  # fmt: skip
    if not task.ours[0]:
        return task  # the comparison names what differs
    first = _first_records(_source(task, task.ours))
    at = _place(task.target, _target(task, _since(begin.target, task, first, ours=False)), first, cut=True)
    if at is None:
        raise ProblemFound(
            f"{task.source}: the source's log starts at offset {count(task.ours[0])}, and its first records are not on the target"
            f" ({task.target}): records between the two may be lost", hint=MEANT,
        )  # fmt: skip
    return replace(task, theirs=(at, task.theirs[1]))


def _checked(task: PairTask, begin: Beginning, at: int) -> int:
    """The source offset of the target's first record, if the records before it may be missing."""
    with closing(_records(_source(task, (task.ours[0], at)))) as records:
        earlier = next((record.offset for record in records), None)
    if earlier is None:
        return task.ours[0]
    if not (task.theirs[0] or begin.late):
        raise ProblemFound(
            f"{task.target}: the target begins with the source's record {count(at)}; those from {count(earlier)} on are missing",
            hint=MEANT,
        )
    return at


def _since(client: WireClient, task: PairTask, first: Sequence[Contents], *, ours: bool) -> OffsetRange:
    """The part of a log in which a record of that time may be: from the first one at or after it."""
    tp, log = (task.source, task.ours) if ours else (task.target, task.theirs)
    if not first or first[0][0] <= 0 or task.terms.timeless:
        return log
    offset = offsets_at(client, [tp], first[0][0])[tp]
    return (max(log[0], offset) if offset >= 0 else log[1]), log[1]


def _place(tp: TopicPartition, pieces: Iterable[Piece], window: Sequence[Contents], *, cut: bool = False) -> int | None:
    """The one offset from which on a log holds the records of ``window``; None if there is none. Arguments as for :func:`places`."""
    with closing(_records(pieces)) as records:
        found = places(records, window, cut=cut)
    if len(found) > 1:
        raise ProblemFound(
            f"{tp}: the {count(len(window))} records at which the copy begins are there twice, at offsets"
            f" {count(found[0])} and {count(found[1])}", hint=MEANT,
        )  # fmt: skip
    return found[0] if found else None


def places(records: Iterable[OpenRecord], window: Sequence[Contents], *, cut: bool) -> list[int]:
    """At most two offsets from which on a log holds the records of ``window``; ``cut``: or the first of them, at its end. Pure."""
    found: list[int] = []
    begun: list[tuple[int, int]] = []
    limit: int | None = None
    for number, record in enumerate(records if window else ()):
        if limit is not None and number > limit:
            return found
        same = contents(record)
        begun = [(at, length + 1) for at, length in [*begun, (record.offset, 0)] if window[length] == same]
        done = [at for at, length in begun if length == len(window)]
        begun = [(at, length) for at, length in begun if length < len(window)]
        found += done
        if done and limit is None:
            limit = number + NEAR_BYTES
        if len(found) > 1:
            return found[:2]
    return [*found, *(at for at, _ in begun if cut)][:2]


def _first_records(pieces: Iterable[Piece]) -> list[Contents]:
    with closing(_records(pieces)) as records:
        return [contents(record) for record in islice(records, WINDOW)]


def _records(pieces: Iterable[Piece]) -> Generator[OpenRecord, None, None]:
    for piece in pieces:
        yield from piece.opened()


def _source(task: PairTask, log: OffsetRange) -> Iterable[Piece]:
    return source_pieces(task.left, task.source, *log, task.terms, task.timeout, strict=True)


def _target(task: PairTask, log: OffsetRange) -> Iterable[Piece]:
    return target_pieces(task.right, task.target, *log, task.terms, task.timeout, strict=True)

"""Tasks that compare an offset range of a partition record by record, because its digests differ. Run in Spark workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.kafka.records.header import headers
from mirror_pipeline.model import SpanRef, TopicPartition
from mirror_pipeline.verify.align import Alignment, align, find_digests
from mirror_pipeline.verify.fold_tasks import SOURCE_LINE, TARGET_LINE, Chunk
from mirror_pipeline.verify.log_walk import READ_COMMITTED, READ_UNCOMMITTED, read_log
from mirror_pipeline.verify.pieces import Piece, Trace
from mirror_pipeline.verify.positional import join, keys_seen, last_seen


@dataclass(frozen=True, slots=True)
class Terms:
    """How two topics are to be compared.

    ``thin_source`` and ``thin_target``: compaction removes records there. ``timeless``: the target sets record timestamps
    itself. ``ends_deleted``: the target's retention deletes old records.
    """

    thin_source: bool = False
    thin_target: bool = False
    timeless: bool = False
    ends_deleted: bool = True

    @property
    def positional(self) -> bool:
        """Compare by position: records may be missing anywhere in the log."""
        return self.thin_source or self.thin_target


@dataclass(frozen=True, slots=True)
class StagedSource:
    """The buffer in place of the source's log."""

    store: LaneStore
    spans: tuple[SpanRef, ...]


@dataclass(frozen=True, slots=True)
class DeepTask:
    """A chunk whose digests differ; ``left`` is the source cluster or the buffer; ``gaps`` are skipped source offsets."""

    left: ClusterSettings | StagedSource
    right: ClusterSettings
    chunk: Chunk
    terms: Terms
    limit: int
    timeout: float
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class DeepResult:
    """What could not be matched in one chunk; ``unsettled`` are records whose keys may occur again after it on the target."""

    chunk: Chunk
    alignment: Alignment = field(default_factory=Alignment)
    unsettled: list[Trace] = field(default_factory=list)
    unreadable: str = ""


def run_deep(task: DeepTask) -> DeepResult:
    """Compare one chunk record by record. An error of a cluster or a log is part of the answer."""
    result = DeepResult(task.chunk)
    try:
        _compare(task, result)
    except MirrorError as error:
        worker_cache.forget(task.right)
        result.unreadable = str(error)
    return result


def _compare(task: DeepTask, result: DeepResult) -> None:
    chunk, terms = task.chunk, task.terms
    source = without(source_pieces(task.left, chunk.source, chunk.start, chunk.end, terms, task.timeout), task.gaps)
    low, high = chunk.target_start, chunk.runs.target_end
    pieces = target_pieces(task.right, chunk.target, low, high, terms, task.timeout)
    target = (piece for piece in pieces if chunk.counts(piece.header))
    if not terms.positional:
        result.alignment = align(source, target, limit=task.limit)
        return
    joined = join(
        source, target, chunk.runs, thin_source=terms.thin_source, thin_target=terms.thin_target, limit=task.limit
    )
    result.alignment, result.unsettled = joined.alignment, joined.unsettled


def without(pieces: Iterable[Piece], gaps: tuple[tuple[int, int], ...]) -> Iterator[Piece]:
    """The pieces, less the records in ``gaps``."""
    for piece in pieces:
        inside = tuple(gap for gap in gaps if gap[0] < piece.header.next_offset and piece.header.base_offset < gap[1])
        yield replace(piece, without=inside) if inside else piece


def source_pieces(
    left: ClusterSettings | StagedSource, tp: TopicPartition, start: int, end: int, terms: Terms, timeout: float, *, strict: bool = False
) -> Iterator[Piece]:
    """The batches with committed data of the source, or those the buffer holds of it; ``strict``: deletion meanwhile is an error."""
    if isinstance(left, StagedSource):
        return _staged_pieces(left, start, end, terms.timeless)
    client = worker_cache.client_of(left, timeout=timeout)
    return read_log(
        client, tp, start, end, isolation=READ_COMMITTED, line=SOURCE_LINE, deleted=None if strict else _ignore, timeless=terms.timeless
    )


def target_pieces(
    right: ClusterSettings, tp: TopicPartition, low: int, high: int, terms: Terms, timeout: float, *, strict: bool = False
) -> Iterator[Piece]:
    """The batches with data of the target, whatever transaction they belong to; ``strict`` as for :func:`source_pieces`."""
    client = worker_cache.client_of(right, timeout=timeout)
    return read_log(
        client, tp, low, high, isolation=READ_UNCOMMITTED, line=TARGET_LINE, deleted=None if strict else _ignore, timeless=terms.timeless
    )


def _ignore(start: int) -> None:
    """Records deleted meanwhile are missing on that side; the driver checks the log starts."""


def _staged_pieces(left: StagedSource, start: int, end: int, timeless: bool) -> Iterator[Piece]:
    with SpanReader(left.store) as reader:
        for span in left.spans:
            if not span.bytes or span.end <= start or span.start >= end:
                continue
            payload = reader.payload(span)
            for at, header in headers(payload):
                if header.next_offset > start and header.base_offset < end:
                    yield Piece(header, payload[at : at + header.size], start, end, timeless)


@dataclass(frozen=True, slots=True)
class LookTask:
    """Source offsets to search for surplus records, and the target offset from which to search for keys; either may be empty.

    Keys are searched for up to the target's end at that time: the cleaner removes a record once its key has a later one,
    and records keep arriving during a verification.
    """

    left: ClusterSettings | StagedSource
    right: ClusterSettings
    source: TopicPartition
    target: TopicPartition
    source_range: tuple[int, int]
    target_start: int
    surplus: tuple[Trace, ...]
    keys: tuple[bytes, ...]
    terms: Terms
    timeout: float


@dataclass(frozen=True, slots=True)
class LookResult:
    """Digests of surplus records that occur on the source, digests of keys that occur on the target, and for
    the other keys the source offset at which they occur last: their last record may be a tombstone that is gone as well."""

    source: TopicPartition
    known: frozenset[bytes]
    keys: frozenset[bytes]
    last: Mapping[bytes, int] = field(default_factory=dict)

    def excuses(self, record: Trace) -> bool:
        """Whether compaction may have removed a source record."""
        return record.key in self.keys or self.last.get(record.key, -1) > record.offset


def run_look(task: LookTask) -> LookResult:
    """Search a partition for the records that decide what a difference is."""
    read = partial(source_pieces, task.left, task.source, *task.source_range, task.terms, task.timeout)
    known = find_digests(read(), task.surplus) if task.surplus else set()
    if not task.keys:
        return LookResult(task.source, frozenset(known), frozenset())
    client = worker_cache.client_of(task.right, timeout=task.timeout)
    end = offsets_at(client, [task.target], LATEST_TIME, isolation=0)[task.target]
    seen = keys_seen(target_pieces(task.right, task.target, task.target_start, end, task.terms, task.timeout), task.keys)
    others = set(task.keys) - seen
    return LookResult(task.source, frozenset(known), frozenset(seen), last_seen(read(), others) if others else {})

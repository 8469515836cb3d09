"""Tasks that fold an offset range of a partition into leaf digests: of both logs, or of the target's alone. Run in Spark workers."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.offset_runs import Runs
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.kafka.records.batch import BatchHeader
from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS, LeafSums
from mirror_pipeline.kafka.records.header import check
from mirror_pipeline.model import LeafDigest, TopicPartition
from mirror_pipeline.verify.log_walk import READ_COMMITTED, READ_UNCOMMITTED, LogWalk, read_log
from mirror_pipeline.verify.merged_batches import Extents, Matching
from mirror_pipeline.verify.tree import stretches

SOURCE_LINE, TARGET_LINE = 0, 1
"""Connections: source and target may be one cluster, and two walks cannot share a connection."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Source offsets ``[start, end)`` of one partition, and their target offsets by the offset map.

    A batch belongs to the chunk that holds its base offset; to the ``first`` chunk of a partition also when it begins before.
    ``ours``: the producer ids whose batches count on the target, where others write too; without any all count, and so do all below
    target offset ``ours_from``, which was adopted.
    """

    source: TopicPartition
    target: TopicPartition
    start: int
    end: int
    runs: Runs
    first: bool = False
    ours: frozenset[int] = frozenset()
    ours_from: int = 0

    def counts(self, header: BatchHeader) -> bool:
        """Whether a batch of the target is the mirror's own."""
        return not self.ours or header.producer_id in self.ours or header.base_offset < self.ours_from

    @property
    def target_start(self) -> int:
        """First target offset of the chunk."""
        return self.runs.to_target(self.start)

    def cut(self, start: int, end: int) -> Chunk:
        """The part of the chunk between two source offsets."""
        first = self.first and start == self.start
        return Chunk(self.source, self.target, start, end, self.runs.slice(start, end), first, self.ours, self.ours_from)


@dataclass(frozen=True, slots=True)
class FoldTask:
    """One chunk to fold; ``left`` is None when only the target is read. After ``budget`` bytes it ends at the next leaf."""

    left: ClusterSettings | None
    right: ClusterSettings
    chunk: Chunk
    budget: int
    timeout: float


@dataclass(slots=True)
class FoldResult:
    """Leaf digests of both sides up to source offset ``end``; bytes read on the source, or of the target if only that was read.

    ``source_start`` and ``target_start`` are log starts seen during the fold: records below them were deleted meanwhile.
    ``unreadable`` says why the chunk could not be read to its end.
    """

    chunk: Chunk
    end: int
    left: tuple[LeafDigest, ...] = ()
    right: tuple[LeafDigest, ...] = ()
    bytes: int = 0
    source_start: int = 0
    target_start: int = 0
    seconds: float = 0.0
    unreadable: str = ""


@dataclass(slots=True)
class _FoldedSides:
    ours: LeafSums = field(default_factory=LeafSums)
    theirs: LeafSums = field(default_factory=LeafSums)
    extents: Extents = field(default_factory=deque)
    bytes: int = 0


def run_fold(task: FoldTask) -> FoldResult:
    """Fold one chunk. A cluster or log error is part of the answer; the other chunks continue."""
    began = time.monotonic()
    result = FoldResult(task.chunk, task.chunk.end)
    try:
        _fold(task, result)
    except MirrorError as error:
        worker_cache.forget(task.right)
        if task.left is not None:
            worker_cache.forget(task.left)
        result.unreadable = str(error)
    result.seconds = time.monotonic() - began
    return result


def _fold(task: FoldTask, result: FoldResult) -> None:
    chunk, sides = task.chunk, _FoldedSides()

    def source_deleted(start: int) -> None:
        result.source_start = start

    def target_deleted(start: int) -> None:
        result.target_start = start

    right = LogWalk(
        worker_cache.client_of(task.right, timeout=task.timeout), chunk.target, chunk.target_start, chunk.runs.target_end,
        isolation=READ_UNCOMMITTED, line=TARGET_LINE, deleted=target_deleted,
    )  # fmt: skip
    target = _fold_target(right, chunk, sides)
    left = None
    if task.left is not None:
        client = worker_cache.client_of(task.left, timeout=task.timeout)
        left = LogWalk(
            client, chunk.source, chunk.start, chunk.end, isolation=READ_COMMITTED, line=SOURCE_LINE, deleted=source_deleted
        )
        left.ask()
    right.ask()
    try:
        if left is not None:
            for _ in _fold_source(left, chunk, sides, target):
                if sides.bytes >= task.budget and result.end == chunk.end:
                    _end_early(left, right, chunk, result)
        for _ in target:
            pass
    finally:
        for walk in (left, right):
            if walk is not None:
                walk.close()
    below = -(-result.end // LEAF_OFFSETS) if result.end < chunk.end else None
    result.left = _below(sides.ours, below)
    result.right = _below(sides.theirs, below)
    result.bytes = sides.bytes


def _end_early(left: LogWalk, right: LogWalk, chunk: Chunk, result: FoldResult) -> None:
    """End the task within its budget: both sides stop at the next leaf boundary."""
    border = -(-left.position // LEAF_OFFSETS) * LEAF_OFFSETS
    if border < chunk.end:
        result.end = left.end = border
        right.end = min(right.end, chunk.runs.to_target(border))


def _below(sums: LeafSums, leaf: int | None) -> tuple[LeafDigest, ...]:
    return tuple(digest for digest in sums.digests() if leaf is None or digest.leaf < leaf)


def _fold_source(walk: LogWalk, chunk: Chunk, sides: _FoldedSides, target: Iterator[bool]) -> Iterator[bool]:
    """Fold the batches whose base offset is in the chunk, one step per answer; reads as much of the target as that needs."""
    matching = Matching(sides.ours, sides.extents, target)
    start, add = chunk.start, matching.add
    while (answer := walk.read()) is not None:
        records, plain, hides = answer.records, answer.plain, answer.aborted.hides
        for at, header in answer.batches:
            if header.base_offset >= walk.end:
                break
            check(records, at, header)
            batch = records[at : at + header.size]
            # `hides` must see every batch: it learns from markers.
            if (plain or not hides(header, batch)) and header.records:
                if header.base_offset < walk.floor and header.base_offset >= start:
                    sides.ours.spoil(header.base_offset, header.records)
                elif header.base_offset >= start:
                    add(header, batch)
                    sides.bytes += header.size
                elif chunk.first and header.next_offset > start:  # only the end of it was copied, as another batch
                    sides.ours.spoil(start, chunk.runs.records(start, header.next_offset))
        yield True
    matching.close()


def _fold_target(walk: LogWalk, chunk: Chunk, sides: _FoldedSides) -> Iterator[bool]:
    """The same on the target; each batch counts under the source offset that the map gives it."""
    low, add, to_source = chunk.target_start, sides.theirs.add, chunk.runs.to_source
    last = chunk.start
    while (answer := walk.read()) is not None:
        records = answer.records
        for at, header in answer.batches:
            base = header.base_offset
            if base >= walk.end:
                break
            if base < low:
                continue
            check(records, at, header)
            if header.attributes & 0x20 or not header.records or not chunk.counts(header):
                continue
            place = to_source(base)
            if place is None or base < walk.floor:  # foreign or half deleted: records are compared here
                sides.theirs.spoil(last if place is None else place, 0)
                continue
            last = place
            add(header, records[at : at + header.size], place)
            sides.extents.append((place, place + header.records))
        yield True


@dataclass(frozen=True, slots=True)
class TailTask:
    """Target offsets ``[start, end)`` of one partition, and the producer ids of the mirror's lanes."""

    cluster: ClusterSettings
    source: TopicPartition
    target: TopicPartition
    start: int
    end: int
    ours: frozenset[int]
    limit: int
    timeout: float


def run_tail(task: TailTask) -> tuple[TopicPartition, list[int]]:
    """Target offsets of records that other producers wrote, at most ``limit``."""
    client = worker_cache.client_of(task.cluster, timeout=task.timeout)
    found: list[int] = []
    pieces = read_log(
        client, task.target, task.start, task.end, isolation=READ_UNCOMMITTED, line=TARGET_LINE, deleted=lambda _: None
    )
    for piece in pieces:
        if piece.header.producer_id not in task.ours:
            found += [record.offset for record in piece.opened()]
        if len(found) >= task.limit:
            break
    return task.source, found[: task.limit]


PARTS_PER_SLOT = 4
"""Initial chunks per task slot: small enough that the last ones to end do not run alone for long."""
SAMPLE_LEAVES = 4
DEEP_LEAVES = 16
"""Adjacent leaves that one task compares record by record."""


def borders(start: int, end: int, leaves: int) -> list[int]:
    """``start``, ``end``, and between them a boundary every ``leaves`` leaves."""
    step = leaves * LEAF_OFFSETS
    return [start, *range((start // step + 1) * step, end, step), end] if start < end else []


def split(chunk: Chunk, leaves: int) -> list[Chunk]:
    """The chunk in parts of this many leaves, cut at leaf boundaries."""
    edges = borders(chunk.start, chunk.end, max(1, leaves))
    if len(edges) == 2:
        return [chunk]
    return [chunk.cut(first, end) for first, end in zip(edges, edges[1:], strict=False)]


def plan_chunks(wholes: Sequence[Chunk], *, slots: int) -> list[Chunk]:
    """Cut whole partitions so that every slot has work, the largest first."""
    offsets = sum(chunk.end - chunk.start for chunk in wholes)
    leaves = offsets // (LEAF_OFFSETS * max(1, slots * PARTS_PER_SLOT))
    parts = [part for chunk in wholes for part in split(chunk, leaves)]
    return sorted(parts, key=lambda part: part.start - part.end)


def sample(wholes: Sequence[Chunk], fraction: float, chance: random.Random) -> list[Chunk]:
    """That fraction of the leaves of every partition, at random; at least one part of each that has any."""
    chosen: list[Chunk] = []
    for chunk in wholes:
        parts = split(chunk, SAMPLE_LEAVES)
        if chunk.start < chunk.end:
            chosen += chance.sample(parts, max(1, round(len(parts) * fraction)))
    return chosen


def deep_chunks(whole: Chunk, leaves: Iterable[int]) -> list[Chunk]:
    """Parts of a partition to compare record by record: adjacent leaves together, up to ``DEEP_LEAVES``."""
    found = []
    for first, end in stretches(leaves):
        low, high = max(whole.start, first * LEAF_OFFSETS), min(whole.end, end * LEAF_OFFSETS)
        if low < high:
            found += split(whole.cut(low, high), DEEP_LEAVES)
    return found

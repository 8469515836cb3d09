"""Compare topics with topics, record by record, with no ledger and independently of the engine that copied them.

Both logs are read raw. Source records are those a read_committed consumer sees; target records those a
read_uncommitted consumer sees, because that is what the mirror promises. ``compare_pairs`` is the one comparer:
``compare_topics`` runs it in this process and without exceptions for compaction, ``verify --external`` also on Spark
and by the topics' settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mirror_pipeline.buffer.ledger.offset_runs import Runs
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.execution.runner import InlineRunner, Runner
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verdicts import DIFFERENT, IDENTICAL, UNREADABLE, Difference
from mirror_pipeline.verify.align import align
from mirror_pipeline.verify.fold_tasks import Chunk
from mirror_pipeline.verify.jobs import run_each
from mirror_pipeline.verify.log_walk import READ_COMMITTED, READ_UNCOMMITTED
from mirror_pipeline.verify.pieces import Piece
from mirror_pipeline.verify.positional import compare_latest
from mirror_pipeline.verify.prefix import NotedPieces, matched_runs
from mirror_pipeline.verify.record_tasks import DeepResult, Terms, source_pieces, target_pieces
from mirror_pipeline.verify.settle import Settled, Whole, settle

# The first differences show what is wrong; a partition with more is not compared to its end.
DIFFERENCES_PER_PARTITION = 50
TASK_BYTES = 128 << 20

Offsets = Mapping[TopicPartition, int]
OffsetRange = tuple[int, int]
ProgressCallback = Callable[[str, int, int, int], None]


@dataclass(frozen=True, slots=True)
class PairTask:
    """Offsets of one source partition and of one target partition that must hold the same records.

    With ``strict`` records that are deleted during the comparison make the pair unreadable; without, they are missing. With ``prefix``
    the target need only hold the beginning of the source's, and the offset map of what matched is kept.
    """

    left: ClusterSettings
    right: ClusterSettings
    source: TopicPartition
    target: TopicPartition
    ours: OffsetRange
    theirs: OffsetRange
    terms: Terms
    limit: int
    timeout: float
    strict: bool = False
    prefix: bool = False


@dataclass(slots=True)
class ComparedPair:
    """A pair of partitions and what has been compared of it so far; ``settled`` is set at the end.

    With ``prefix``: ``runs`` is the offset map of what matched, ``beyond`` the first source offset after the target's end.
    """

    task: PairTask
    records: int = 0
    bytes: int = 0
    settled: Settled = field(default_factory=Settled)
    runs: Runs = field(default_factory=Runs)
    beyond: int | None = None

    @property
    def source_next(self) -> int:
        """With ``prefix``, the next source offset to copy."""
        return self.task.ours[1] if self.beyond is None else self.beyond


@dataclass(frozen=True, slots=True)
class PairStep:
    """What one task has added to the comparison of a pair."""

    offsets: int
    records: int
    bytes: int


def pair_tasks(
    source: WireClient, target: WireClient, topics: tuple[str, str], counts: tuple[int, int], terms: Terms, *,
    limit: int, strict: bool = False,
) -> list[PairTask]:  # fmt: skip
    """One task for each partition of two topics, over all that both logs hold now.

    A partition that one side lacks counts as empty there, so every record of the other is a difference.
    """
    ours = log_range(source, [TopicPartition(topics[0], n) for n in range(counts[0])], isolation=READ_COMMITTED)
    theirs = log_range(target, [TopicPartition(topics[1], n) for n in range(counts[1])], isolation=READ_UNCOMMITTED)
    pairs = [(TopicPartition(topics[0], n), TopicPartition(topics[1], n)) for n in range(max(counts))]
    return [
        PairTask(
            source.cluster, target.cluster, left, right, ours.get(left, (0, 0)), theirs.get(right, (0, 0)), terms, limit, source.timeout,
            strict,
        )
        for left, right in pairs
    ]  # fmt: skip


def run_pair(task: PairTask) -> tuple[PairTask, DeepResult, PairTask | None]:
    """Align both streams up to ``TASK_BYTES``; the rest is returned as the next task."""
    result = DeepResult(Chunk(task.source, task.target, task.ours[0], task.ours[1], Runs()))
    following = None
    try:
        source, target = _streams(task)
        if task.prefix:
            result = _run_prefix(task, source, target)
        elif task.terms.positional:
            result.alignment = compare_latest(source, target, limit=task.limit)
        else:
            result.alignment = align(source, target, limit=task.limit, budget=TASK_BYTES)
        if result.alignment.resume is not None:
            ours, theirs = (max(*pair) for pair in zip(result.alignment.resume, (task.ours[0], task.theirs[0]), strict=True))
            left = task.limit - len(result.alignment.candidates)
            following = replace(task, ours=(ours, task.ours[1]), theirs=(theirs, task.theirs[1]), limit=left)
    except MirrorError as error:
        worker_cache.forget(task.left)
        worker_cache.forget(task.right)
        result.unreadable = str(error)
    return task, result, following


def _run_prefix(task: PairTask, source: Iterator[Piece], target: Iterator[Piece]) -> DeepResult:
    """Align the target with the source's beginning; the offset map is in the result's chunk."""
    ours, theirs = NotedPieces(source), NotedPieces(target)
    found = align(ours, theirs, limit=task.limit, budget=TASK_BYTES, prefix=True)
    source_end = task.ours[1] if found.beyond is None else found.beyond
    ends = found.resume or (source_end, task.theirs[1])
    runs = Runs() if found.stopped else matched_runs(ours, theirs, found, ends)
    return DeepResult(Chunk(task.source, task.target, task.ours[0], ends[0], runs), found)


def _streams(task: PairTask) -> tuple[Iterator[Piece], Iterator[Piece]]:
    return (
        source_pieces(task.left, task.source, *task.ours, task.terms, task.timeout, strict=task.strict),
        target_pieces(task.right, task.target, *task.theirs, task.terms, task.timeout, strict=task.strict),
    )


def compare_pairs(
    runner: Runner, right: ClusterSettings, tasks: Iterable[PairTask], *, timeout: float, seen: Callable[[ComparedPair, PairStep], None]
) -> dict[TopicPartition, ComparedPair]:
    """Compare pairs of partitions and name every difference.

    Args:
        runner: where the tasks run.
        right: target cluster.
        tasks: one for each source partition.
        timeout: seconds a broker may stay silent.
        seen: called from this thread after each task.
    """
    pairs = {task.source: ComparedPair(task) for task in tasks}
    results: dict[TopicPartition, list[DeepResult]] = {}

    def took(answer: tuple[PairTask, DeepResult, PairTask | None]) -> Iterable[PairTask]:
        task, result, following = answer
        results.setdefault(task.source, []).append(result)
        pair, found = pairs[task.source], result.alignment
        pair.records += found.records
        pair.bytes += found.bytes
        pair.beyond = found.beyond
        for run in result.chunk.runs.between(*task.ours):
            pair.runs.add(*run)
        seen(pair, PairStep((following.ours[0] if following else task.ours[1]) - task.ours[0], found.records, found.bytes))
        return [following] if following else []

    def whole(source: TopicPartition) -> Whole:
        task = pairs[source].task
        return Whole(task.left, source, task.target, task.ours, task.theirs[0], task.terms)

    largest_first = sorted((pair.task for pair in pairs.values()), key=lambda task: task.ours[0] - task.ours[1])
    run_each(runner, run_pair, largest_first, name="verify external", took=took)
    for source, settled in settle(runner, right, results, whole, timeout=timeout).items():
        pairs[source].settled = settled
    return pairs


@dataclass(frozen=True, slots=True)
class TopicComparison:
    """The verdict on one topic: identical, different or unreadable; ``records`` and ``bytes`` are what the source holds."""

    topic: str
    target_topic: str
    partitions: int
    records: int
    bytes: int
    seconds: float
    verdict: str
    differences: tuple[Difference, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether every record is there once, in order and unaltered, and nothing else."""
        return self.verdict == IDENTICAL

    def to_json(self) -> dict[str, Any]:
        """Plain values for printing as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _ComparedSides:
    source: WireClient
    target: WireClient
    source_from: Offsets
    source_to: Offsets
    target_from: Offsets
    target_to: Offsets


def compare_topics(
    source: ClusterSettings,
    target: ClusterSettings,
    pairs: Mapping[str, str],
    *,
    source_from: Offsets | None = None,
    source_to: Offsets | None = None,
    target_from: Offsets | None = None,
    target_to: Offsets | None = None,
    progress: ProgressCallback | None = None,
) -> list[TopicComparison]:
    """Compare each source topic with its target topic: key, value, headers, timestamp and order, per partition.

    Memory stays bounded (some tens of megabytes for each side), whatever the size of the topics. Each topic is
    compared up to the ends that its logs have when its turn comes; ``*_from`` and ``*_to`` (exclusive) narrow that.

    Args:
        source: cluster that was copied.
        target: cluster that was copied to.
        pairs: source topic to target topic.
        source_from: first source offset to compare, for the partitions named.
        source_to: source offset to stop at, exclusive.
        target_from: first target offset to compare.
        target_to: target offset to stop at, exclusive.
        progress: called with topic, partition, records and bytes compared so far in that partition.

    Returns:
        One comparison for each pair, in the order given. A topic that cannot be read is ``unreadable``.

    Raises:
        ClusterUnreachable: No broker of a cluster answers.
    """
    with closing(WireClient(source)) as left, closing(WireClient(target)) as right:
        sides = _ComparedSides(left, right, source_from or {}, source_to or {}, target_from or {}, target_to or {})
        partitions = _partition_counts(left, list(pairs)), _partition_counts(right, list(pairs.values()))
        return [
            _compare_topic(sides, topic, name, partitions[0].get(topic, 0), partitions[1].get(name, 0), progress)
            for topic, name in pairs.items()
        ]


def _partition_counts(client: WireClient, topics: list[str]) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in client.metadata(topics).topics.items() if not topic.error}


def _compare_topic(
    sides: _ComparedSides, topic: str, target: str, count: int, target_count: int, progress: ProgressCallback | None
) -> TopicComparison:
    began = time.monotonic()
    if not count or not target_count:
        side, name = ("source", topic) if not count else ("target", target)
        missing = Difference("missing", topic, -1, None, None, f"topic {name} does not exist on the {side}")
        return TopicComparison(topic, target, count, 0, 0, time.monotonic() - began, DIFFERENT, (missing,))

    def seen(pair: ComparedPair, _: PairStep) -> None:
        if progress is not None:
            progress(topic, pair.task.source.partition, pair.records, pair.bytes)

    compared: dict[TopicPartition, ComparedPair] = {}
    try:
        tasks = _topic_tasks(sides, topic, target, count, target_count)
        compared = compare_pairs(InlineRunner(), sides.target.cluster, tasks, timeout=sides.target.timeout, seen=seen)
        unreadable = next((pair.settled.unreadable for pair in compared.values() if pair.settled.unreadable), "")
    except MirrorError as error:
        unreadable = str(error)
    found = [difference for pair in compared.values() for difference in pair.settled.differences[:DIFFERENCES_PER_PARTITION]]
    if unreadable:
        found.append(Difference("missing", topic, -1, None, None, unreadable))
    verdict = UNREADABLE if unreadable else DIFFERENT if found else IDENTICAL
    records, size = sum(pair.records for pair in compared.values()), sum(pair.bytes for pair in compared.values())
    return TopicComparison(topic, target, count, records, size, time.monotonic() - began, verdict, tuple(found))


def _topic_tasks(sides: _ComparedSides, topic: str, target: str, count: int, target_count: int) -> list[PairTask]:
    tasks = pair_tasks(
        sides.source, sides.target, (topic, target), (count, target_count), Terms(), limit=DIFFERENCES_PER_PARTITION, strict=True
    )
    return [
        replace(
            task,
            ours=_cut(task.ours, sides.source_from.get(task.source), sides.source_to.get(task.source)),
            theirs=_cut(task.theirs, sides.target_from.get(task.target), sides.target_to.get(task.target)),
        )
        for task in tasks
    ]


def _cut(log: OffsetRange, start: int | None, end: int | None) -> OffsetRange:
    return max(log[0], log[0] if start is None else start), min(log[1], log[1] if end is None else end)

"""The driver's part of a comparison record by record: turn what tasks could not match into differences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.execution.runner import Runner
from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS, leaf_of
from mirror_pipeline.model import TopicPartition, Verdict, Verification
from mirror_pipeline.verdicts import Difference
from mirror_pipeline.verify.classify import classify, surplus
from mirror_pipeline.verify.copies import CopiedPartition
from mirror_pipeline.verify.jobs import grouped, run_deeps, run_each
from mirror_pipeline.verify.pieces import Candidate, Trace
from mirror_pipeline.verify.record_tasks import DeepResult, DeepTask, LookResult, LookTask, StagedSource, Terms, run_look
from mirror_pipeline.verify.tree import Tree, stretches

UNSETTLED_PER_PARTITION = 10_000
"""A partition with more is not compared to its end: the first ones show what is wrong."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Where to search one partition for what did not match, and how its topics are compared."""

    left: ClusterSettings | StagedSource
    source: TopicPartition
    target: TopicPartition
    source_range: tuple[int, int]
    target_start: int
    terms: Terms


@dataclass(slots=True)
class Settled:
    """Differences of one partition, in log order; ``more`` says that there are further ones."""

    differences: list[Difference] = field(default_factory=list)
    more: bool = False
    unreadable: str = ""


def compare_records(
    runner: Runner,
    right: ClusterSettings,
    tasks: Sequence[DeepTask],
    wholes: Callable[[TopicPartition], Whole],
    *,
    timeout: float,
    seen: Callable[[DeepResult], None] = lambda _: None,
) -> dict[TopicPartition, Settled]:
    """Compare offset ranges record by record and classify every difference.

    Args:
        runner: Spark.
        right: target cluster.
        tasks: the ranges, those of one partition in order.
        wholes: where to search a source partition; called only for those with differences.
        timeout: seconds a broker may stay silent.
        seen: called with each result as it arrives.
    """
    results: dict[TopicPartition, list[DeepResult]] = {}

    def took(done: list[DeepResult]) -> tuple[()]:
        for result in done:
            results.setdefault(result.chunk.source, []).append(result)
            seen(result)
        return ()

    groups = grouped(tasks, lambda task: task.chunk.end - task.chunk.start)
    run_each(runner, run_deeps, groups, name="verify record by record", took=took)
    return settle(runner, right, results, wholes, timeout=timeout)


def settle(
    runner: Runner,
    right: ClusterSettings,
    results: Mapping[TopicPartition, list[DeepResult]],
    wholes: Callable[[TopicPartition], Whole],
    *,
    timeout: float,
) -> dict[TopicPartition, Settled]:
    """Classify every record that could not be matched; arguments as in :func:`compare_records`."""
    for found in results.values():
        found.sort(key=lambda result: result.chunk.start)
    looks = _look(runner, right, results, wholes, timeout)
    return {source: _settle(source, found, looks.get(source)) for source, found in results.items()}


def _look(
    runner: Runner,
    right: ClusterSettings,
    results: Mapping[TopicPartition, Sequence[DeepResult]],
    wholes: Callable[[TopicPartition], Whole],
    timeout: float,
) -> dict[TopicPartition, LookResult]:
    tasks = []
    for source, found in results.items():
        more = surplus(_candidates(found))
        keys = {record.key for result in found for record in result.unsettled}
        if not more and not keys:
            continue
        whole = wholes(source)
        after = min((r.chunk.runs.target_end for r in found if r.unsettled), default=0)
        start = max(whole.target_start, after)
        tasks.append(
            LookTask(whole.left, right, source, whole.target, whole.source_range, start, tuple(more), tuple(keys), whole.terms, timeout)
        )
    looks: dict[TopicPartition, LookResult] = {}

    def took(look: LookResult) -> tuple[()]:
        looks[look.source] = look
        return ()

    run_each(runner, run_look, tasks, name="verify: search", took=took)
    return looks


def _candidates(found: Iterable[DeepResult]) -> list[Candidate]:
    return [candidate for result in found for candidate in result.alignment.candidates]


def _settle(source: TopicPartition, found: Sequence[DeepResult], look: LookResult | None) -> Settled:
    left = [record for record in _unsettled(found) if look is None or not look.excuses(record)]
    gone = [Candidate(record, None, "its key does not occur again") for record in left]
    findings = classify([*_candidates(found), *gone], look.known if look is not None else ())
    differences = [
        Difference(f.kind, source.topic, source.partition, f.source_offset, f.target_offset, f.detail)
        for f in findings[:UNSETTLED_PER_PARTITION]
    ]
    more = len(findings) > UNSETTLED_PER_PARTITION or any(result.alignment.stopped for result in found)
    unreadable = next((result.unreadable for result in found if result.unreadable), "")
    return Settled(differences, more, unreadable)


def _unsettled(found: Iterable[DeepResult]) -> list[Trace]:
    return [record for result in found for record in result.unsettled]


SOURCE_KIND = "source"


def verifications(part: CopiedPartition, tree: Tree, settled: Settled) -> list[Verification]:
    """Rows for one partition: the leaves that hold a difference, and the identical ranges between them."""
    chunk, now = part.chunk, int(time.time() * 1000)

    def row(start: int, end: int, verdict: Verdict) -> Verification:
        leaves = [leaf for leaf in tree.leaves.values() if leaf_of(start) <= leaf.leaf <= leaf_of(end - 1)]
        below = Tree(leaves)
        return Verification(*part.key, start, end, len(leaves), below.records, below.root, verdict, SOURCE_KIND, now)

    rows, at = [], chunk.start
    if settled.more:  # further differences may lie anywhere
        return [row(chunk.start, chunk.end, Verdict.DIFFERENT)] if chunk.start < chunk.end else []
    for first, end in stretches(sorted({leaf_of(place) for place in _places(part, settled.differences)})):
        low, high = max(chunk.start, first * LEAF_OFFSETS), min(chunk.end, end * LEAF_OFFSETS)
        if at < low:
            rows.append(row(at, low, Verdict.SAME))
        rows.append(row(low, high, Verdict.DIFFERENT))
        at = high
    return [*rows, row(at, chunk.end, Verdict.SAME)] if at < chunk.end else rows


def _places(part: CopiedPartition, differences: list[Difference]) -> list[int]:
    chunk, places = part.chunk, []
    for difference in differences:
        place = difference.source_offset
        if place is None and difference.target_offset is not None and difference.target_offset < chunk.runs.target_end:
            place = chunk.runs.source_at_or_after(difference.target_offset, chunk.end - 1)
        if place is not None and chunk.start <= place < chunk.end:
            places.append(place)
    return places

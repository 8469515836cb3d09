"""``Mirror.verify``: both sides of everything a mirror has copied are read raw, folded into trees and compared."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.execution.runner import Runner
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.records.digest import LeafSums
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verdicts import (
    DIFFERENT,
    IDENTICAL,
    UNREADABLE,
    Difference,
    PartitionVerdict,
    TopicVerdict,
    VerifyProgress,
    VerifyReport,
)
from mirror_pipeline.verify.copies import CopiedPartition, CopiedTopic, by_time, copied_topics, refresh_logs, see_clusters
from mirror_pipeline.verify.fold_tasks import Chunk, FoldResult, FoldTask, TailTask, deep_chunks, plan_chunks, run_tail, sample
from mirror_pipeline.verify.jobs import JOBS_PER_TASK, grouped, run_each, run_folds
from mirror_pipeline.verify.record_tasks import DeepResult, DeepTask
from mirror_pipeline.verify.settle import UNSETTLED_PER_PARTITION, Settled, Whole, compare_records, verifications
from mirror_pipeline.verify.tree import Tree

MIRRORED_TASK_BYTES = 128 << 20
"""Bytes of the source after which a task ends at the next leaf: about a second, so progress moves and work is shared well."""

Observer = Callable[[VerifyProgress], None]
GenerationKey = tuple[str, int]
"""A lane and the age of the generation of its topics; 0 is the present one."""


@dataclass(slots=True)
class _VerifiedPart:
    """One partition under verification."""

    topic: CopiedTopic
    copied: CopiedPartition
    ours: LeafSums = field(default_factory=LeafSums)
    theirs: LeafSums = field(default_factory=LeafSums)
    left: Tree = field(default_factory=lambda: Tree(()))
    right: Tree = field(default_factory=lambda: Tree(()))
    bytes: int = 0
    unreadable: str = ""
    settled: Settled = field(default_factory=Settled)

    def verdict(self) -> PartitionVerdict:
        """Its row in the report."""
        chunk, tree = self.copied.chunk, self.left
        number, leaves = self.copied.key[1], len(tree.leaves)
        return PartitionVerdict(number, chunk.start, chunk.end, tree.records, leaves, tree.root, self.right.root, self.copied.expired)


class MirrorCheck:
    """One verification of one mirror.

    Args:
        flow: whose copies are verified.
        runner: called with the number of source offsets to compare; returns where that runs.
        observer: called from this thread as results arrive.
        stop: set it to end early; then :class:`ProblemFound` is raised.
    """

    _runner: Runner

    def __init__(self, flow: Flow, runner: Callable[[int], Runner], observer: Observer | None, stop: threading.Event) -> None:
        self._flow, self._start, self._observer, self._stop = flow, runner, observer, stop
        self._timeout = flow.settings.engine.request_timeout
        self._source, self._target = flow.source_client(), flow.target_client()
        self._progress = VerifyProgress(0)
        self._parts: dict[tuple[GenerationKey, TopicPartition], _VerifiedPart] = {}

    def run(
        self,
        topics: Collection[str] | None,
        from_time: int | None,
        to_time: int | None,
        fraction: float,
        *,
        since_verified: bool = False,
        lane: str | None = None,
    ) -> VerifyReport:
        """See :meth:`Mirror.verify`; with ``lane``, only what that lane copied."""
        if not 0 < fraction <= 1:
            raise UsageError(f"a sample of {fraction:g} is not possible", hint="give a fraction above 0 and up to 1, such as 0.05")
        try:
            copied = [
                topic for topic in copied_topics(self._flow, topics, lenient=since_verified) if lane in (None, topic.lane)
            ]
            see_clusters(self._flow, copied, self._source, self._target)
            good = [topic for topic in copied if not topic.problem]
            if from_time is not None or to_time is not None:
                by_time(good, self._source, from_time, to_time)
            if since_verified:
                _only_new(good)
            chunks = [part.chunk for topic in good for part in topic.partitions.values()]
            self._runner = self._start(int(fraction * sum(chunk.end - chunk.start for chunk in chunks)))
            began = time.monotonic()
            for topic in good:
                for part in topic.partitions.values():
                    self._parts[(topic.lane, topic.age), part.chunk.source] = _VerifiedPart(topic, part)
            for key in sorted({(topic.lane, topic.age) for topic in good}):
                self._lane(key, fraction)
            if fraction == 1:
                self._write_down(good)
        finally:
            self._source.close()
            self._target.close()
        return self._report(copied, time.monotonic() - began, fraction)

    def _lane(self, key: GenerationKey, fraction: float) -> None:
        """Lanes and generations run one after another: a backfill, or an earlier generation, may have copied the same topic."""
        parts = {source: part for (name, source), part in self._parts.items() if name == key}
        self._fold(parts, fraction)
        suspects = {source: part.left.differing(part.right) for source, part in parts.items() if not part.unreadable}
        self._compare(parts, {source: leaves for source, leaves in suspects.items() if leaves})
        self._find_foreign_records(parts)

    def _fold(self, parts: dict[TopicPartition, _VerifiedPart], fraction: float) -> None:
        wholes = [part.copied.chunk for part in parts.values()]
        slots = self._runner.tasks * JOBS_PER_TASK
        chunks = plan_chunks(wholes, slots=slots) if fraction == 1 else sample(wholes, fraction, random.Random())  # noqa: S311 - no secret
        self._progress.total += sum(chunk.end - chunk.start for chunk in chunks)
        tasks = [self._fold_task(chunk) for chunk in chunks]

        def took(results: list[FoldResult]) -> list[tuple[FoldTask, ...]]:
            self._check_stop()
            for result in results:
                self._folded(parts[result.chunk.source], result)
            self._show()
            unfinished = [r.chunk.cut(r.end, r.chunk.end) for r in results if r.end < r.chunk.end and not r.unreadable]
            return [(self._fold_task(chunk),) for chunk in unfinished]

        groups = grouped(tasks, lambda task: task.chunk.end - task.chunk.start)
        run_each(self._runner, run_folds, groups, name="verify", took=took)
        for part in parts.values():
            part.left, part.right = Tree(part.ours.digests()), Tree(part.theirs.digests())

    def _fold_task(self, chunk: Chunk) -> FoldTask:
        return FoldTask(self._flow.source, self._flow.target, chunk, MIRRORED_TASK_BYTES, self._timeout)

    def _folded(self, part: _VerifiedPart, result: FoldResult) -> None:
        part.ours.merge(result.left)
        part.theirs.merge(result.right)
        part.bytes += result.bytes
        part.unreadable = part.unreadable or result.unreadable
        self._progress.offsets += result.end - result.chunk.start
        self._progress.records += sum(leaf.records for leaf in result.left)
        self._progress.bytes += result.bytes

    def _compare(self, parts: dict[TopicPartition, _VerifiedPart], suspects: dict[TopicPartition, list[int]]) -> None:
        if not suspects:
            return
        self._progress.stage = "records"
        topics = {id(parts[source].topic): parts[source].topic for source in suspects}
        refresh_logs(list(topics.values()), self._source, self._target)
        for part in parts.values():
            part.unreadable = part.unreadable or part.topic.problem
        left, right = self._flow.source, self._flow.target
        tasks = [
            DeepTask(left, right, chunk, part.topic.terms, UNSETTLED_PER_PARTITION, self._timeout, part.copied.gaps)
            for source, leaves in suspects.items()
            for part in (parts[source],)
            if not part.unreadable
            for chunk in deep_chunks(part.copied.chunk, leaves)
        ]
        self._progress.suspects += sum(task.chunk.end - task.chunk.start for task in tasks)

        def whole(source: TopicPartition) -> Whole:
            part = parts[source].copied
            return Whole(self._flow.source, source, part.chunk.target, part.source_log, part.target_log[0], parts[source].topic.terms)

        def seen(result: DeepResult) -> None:
            self._check_stop()
            self._progress.suspects -= result.chunk.end - result.chunk.start
            self._show()

        found = compare_records(self._runner, self._flow.target, tasks, whole, timeout=self._timeout, seen=seen)
        for source, settled in found.items():
            settled.differences = [each for each in settled.differences if not parts[source].copied.accepts(each)]
            parts[source].settled = settled
            parts[source].unreadable = parts[source].unreadable or settled.unreadable

    def _find_foreign_records(self, parts: dict[TopicPartition, _VerifiedPart]) -> None:
        """Records after the position that no lane of this mirror wrote are extra; the lanes' own are not in the ledger yet."""
        if self._flow.settings.shared:
            return
        ours = frozenset(stamp for topic in self._all_topics() for _, stamp in topic.ledger.producers())
        tasks = [
            TailTask(
                self._flow.target, source, part.copied.chunk.target, part.copied.target_next, part.copied.target_log[1], ours,
                UNSETTLED_PER_PARTITION, self._timeout,
            )
            for source, part in parts.items()
            if part.copied.target_log[1] > part.copied.target_next and not part.copied.promoted
            and not part.topic.problem and not self._continued(part)
        ]  # fmt: skip

        def took(answer: tuple[TopicPartition, list[int]]) -> tuple[()]:
            source, offsets = answer
            parts[source].settled.differences += [
                Difference("extra", source.topic, source.partition, None, offset, "another producer wrote it") for offset in offsets
            ]
            return ()

        run_each(self._runner, run_tail, tasks, name="verify: after the end", took=took)

    def _all_topics(self) -> list[CopiedTopic]:
        return list({id(part.topic): part.topic for part in self._parts.values()}.values())

    def _continued(self, part: _VerifiedPart) -> bool:
        """Whether another lane has appended to the same target partition after this one (consecutive backfills)."""
        return any(
            other.copied.chunk.target == part.copied.chunk.target and other.copied.target_next > part.copied.target_next
            for other in self._parts.values()
        )

    def _write_down(self, topics: Sequence[CopiedTopic]) -> None:
        for topic in topics:
            rows = []
            for part in self._parts.values():
                if part.topic is topic and not part.unreadable:
                    rows += verifications(part.copied, part.left, part.settled)
            topic.ledger.add_verifications(rows)

    def _report(self, topics: Sequence[CopiedTopic], seconds: float, fraction: float) -> VerifyReport:
        verdicts = tuple(self._verdict(topic) for topic in topics)
        parts = [self._parts[key] for key in sorted(self._parts, key=lambda key: (key[1], key[0]))]
        differences = tuple(difference for part in parts for difference in part.settled.differences)
        return VerifyReport(verdicts, differences, seconds, fraction, any(part.settled.more for part in parts))

    def _verdict(self, topic: CopiedTopic) -> TopicVerdict:
        parts = [part for part in self._parts.values() if part.topic is topic]
        found = sum(len(part.settled.differences) for part in parts)
        problem = topic.problem or next((part.unreadable for part in parts if part.unreadable), "")
        rows = tuple(part.verdict() for part in parts)
        timeless = "the target sets record timestamps itself (LogAppendTime), so they are not compared" if topic.terms.timeless else ""
        return TopicVerdict(
            self._flow.name,
            topic.generation.topic,
            topic.generation.target_topic,
            UNREADABLE if problem else DIFFERENT if found else IDENTICAL,
            records=sum(row.records for row in rows),
            leaves=sum(row.leaves for row in rows),
            bytes=sum(part.bytes for part in parts),
            expired=sum(row.expired for row in rows),
            differences=found,
            partitions=rows,
            note=problem or timeless,
        )

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise ProblemFound("verification was stopped before it ended", hint="results so far are not recorded")

    def _show(self) -> None:
        if self._observer is not None:
            self._observer(self._progress)


def _only_new(topics: Sequence[CopiedTopic]) -> None:
    for topic in topics:
        verified = topic.ledger.verified()
        for part in topic.partitions.values():
            part.narrow(verified.get(part.key, part.chunk.start), part.chunk.end)

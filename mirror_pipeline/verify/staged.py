"""Compare staged data with the target: reads the buffer's digests and the target's log, never the source.

A produced batch has its staged bytes after the header, so the target's log must give the digests that were taken when
it was staged. Records are compared only where it does not.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.offset_runs import Runs, runs_of
from mirror_pipeline.buffer.ledger.unverified import Generations, choose_spans
from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.execution.runner import Runner
from mirror_pipeline.kafka.answers import EARLIEST_TIME, NO_TOPIC_ID
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION
from mirror_pipeline.kafka.offsets import led, offsets_or_errors
from mirror_pipeline.kafka.records.digest import LeafSums
from mirror_pipeline.model import Incarnation, LeafDigest, SpanRef, TopicPartition, Verdict, Verification
from mirror_pipeline.verdicts import Difference
from mirror_pipeline.verify.copies import producer_ids
from mirror_pipeline.verify.fold_tasks import Chunk, FoldResult, FoldTask
from mirror_pipeline.verify.jobs import grouped, run_each, run_folds
from mirror_pipeline.verify.log_walk import READ_UNCOMMITTED
from mirror_pipeline.verify.record_tasks import DeepTask, StagedSource
from mirror_pipeline.verify.rules import read_target_terms
from mirror_pipeline.verify.settle import UNSETTLED_PER_PARTITION, Settled, Whole, compare_records
from mirror_pipeline.verify.tree import Tree

GROUP_BYTES = 64 << 20
"""Spans of a partition that are compared as one."""
STAGED_KIND = "staged"


@dataclass(frozen=True, slots=True)
class StagedVerdict:
    """``verified`` is how far each partition is verified now; records and bytes are what was compared in this call.

    ``unreadable`` says, one line each, what could not be read this time; nothing is concluded from it.
    """

    verified: dict[SpanKey, int]
    records: int
    bytes: int
    differences: tuple[Difference, ...]
    unreadable: tuple[str, ...] = ()


@dataclass(slots=True)
class _SpanGroup:
    """Contiguous produced spans of one partition, and the outcome of their comparison."""

    key: SpanKey
    spans: tuple[SpanRef, ...]
    chunk: Chunk
    deleted_to: int
    equal: bool = False
    unreadable: str = ""
    leaves: tuple[LeafDigest, ...] = ()

    @property
    def start(self) -> int:
        return self.spans[0].start

    @property
    def end(self) -> int:
        return self.spans[-1].end

    @property
    def checked(self) -> Chunk:
        """What the target's retention has not deleted."""
        return self.chunk if self.deleted_to <= self.start else self.chunk.cut(min(self.deleted_to, self.end), self.end)


@dataclass(slots=True)
class _StagedWork:
    groups: list[_SpanGroup] = field(default_factory=list)
    rows: list[Verification] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def verify_staged(
    *, ledger: Ledger, spans: SpanTable, runner: Runner, target: ClusterSettings, timeout: float, budget_bytes: int, shared: bool = False,
    topics: Collection[str] | None = None,
) -> StagedVerdict:
    """Compare produced spans of the buffer with the target and record the outcome. Safe beside a running lane: it only reads.

    What the target's retention has deleted passes, recorded as ``deleted_on_target``; what was evicted before it was
    compared passes as ``not_staged``. A partition's verified offset does not advance past a difference.

    Args:
        ledger: of the lane.
        spans: of the same lane.
        runner: Spark.
        target: cluster that was copied to.
        timeout: seconds a broker may stay silent.
        budget_bytes: at most this many bytes of spans, the oldest first.
        shared: others write the target topics too; only the lane's own records are compared.
        topics: only these; None: all.

    Raises:
        ClusterUnreachable: no broker of the target answers.
        BufferUnusable: buffer or ledger cannot be read or written.
    """
    verified, generations = ledger.verified(), ledger.generations()
    work = _StagedWork()
    live = [span for span in spans.spans() if topics is None or span.topic in topics]
    chosen, lost = choose_spans(live, ledger, generations, verified, budget_bytes)
    work.rows += [_row(key, start, end, (), Verdict.NOT_STAGED) for key, start, end in lost]
    for some in _by_generation(chosen):
        _compare(work, some, ledger, generations, runner, target, timeout, producer_ids(ledger) if shared else frozenset())
    _write_down(work)
    ledger.add_verifications(work.rows)
    done = [group for group in work.groups if group.equal]
    return StagedVerdict(
        verified=ledger.verified() if work.rows else verified,
        records=sum(span.records for group in done for span in group.spans),
        bytes=sum(span.bytes for group in done for span in group.spans),
        differences=tuple(work.differences),
        unreadable=tuple(work.unreadable),
    )


def _by_generation(chosen: Mapping[SpanKey, list[SpanRef]]) -> list[dict[SpanKey, list[SpanRef]]]:
    """One comparison for each generation of a topic: offsets of two generations must not be mixed."""
    rounds: dict[int, dict[SpanKey, list[SpanRef]]] = {}
    seen: dict[TopicPartition, int] = {}
    for key, spans in chosen.items():
        number = seen[spans[0].source] = seen.get(spans[0].source, -1) + 1
        rounds.setdefault(number, {})[key] = spans
    return list(rounds.values())


def _compare(
    work: _StagedWork,
    chosen: Mapping[SpanKey, Sequence[SpanRef]],
    ledger: Ledger,
    generations: Generations,
    runner: Runner,
    target: ClusterSettings,
    timeout: float,
    ours: frozenset[int],
) -> None:
    maps = _maps(ledger, chosen)
    targets = {key: TopicPartition(generations[key[0], key[2]].target_topic, key[1]) for key in chosen}
    with WireClient(target, timeout=timeout) as client:
        gone = _gone(client, chosen, ledger, generations)
        starts = _log_starts(client, sorted({tp for key, tp in targets.items() if key not in gone}))
    chosen = {key: spans for key, spans in chosen.items() if key in gone or targets[key] in starts}  # a later round has the others
    groups: list[_SpanGroup] = []
    for key, spans in chosen.items():
        if key in gone:
            work.rows.append(_row(key, spans[0].start, spans[-1].end, (), Verdict.DELETED_ON_TARGET))
            continue
        groups += _groups(key, spans, targets[key], maps.get(key, Runs()), starts[targets[key]], ours)
    work.groups += groups
    _fold(groups, runner, target, timeout)
    deep = [group for group in groups if not group.equal and not group.unreadable]
    if deep:
        wanted = {group.key[0]: group.chunk.target.topic for group in deep}
        terms = read_target_terms(target, wanted)
        tasks = [
            DeepTask(
                StagedSource(ledger.store, group.spans), target, group.checked, terms[group.key[0]], UNSETTLED_PER_PARTITION, timeout
            )
            for group in deep
        ]

        def whole(source: TopicPartition) -> Whole:
            mine = [group for group in deep if group.chunk.source == source]
            spans = tuple(span for group in mine for span in group.spans)
            tp = mine[0].chunk.target
            return Whole(
                StagedSource(ledger.store, spans), source, tp, (mine[0].start, mine[-1].end), starts[tp], terms[source.topic]
            )

        _settle(work, deep, compare_records(runner, target, tasks, whole, timeout=timeout))


def _log_starts(client: WireClient, parts: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """First offsets of target partitions, without those that cannot be asked now: they keep no others from being verified."""
    if not parts:
        return {}
    asked, _ = led(client.metadata(sorted({tp.topic for tp in parts})), parts)
    starts = offsets_or_errors(client, asked, EARLIEST_TIME, isolation=READ_UNCOMMITTED)
    return {tp: start for tp, start in starts.items() if isinstance(start, int)}


def _gone(client: WireClient, chosen: Iterable[SpanKey], ledger: Ledger, generations: Generations) -> set[SpanKey]:
    """Partitions of past generations whose target topic has been deleted or recreated since, which an operator has accepted."""
    present = {(topic, generation.incarnation) for topic, generation in ledger.incarnations().items()}
    past = {key: generations[key[0], key[2]] for key in chosen if (key[0], key[2]) not in present}
    found = client.metadata(sorted({generation.target_topic for generation in past.values()})).topics if past else {}

    def same(generation: Incarnation) -> bool:
        topic = found[generation.target_topic]
        return topic.error != UNKNOWN_TOPIC_OR_PARTITION and generation.target_topic_id in ("", NO_TOPIC_ID, topic.topic_id)

    return {key for key, generation in past.items() if not same(generation)}


def _maps(ledger: Ledger, chosen: Mapping[SpanKey, Sequence[SpanRef]]) -> dict[SpanKey, Runs]:
    return runs_of(ledger.sends_after({key: spans[0].start for key, spans in chosen.items()}))


def _groups(
    key: SpanKey, spans: Sequence[SpanRef], tp: TopicPartition, runs: Runs, log_start: int, ours: frozenset[int] = frozenset()
) -> list[_SpanGroup]:
    parts: list[list[SpanRef]] = []
    held = 0
    for span in spans:
        if not parts or held + span.bytes > GROUP_BYTES or parts[-1][-1].end != span.start:
            parts.append([])
            held = 0
        parts[-1].append(span)
        held += span.bytes
    groups = []
    for part in parts:
        start, end = part[0].start, part[-1].end
        chunk = Chunk(part[0].source, tp, start, end, runs.slice(start, end), ours=ours)
        deleted = runs.source_at_or_after(log_start, end) if log_start > chunk.target_start else start
        groups.append(_SpanGroup(key, tuple(part), chunk, deleted))
    return groups


def _fold(groups: Sequence[_SpanGroup], runner: Runner, target: ClusterSettings, timeout: float) -> None:
    """Fold what the target holds of each group and compare it with what was staged."""
    whole = {}
    for group in groups:
        sums = LeafSums()
        for span in group.spans:
            sums.merge(span.digests)
        group.leaves = sums.digests()
        if group.deleted_to >= group.end and group.end > group.start and group.deleted_to > group.start:
            group.equal = True
        elif group.deleted_to <= group.start and all(span.digests or not span.records for span in group.spans):
            whole[group.chunk.source, group.start] = group
    tasks = [FoldTask(None, target, group.chunk, 1 << 62, timeout) for group in whole.values()]

    def took(results: list[FoldResult]) -> tuple[()]:
        for result in results:
            group = whole[result.chunk.source, result.chunk.start]
            group.unreadable = result.unreadable
            group.equal = not result.unreadable and result.right == group.leaves
        return ()

    run_each(
        runner, run_folds, grouped(tasks, lambda task: task.chunk.end - task.chunk.start), name="verify staged", took=took
    )


def _settle(work: _StagedWork, deep: Sequence[_SpanGroup], settled: Mapping[TopicPartition, Settled]) -> None:
    for group in deep:
        found = settled[group.chunk.source]
        group.unreadable = found.unreadable
        group.equal = not found.unreadable and not any(_inside(group, difference) for difference in found.differences)
    for found in settled.values():
        work.differences += found.differences


def _inside(group: _SpanGroup, difference: Difference) -> bool:
    if difference.source_offset is not None:
        return group.start <= difference.source_offset < group.end
    chunk = group.chunk
    return difference.target_offset is None or chunk.target_start <= difference.target_offset < chunk.runs.target_end


def _write_down(work: _StagedWork) -> None:
    """One row for each offset range of a partition with one verdict."""
    work.unreadable += sorted({group.unreadable for group in work.groups if group.unreadable})
    pending: list[tuple[Verification, tuple[LeafDigest, ...]]] = []
    for group in work.groups:
        if group.unreadable:
            continue
        deleted = min(max(group.deleted_to, group.start), group.end)
        if deleted > group.start:
            pending.append((_row(group.key, group.start, deleted, (), Verdict.DELETED_ON_TARGET), ()))
        if deleted < group.end:
            verdict = Verdict.SAME if group.equal else Verdict.DIFFERENT
            records = group.chunk.runs.records(deleted, group.end)
            row = replace(_row(group.key, deleted, group.end, group.leaves, verdict), records=records)
            pending.append((row, group.leaves))
    work.rows += _joined(pending)


def _joined(pending: Sequence[tuple[Verification, tuple[LeafDigest, ...]]]) -> list[Verification]:
    rows: list[Verification] = []
    leaves: tuple[LeafDigest, ...] = ()
    for row, more in pending:
        last = rows[-1] if rows else None
        same = last is not None and (last.topic, last.partition, last.incarnation) == (row.topic, row.partition, row.incarnation)
        if last is not None and same and last.verdict is row.verdict and last.source_end == row.source_start:
            sums = LeafSums()
            sums.merge((*leaves, *more))
            leaves = sums.digests()
            rows[-1] = replace(
                last, source_end=row.source_end, records=last.records + row.records, leaves=len(leaves), root=Tree(leaves).root
            )
        else:
            rows.append(row)
            leaves = more
    return rows


def _row(key: SpanKey, start: int, end: int, leaves: tuple[LeafDigest, ...], verdict: Verdict) -> Verification:
    records = sum(leaf.records for leaf in leaves)
    return Verification(*key, start, end, len(leaves), records, Tree(leaves).root, verdict, STAGED_KIND, int(time.time() * 1000))

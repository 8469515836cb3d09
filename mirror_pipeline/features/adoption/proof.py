"""Proves that a target topic is the beginning of its source topic, partition by partition; writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.features.adoption.adoption_report import FOREIGN, AdoptOptions
from mirror_pipeline.features.adoption.heads import MEANT, Beginning, with_common_start
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.needs import require_topic_ids
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.text import SHOWN_NAMES, count, plural
from mirror_pipeline.verdicts import Difference, VerifyProgress
from mirror_pipeline.verify.compare import ComparedPair, OffsetRange, PairStep, PairTask, compare_pairs, pair_tasks
from mirror_pipeline.verify.log_walk import READ_COMMITTED, READ_UNCOMMITTED
from mirror_pipeline.verify.rules import read_terms
from mirror_pipeline.verify.same_offsets import tails_differ
from mirror_pipeline.verify.settle import UNSETTLED_PER_PARTITION

ProofObserver = Callable[[VerifyProgress], None]


@dataclass(frozen=True, slots=True)
class ProofSide:
    """A topic on one cluster."""

    cluster_id: str
    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ProvenPartition:
    """One partition: the pair with its offset map, the target's whole log, and how many target records the source does not have.

    ``pair`` is None where nothing was mapped: the copy begins at ``start``, because the target's log is empty and always was, or was
    emptied for the copy, or because it has the source's offsets up to there.
    """

    number: int
    start: int
    target_log: OffsetRange
    pair: ComparedPair | None
    foreign: int = 0

    @property
    def source_next(self) -> int:
        """The next source offset to copy."""
        return self.start if self.pair is None else self.pair.source_next

    @property
    def unproven(self) -> int:
        """Target offsets before the part that was compared."""
        return 0 if self.pair is None else self.pair.task.theirs[0] - self.target_log[0]


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found of a topic and its copy; ``same_offsets``: both have the same records at the same offsets."""

    topic: str
    target_topic: str
    source: ProofSide
    target: ProofSide
    partitions: tuple[ProvenPartition, ...]
    source_ends: dict[int, int]
    notes: tuple[str, ...]
    same_offsets: bool = False


def prove(
    flow: Flow, topic: str, target_topic: str, options: AdoptOptions, session: Session, observer: ProofObserver | None,
    stop: threading.Event, *, may_be_empty: bool = False, emptied: bool = False,
) -> Proof:  # fmt: skip
    """Compare both sides.

    Args:
        flow: the mirror.
        topic: source topic.
        target_topic: the topic that holds its copy.
        options: how.
        session: for a comparison on Spark.
        observer: called from this thread as parts are done.
        stop: set it to end early.
        may_be_empty: a target topic without records is no error.
        emptied: the target's records were deleted so that all of the source is copied anew.

    Raises:
        UsageError: a topic does not exist, or the target is empty.
        ProblemFound: the target is not the beginning of the source; with the first differences by offset.
        ClusterUnreachable: a cluster does not answer.
    """
    with closing(flow.source_client()) as left, closing(flow.target_client()) as right:
        ours, theirs = _side(left, topic), _side(right, target_topic)
        terms = read_terms(flow.source, flow.target, {topic: target_topic})[topic]
        tasks = pair_tasks(
            left, right, (topic, target_topic), (ours.partitions, theirs.partitions), terms, limit=_limit(options), strict=True
        )
        _refuse_more_partitions(tasks, ours.partitions, theirs.partitions)
        tasks = [task for task in tasks[: ours.partitions] if task.target.partition < theirs.partitions]
        if not may_be_empty and not any(task.theirs[1] for task in tasks):
            raise UsageError(f"target topic {target_topic} is empty: there is nothing to adopt", hint="`mirror run` copies into it")
        begin = Beginning(left, right, options.last is not None or flow.settings.start != "earliest")
        filled = [task for task in tasks if task.theirs[1] > (task.theirs[0] if emptied else 0)]
        narrowed = [with_common_start(_asked_for(task, options), begin) for task in filled]
    stopped = ProblemFound("the adoption was stopped before it ended: nothing was adopted", hint="the same command starts again")
    pairs = PairComparison(flow, observer, stop, stopped).run([replace(task, prefix=True) for task in narrowed], session)
    _refuse_differences(topic, target_topic, list(pairs.values()), options)
    return Proof(
        topic, target_topic, ours, theirs, tuple(_proven(task, pairs.get(task.source)) for task in tasks),
        {task.source.partition: task.ours[1] for task in tasks}, _notes(ours, theirs, options),
    )  # fmt: skip


def prove_same_offsets(flow: Flow, topic: str, target_topic: str, known: Mapping[int, int], *, emptied: bool = False) -> Proof:
    """That a target topic has the records of its source at their offsets, by the ends of both logs; partitions that were never written to
    are left out.

    Args:
        flow: the mirror, with ``offsets: exact``.
        topic: source topic.
        target_topic: the topic that holds its copy.
        known: by partition, the offset up to which both are known to be equal: logs that end there need not be compared.
        emptied: the target topic was made anew.

    Raises:
        UsageError: a topic does not exist.
        ProblemFound: the target is not the beginning of the source, or cannot be proven to be.
        ClusterUnreachable: a cluster does not answer.
    """
    with closing(flow.source_client()) as left, closing(flow.target_client()) as right:
        ours, theirs = _side(left, topic), _side(right, target_topic)
        logs = log_range(right, [TopicPartition(target_topic, n) for n in range(theirs.partitions)], isolation=READ_UNCOMMITTED)
        filled = {tp.partition: log for tp, log in logs.items() if log[1] and not emptied}
        strange = [TopicPartition(target_topic, n) for n in filled if n >= ours.partitions]
        _refuse_other_partitions(strange, ours.partitions, theirs.partitions)
        source_logs = log_range(left, [TopicPartition(topic, n) for n in filled], isolation=READ_COMMITTED)
    pairs = {tp.partition: (log, filled[tp.partition]) for tp, log in source_logs.items()}
    compared = {n: both for n, both in pairs.items() if not (known.get(n) == both[1][1] <= both[0][1] and both[1][0] == both[1][1])}
    why = tails_differ(flow.source, flow.target, (topic, target_topic), compared, timeout=flow.settings.engine.request_timeout)
    if why:
        raise ProblemFound(f"target topic {target_topic} is not the beginning of {topic}: {why}", hint=f"nothing was adopted; {MEANT}")
    return Proof(
        topic, target_topic, ours, theirs, tuple(ProvenPartition(n, log[1], log, None) for n, log in sorted(filled.items())),
        {n: log[1] for n, (log, _) in pairs.items()}, (), same_offsets=True,
    )  # fmt: skip


def _limit(options: AdoptOptions) -> int:
    """Differences of a partition that are collected: enough to accept foreign records one by one."""
    return UNSETTLED_PER_PARTITION if FOREIGN in options.allow else SHOWN_NAMES * 2


def _side(client: WireClient, topic: str) -> ProofSide:
    metadata = client.metadata([topic])
    found = metadata.topics[topic]
    alias = client.cluster.alias
    if found.error:
        raise UsageError(f"topic {topic} on cluster {alias}: {broker_error(found.error, topic).message}", hint="`mirror plan` shows names")
    require_topic_ids(alias, [found])
    return ProofSide(metadata.cluster_id, found.topic_id, len(found.partitions))


def _refuse_more_partitions(tasks: Sequence[PairTask], ours: int, theirs: int) -> None:
    _refuse_other_partitions([task.target for task in tasks[ours:] if task.theirs[1] > task.theirs[0]], ours, theirs)


def _refuse_other_partitions(filled: Sequence[TopicPartition], ours: int, theirs: int) -> None:
    if filled:
        raise ProblemFound(
            f"{filled[0]} holds records, and the source has {plural(ours, 'partition')}, not {theirs}: it is no copy of that topic",
            hint=MEANT,
        )


def _asked_for(task: PairTask, options: AdoptOptions) -> PairTask:
    """Without the beginning of the target that the proof leaves out."""
    if options.last is None:
        return task
    return replace(task, theirs=(max(task.theirs[0], task.theirs[1] - options.last), task.theirs[1]))


def _proven(task: PairTask, pair: ComparedPair | None) -> ProvenPartition:
    if pair is None:
        return ProvenPartition(task.source.partition, task.ours[0], task.theirs, None)
    return ProvenPartition(task.source.partition, pair.task.ours[0], task.theirs, pair, len(pair.settled.differences))


def _notes(ours: ProofSide, theirs: ProofSide, options: AdoptOptions) -> tuple[str, ...]:
    notes = []
    if options.last is not None:
        notes.append(f"only the last {count(options.last)} offsets of each target partition were compared")
    if theirs.partitions < ours.partitions:
        notes.append(f"the target has {theirs.partitions} of {ours.partitions} partitions: `mirror run` adds the others and copies them")
    return tuple(notes)


@dataclass(slots=True)
class PairComparison:
    """One comparison with its progress; ``stopped`` is raised once ``stop`` is set."""

    flow: Flow
    observer: ProofObserver | None
    stop: threading.Event
    stopped: ProblemFound

    def run(self, tasks: Sequence[PairTask], session: Session) -> dict[TopicPartition, ComparedPair]:
        """Compare; the offset map is collected on the way."""
        progress = VerifyProgress(sum(task.theirs[1] - task.theirs[0] for task in tasks), stage="records")

        def seen(_: ComparedPair, step: PairStep) -> None:
            if self.stop.is_set():
                raise self.stopped
            progress.offsets = min(progress.total, progress.offsets + step.records)
            progress.records += step.records
            progress.bytes += step.bytes
            if self.observer is not None:
                self.observer(progress)

        runner = self.flow.comparer(session, progress.total)
        return compare_pairs(runner, self.flow.target, tasks, timeout=self.flow.settings.engine.request_timeout, seen=seen)


def _refuse_differences(topic: str, target_topic: str, pairs: Sequence[ComparedPair], options: AdoptOptions) -> None:
    unreadable = next((pair.settled.unreadable for pair in pairs if pair.settled.unreadable), "")
    if unreadable:
        raise ProblemFound(f"{topic} cannot be compared with {target_topic}: {unreadable}", hint="nothing was adopted; try again")
    found = [difference for pair in pairs for difference in pair.settled.differences]
    more = any(pair.settled.more for pair in pairs)
    strange = [difference for difference in found if difference.kind != "extra"]
    refused = strange if FOREIGN in options.allow else found
    if not refused and not (more and found):
        return
    listed = "; ".join(_words(difference, target_topic) for difference in (refused or found)[:SHOWN_NAMES])
    rest = len(refused or found) - SHOWN_NAMES
    ending = f"; and {'more' if more else count(rest) + ' more'}" if rest > 0 or more else ""
    only_extra = "" if strange or more else "; `--allow foreign` accepts records that the source does not have"
    raise ProblemFound(
        f"target topic {target_topic} is not the beginning of {topic}: {listed}{ending}", hint=f"nothing was adopted; {MEANT}{only_extra}"
    )


def _words(found: Difference, target_topic: str) -> str:
    target = f"{target_topic}[{found.partition}] offset {found.target_offset}"
    source = f"source offset {found.source_offset}"
    if found.target_offset is None:
        return f"{source} of partition {found.partition} is missing"
    if found.source_offset is None:
        return f"{target} is {'a duplicate' if found.kind == 'duplicate' else 'not on the source'}"
    if found.kind == "order":
        return f"{target} is out of order ({source})"
    return f"{target} differs from {source}" + (f": {found.detail}" if found.detail else "")

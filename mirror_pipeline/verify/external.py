"""``verify --external``: compare any two topics, including ones that another tool copied."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from mirror_pipeline.config import ClusterSettings, Config, EngineConfig
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.execution.placement import for_comparing
from mirror_pipeline.execution.runner import Runner
from mirror_pipeline.execution.spark import SparkRunner, build_context
from mirror_pipeline.kafka.answers import ClusterMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import broker_error
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
from mirror_pipeline.verify.compare import ComparedPair, OffsetRange, PairStep, PairTask, compare_pairs, pair_tasks
from mirror_pipeline.verify.record_tasks import Terms
from mirror_pipeline.verify.rules import read_terms
from mirror_pipeline.verify.settle import UNSETTLED_PER_PARTITION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATEST_NOTE = "compacted: the last record of each key is compared"


class ExternalCheck:
    """One comparison of pairs of topics.

    Args:
        source: cluster of the source topics.
        target: cluster of the target topics; may be the same.
        runner: called with the number of offsets to compare; returns where that runs.
        timeout: seconds a broker may stay silent.
        observer: called from this thread as results arrive.
        stop: set it to end early.
    """

    def __init__(
        self,
        source: ClusterSettings,
        target: ClusterSettings,
        runner: Callable[[int], Runner],
        *,
        timeout: float,
        observer: Callable[[VerifyProgress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._source, self._target, self._start, self._timeout = source, target, runner, timeout
        self._observer, self._stop = observer, stop or threading.Event()
        self._progress = VerifyProgress(0, stage="records")
        self._tasks: dict[TopicPartition, PairTask] = {}
        self._problems: dict[str, str] = {}

    def run(self, topics: Mapping[str, str], from_time: int | None = None, to_time: int | None = None) -> VerifyReport:
        """Compare source topics with target topics, partition by partition, up to the ends seen at the start.

        Raises:
            ClusterUnreachable: a cluster does not answer.
        """
        left, right = WireClient(self._source, timeout=self._timeout), WireClient(self._target, timeout=self._timeout)
        with closing(left), closing(right):
            terms = read_terms(self._source, self._target, topics)
            ours, theirs = left.metadata(list(topics)), right.metadata(list(topics.values()))
            for topic, name in topics.items():
                self._problems[topic] = _absent("source", ours, topic) or _absent("target", theirs, name)
                if not self._problems[topic]:
                    counts = len(ours.topics[topic].partitions), len(theirs.topics[name].partitions)
                    tasks = pair_tasks(left, right, (topic, name), counts, terms[topic], limit=UNSETTLED_PER_PARTITION)
                    self._tasks |= {task.source: task for task in tasks}
            if from_time is not None or to_time is not None:
                self._tasks = {tp: _narrowed(task, left, right, from_time, to_time) for tp, task in self._tasks.items()}
        runner = self._start(sum(max(end - start for start, end in (task.ours, task.theirs)) for task in self._tasks.values()))
        began = time.monotonic()
        self._progress.total = sum(task.ours[1] - task.ours[0] for task in self._tasks.values())
        pairs = compare_pairs(runner, self._target, self._tasks.values(), timeout=self._timeout, seen=self._seen)
        return self._report(topics, terms, pairs, time.monotonic() - began)

    def _seen(self, _: ComparedPair, step: PairStep) -> None:
        if self._stop.is_set():
            raise ProblemFound("verification was stopped before it ended")
        self._progress.offsets += step.offsets
        self._progress.records += step.records
        self._progress.bytes += step.bytes
        if self._observer is not None:
            self._observer(self._progress)

    def _report(
        self, topics: Mapping[str, str], terms: Mapping[str, Terms], compared: Mapping[TopicPartition, ComparedPair], seconds: float
    ) -> VerifyReport:
        verdicts, differences = [], []
        for topic, name in topics.items():
            pairs = [pair for source, pair in sorted(compared.items()) if source.topic == topic]
            found: list[Difference] = [difference for pair in pairs for difference in pair.settled.differences]
            differences += found
            problem = self._problems[topic] or next((p.settled.unreadable for p in pairs if p.settled.unreadable), "")
            rows = tuple(PartitionVerdict(p.task.source.partition, *p.task.ours, p.records, 0, "", "") for p in pairs)
            verdicts.append(
                TopicVerdict(
                    "", topic, name, UNREADABLE if problem else DIFFERENT if found else IDENTICAL, sum(p.records for p in pairs), 0,
                    sum(p.bytes for p in pairs), 0, len(found), rows, problem or (LATEST_NOTE if terms[topic].positional else ""),
                )
            )  # fmt: skip
        more = any(pair.settled.more for pair in compared.values())
        return VerifyReport(tuple(verdicts), tuple(differences), seconds, more=more)


def _absent(side: str, cluster: ClusterMetadata, name: str) -> str:
    found = cluster.topics.get(name)
    if found is not None and not found.error:
        return ""
    why = broker_error(found.error, name).message if found is not None else name
    return f"the {side} topic cannot be read: {why}"


def _narrowed(task: PairTask, left: WireClient, right: WireClient, from_time: int | None, to_time: int | None) -> PairTask:
    return replace(
        task,
        ours=_between(left, task.source, task.ours, from_time, to_time),
        theirs=_between(right, task.target, task.theirs, from_time, to_time),
    )


def _between(client: WireClient, tp: TopicPartition, log: OffsetRange, from_time: int | None, to_time: int | None) -> OffsetRange:
    """The part of a log from the first record at or after one time up to the first one at or after the other."""
    borders = []
    for when, otherwise in ((from_time, log[0]), (to_time, log[1])):
        answer = None if when is None or log[0] == log[1] else client.list_offsets({tp: when})[tp]
        if answer is not None and answer.error:
            raise broker_error(answer.error, str(tp))
        borders.append(otherwise if answer is None else log[1] if answer.offset < 0 else answer.offset)
    low = max(log[0], min(log[1], borders[0]))
    return low, max(low, min(log[1], borders[1]))


def verify_external(
    config: Config,
    source: str,
    target: str,
    topics: Mapping[str, str],
    *,
    from_time: int | None = None,
    to_time: int | None = None,
    observer: Callable[[VerifyProgress], None] | None = None,
    stop: threading.Event | None = None,
    session: SparkSession | None = None,
) -> VerifyReport:
    """Compare any topics of two clusters of a configuration, whatever tool copied them.

    Args:
        config: from :func:`mirror_pipeline.load_config`.
        source: alias of the cluster that was copied.
        target: alias of the cluster that was copied to.
        topics: source topic to target topic.
        from_time, to_time: only records from the first one at or after ``from_time`` up to the first one at or after
            ``to_time`` on each side, milliseconds since the epoch.
        observer: called from the calling thread as parts are done.
        stop: set it to end early.
        session: a Spark session to use; otherwise one is started when needed.

    Raises:
        UsageError: the configuration has no cluster of that alias.
        ClusterUnreachable: a cluster does not answer.
    """
    for alias in (source, target):
        if alias not in config.clusters:
            raise UsageError(f"{config.path} has no cluster '{alias}'", hint=f"it has: {', '.join(config.clusters)}")
    engine = config.mirrors[0].engine if config.mirrors else EngineConfig()

    def runner() -> SparkRunner:
        made = SparkRunner(session.sparkContext if session else build_context(engine, app_name="mirror verify"), tasks=engine.tasks)
        made.warm()
        return made

    check = ExternalCheck(
        config.clusters[source], config.clusters[target], lambda offsets: for_comparing(engine, offsets, runner),
        timeout=engine.request_timeout, observer=observer, stop=stop,
    )  # fmt: skip
    return check.run(topics, from_time, to_time)

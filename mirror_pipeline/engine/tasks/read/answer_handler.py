"""What an answer of the source, or a lost broker, means for the ranges of a read task: the error policy of both transports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mirror_pipeline.engine.tasks.read.messages import SILENT_SECONDS, ReadTask
from mirror_pipeline.engine.tasks.read.range_outcomes import RangeOutcomes, RangeState
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConnectionLost, CorruptBatch, MirrorError, TopicHalted, WireError
from mirror_pipeline.halts import internal, refused, unreadable
from mirror_pipeline.kafka.answers import EARLIEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import Action, broker_error, lookup
from mirror_pipeline.kafka.fetch import FetchedPartition, fetch
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.model import TopicPartition

EMPTY_ANSWERS_BEFORE_GIVING_UP = 20
FETCH_WAIT_MS = 100


class Unwritten(Exception):
    """An internal error kept a range from being written: the task's part file must be discarded."""

    def __init__(self, source: TopicPartition, error: Exception) -> None:
        super().__init__(str(error))
        self.source, self.error = source, error


class AnswerHandler:
    """Gives answers to the span builders, and decides what an error means: retry later, halt the topic, or fail the task.

    Args:
        task: what is read.
        client: the source.
        outcomes: records what became of each range.

    A transport calls ``flush_when_full`` after what it has taken together.
    """

    def __init__(self, task: ReadTask, client: WireClient, outcomes: RangeOutcomes) -> None:
        self._task = task
        self._client = client
        self._outcomes = outcomes
        self._ranges = outcomes.ranges
        self._held = 0

    def take(self, source: TopicPartition, data: FetchedPartition, asked: int = -1) -> None:
        """Take over one partition's answer; ``asked`` is the offset it was requested from, where that is known."""
        state = self._ranges[source]
        builder = state.builder
        self._held += len(data.records)
        if builder.done or state.halt or state.error:
            return  # reading stopped before this answer: what it holds would look like data after a hole
        try:
            if data.error:
                self.refused(source, broker_error(data.error, str(source)), data)
                return
            before = builder.next
            state.end = data.last_stable_offset
            builder.take(data, asked=asked, ask=partial(self._fetch_again, source, len(data.records)))
            state.empty = 0 if builder.next > before else state.empty + 1
            if state.empty > EMPTY_ANSWERS_BEFORE_GIVING_UP:
                state.error = f"the broker returned nothing for {source} at offset {builder.next}"
        except TopicHalted as error:
            state.halt = error.halt
        except (WireError, ClusterUnreachable) as error:  # of the second fetch
            self._client.forget(source)
            state.error = error.message
        except CorruptBatch as error:
            state.halt = unreadable(source, builder.next, error, cluster="source")
        except MirrorError:
            raise
        except Exception as fault:  # noqa: BLE001 - halts this topic alone
            state.faulty = True
            state.halt = internal(source, fault)

    def refused(self, source: TopicPartition, error: BrokerError, data: FetchedPartition | None = None) -> None:
        """A broker refuses a partition, with ``data`` in answer to a fetch."""
        action, state = lookup(error.code).action, self._ranges[source]
        if action is Action.RESEEK and data is not None:
            try:
                self._out_of_range(source, state)
            except BrokerError as refusal:
                self.refused(source, refusal)
        elif action in (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME):
            self._client.forget(source)
            state.error = error.message
        else:
            state.halt = refused(source, error)

    def lost(self, node: int, sources: Sequence[TopicPartition], error: WireError) -> None:
        """End the ranges of a broker in this task; those of others continue.

        Raises:
            BrokerError: no broker of the cluster would accept the request.
        """
        if isinstance(error, BrokerError) and lookup(error.code).action is Action.FATAL:
            raise error
        self._client.take_silent()
        for source in set(sources) & set(self._outcomes.open()):
            self._client.forget(source)
            if isinstance(error, BrokerError) and not error.retryable:
                self._ranges[source].halt = refused(source, error)
            else:
                self._ranges[source].error = error.message
        if isinstance(error, ConnectionLost) and error.timed_out:
            self._outcomes.silent[node] = error.message

    def flush_when_full(self) -> None:
        """Flush once the task's memory is used up; raises as ``flush`` does."""
        if self._held >= self._task.memory_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what all ranges hold as spans.

        Raises:
            Unwritten: an internal error in one range.
        """
        for source, state in self._ranges.items():
            if state.faulty:
                continue
            try:
                state.builder.flush()
            except MirrorError:
                raise
            except Exception as fault:
                raise Unwritten(source, fault) from fault
        self._held = 0

    def _fetch_again(self, source: TopicPartition, seen: int, offset: int) -> FetchedPartition:
        """Fetch from an offset over a separate connection: the others may have answers due.

        Raises:
            BrokerError, ConnectionLost: the broker refuses, or does not answer.
        """
        size = seen + self._task.partition_fetch_bytes
        leaders, errors = self._client.leaders([source], patience=0)
        if source in errors:
            raise errors[source]
        connection = self._client.opener(leaders[source])()
        try:
            answers = fetch(connection, {source: (offset, size)}, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=size)
        finally:
            connection.close()
        if source not in answers:
            raise ConnectionLost(f"{connection.peer}: the response does not contain {source}")
        if answers[source].error:
            raise broker_error(answers[source].error, str(source))
        return answers[source]

    def _out_of_range(self, source: TopicPartition, state: RangeState) -> None:
        """Offsets were deleted before they were read, or the log ends before them. The end is not judged here: the driver asks twice."""
        builder = state.builder
        start = offsets_at(self._client, [source], EARLIEST_TIME, within=SILENT_SECONDS)[source]
        if start > builder.next:
            builder.skip_trimmed(start)
            return
        self._client.forget(source)
        state.beyond = True
        state.error = f"the broker has no data for {source} at offset {builder.next}"

"""Reads over a short link: two connections to each broker, one request in flight on each.

While the answers of some connections are processed, the requests of the others are in flight. Each broker has its own
patience: a silent one ends its own ranges, never those of another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from mirror_pipeline.engine.tasks.read.answer_handler import FETCH_WAIT_MS, AnswerHandler
from mirror_pipeline.engine.tasks.read.messages import PATIENT_ROUND_TRIPS, SILENT_SECONDS, ReadTask
from mirror_pipeline.engine.tasks.read.range_outcomes import RangeOutcomes, RangeState
from mirror_pipeline.errors import ConnectionLost, WireError
from mirror_pipeline.kafka.client import Connection, WireClient, readable
from mirror_pipeline.kafka.fetch import receive_fetch, send_fetch
from mirror_pipeline.model import TopicPartition

LEAST_FETCH_BYTES = 1_048_588
"""The largest batch of a topic with Kafka's default settings."""
USUAL_FETCH_BYTES, FETCHED_BATCHES = 512 * 1024, 4
"""Per partition and request: what many partitions bring together should still be in the processor's cache when it is checked."""

MADE_UP_SECONDS = 0.5
"""Of a rate limit: what was not used of it may be used later, for so long."""
ONE_REQUEST_BYTES = 128 * 1024
"""Of one broker: as little is asked for over one connection. A second request would cost as much CPU as the first, and save no time."""


@dataclass(slots=True, eq=False)
class FetchSlot:
    """A connection and the partitions read over it: ``asked`` since when, ``rests`` until when while its broker throttles us."""

    node: int
    connection: Connection
    sources: list[TopicPartition]
    asked: float = 0.0
    rests: float = 0.0


def patience(task: ReadTask, client: WireClient, node: int) -> float:
    """Seconds without an answer after which a broker counts as silent."""
    return max(task.patience.get(node, SILENT_SECONDS), PATIENT_ROUND_TRIPS * client.round_trip)


class ShortFetch:
    """Opens its connections at once; ``run`` reads over them.

    Args:
        task: what is read.
        client: the source.
        handler: takes answers and errors.
        outcomes: which ranges can still be read.
        throttle: limits the rate.
    """

    def __init__(self, task: ReadTask, client: WireClient, handler: AnswerHandler, outcomes: RangeOutcomes, throttle: Throttle) -> None:
        self._task = task
        self._client = client
        self._handler = handler
        self._outcomes = outcomes
        self._throttle = throttle
        self._slots: list[FetchSlot] = []

    def open(self, by_leader: Mapping[int, list[TopicPartition]]) -> float:
        """Open two connections to each broker that accepts them, one where little is to be read; returns the shortest round trip.

        A busy moment makes any round trip look long, so the shortest one counts.
        """
        for node, sources in by_leader.items():
            two = len(sources) > 1 and sum(map(self._waiting_bytes, sources)) > ONE_REQUEST_BYTES
            halves = [sources[::2], sources[1::2]] if two else [sources]
            seconds = patience(self._task, self._client, node)
            try:
                slots = [FetchSlot(node, self._client.connection(node, number, within=seconds), half) for number, half in enumerate(halves)]
            except WireError as error:
                self._handler.lost(node, sources, error)
                continue
            for slot in slots:
                slot.connection.limit(seconds)
            self._slots += slots
        return min((slot.connection.round_trip for slot in self._slots), default=0.0)

    def _waiting_bytes(self, source: TopicPartition) -> float:
        """About how much there is to read."""
        wanted = self._outcomes.ranges[source].builder.rules.range
        return (wanted.end - wanted.start) * wanted.bytes_per_offset

    def run(self, deadline: float) -> None:
        """Read until all ranges are done or failed; no request is sent after ``deadline`` (monotonic seconds)."""
        waiting = {slot.connection: slot for slot in self._slots if self._ask(slot, deadline)}
        try:
            while waiting:
                self._turn(waiting, deadline)
        except BaseException:
            for connection in waiting:
                connection.close()
            raise

    def _turn(self, waiting: dict[Connection, FetchSlot], deadline: float) -> None:
        """Wait for answers, take them, ask again."""
        now = time.monotonic()
        asked = [slot for slot in waiting.values() if not slot.rests]
        until = [slot.asked + patience(self._task, self._client, slot.node) for slot in asked]
        until += [slot.rests for slot in waiting.values() if slot.rests]
        ready = readable([slot.connection for slot in asked], min(until) - now)
        for connection in ready:
            slot = waiting.pop(connection)
            if self._receive(slot) and time.monotonic() < deadline and self._ask(slot, deadline):
                waiting[connection] = slot
        for slot in list(waiting.values()):
            if slot.rests and slot.rests <= now:
                del waiting[slot.connection]
                if self._ask(slot, deadline):
                    waiting[slot.connection] = slot
            elif not slot.rests and slot.connection not in ready and slot.asked + patience(self._task, self._client, slot.node) <= now:
                del waiting[slot.connection]
                slot.connection.close()
                message = f"{slot.connection.peer}: no answer within {now - slot.asked:.1f} s"
                self._handler.lost(slot.node, slot.sources, ConnectionLost(message, timed_out=True))

    def _receive(self, slot: FetchSlot) -> bool:
        """Take the answer on a connection; whether it can be asked again."""
        try:
            answers = receive_fetch(slot.connection)
        except WireError as error:
            self._handler.lost(slot.node, slot.sources, error)
            return False
        heard, size = self._outcomes.heard, 0
        heard[slot.node] = max(heard.get(slot.node, 0.0), time.monotonic() - slot.asked)
        for source, data in answers.items():
            self._handler.take(source, data, self._outcomes.ranges[source].builder.next)
            size += len(data.records)
        if self._throttle.limited:
            self._throttle.pause(size)
        self._handler.flush_when_full()
        return True

    def _ask(self, slot: FetchSlot, deadline: float) -> bool:
        """Request what is still to be read over a connection, now or once its broker stops throttling; False when there is nothing."""
        ranges = self._outcomes.ranges
        wants = {s: (ranges[s].builder.next, self._fetch_bytes(ranges[s])) for s in slot.sources if ranges[s].open}
        if not wants:
            return False
        now = time.monotonic()
        slot.rests = now + slot.connection.muted if slot.connection.muted else 0.0
        if slot.rests:
            return slot.rests < deadline
        slot.asked = now
        try:
            send_fetch(slot.connection, wants, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=self._task.fetch_bytes)
        except WireError as error:
            self._handler.lost(slot.node, slot.sources, error)
            return False
        return True

    def _fetch_bytes(self, state: RangeState) -> int:
        """No more than the range may still take: an answer is always taken over whole. A larger batch is requested again."""
        builder, most = state.builder, self._task.partition_fetch_bytes
        if state.empty:
            return most
        batch = builder.rules.range.bytes_per_batch
        usual = max(USUAL_FETCH_BYTES, int(FETCHED_BATCHES * batch)) if batch else LEAST_FETCH_BYTES
        return min(most, usual, max(builder.rules.range.max_bytes - builder.bytes_read, LEAST_FETCH_BYTES))


class Throttle:
    """Keeps the bytes of all threads together below a rate; no limit when the rate is None.

    Time between two answers, in which threads have other work to do, counts, up to :data:`MADE_UP_SECONDS`: otherwise the rate would
    never be reached.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self.limited = bool(bytes_per_second)
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def pause(self, size: int) -> None:
        """Account for ``size`` bytes received, and wait as long as they should have taken."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - MADE_UP_SECONDS) + size / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)

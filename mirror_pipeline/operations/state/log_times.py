"""When records were written: times at offsets of a source's logs, and least ages, for many partitions in few requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.answers import OffsetAnswer
from mirror_pipeline.kafka.client import Connection, WireClient
from mirror_pipeline.kafka.fetch import fetch
from mirror_pipeline.kafka.records.batch import headers
from mirror_pipeline.model import TopicPartition

log = logging.getLogger(__name__)

PARTITIONS_ASKED = 32
"""Times are read for the partitions with the most lag: each costs up to ``LOOK_BYTES``."""
TIME_LOOK_BYTES = 64 * 1024
MOST_QUESTIONS = 4
"""Requests to one broker when its partitions begin with batches so large that an answer holds few of them."""
LOOK_PATIENCE = 5.0
"""Seconds to wait when a client quota throttles the read of a log; after that times are left out."""
PARTITIONS_SEARCHED = 2_000
"""An age is searched for in at most this many partitions, in ``SEARCH_SECONDS`` and ``SEARCH_ROUNDS`` requests to each leader."""
SEARCH_SECONDS = 2.0
SEARCH_ROUNDS = 8
OLDEST_EXPONENT = 24.0
"""Ages are searched for up to 2 ** this many seconds: half a year."""


def first_times(client: WireClient, at: Mapping[TopicPartition, int], *, isolation: int) -> dict[TopicPartition, float]:
    """Time (seconds since the epoch) of the first batch at or after an offset.

    One request per leader, for all of its partitions. What cannot be read now, or is throttled by a client quota, is left out.

    Raises:
        ClusterUnreachable: no broker answers.
    """
    leaders, _ = client.leaders(list(at), patience=0) if at else ({}, {})
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, node in leaders.items():
        by_leader.setdefault(node, {})[tp] = at[tp]
    times: dict[TopicPartition, float] = {}
    for node, mine in by_leader.items():
        try:
            times |= _times_at(client.connection(node), mine, isolation)
        except (BrokerError, ConnectionLost) as error:
            log.info("times of broker %d are left out: %s", node, error.message)
    return times


def _times_at(connection: Connection, at: Mapping[TopicPartition, int], isolation: int) -> dict[TopicPartition, float]:
    """A broker returns a whole batch only for the first partition of a request; partitions without one are requested again."""
    times: dict[TopicPartition, float] = {}
    open_questions = dict(at)
    for _ in range(MOST_QUESTIONS):
        wants = {tp: (offset, TIME_LOOK_BYTES) for tp, offset in open_questions.items()}
        answers = fetch(
            connection, wants, max_wait_ms=0, min_bytes=0, max_bytes=TIME_LOOK_BYTES * len(wants), isolation=isolation,
            patience=LOOK_PATIENCE,
        )  # fmt: skip
        for tp, data in answers.items():
            header = next((h for _, h in headers(data.records) if h.next_offset > open_questions[tp]), None)
            if header is not None and header.base_timestamp > 0:
                times[tp] = header.base_timestamp / 1000
            end = data.last_stable_offset if isolation else data.high_watermark
            if header is not None or data.error or end <= open_questions[tp]:
                del open_questions[tp]
        if not open_questions:
            break
    return times


def least_ages(client: WireClient, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """How old the first record at or after an offset is at least, in seconds; no record is read.

    Searches by ListOffsets for the earliest time whose first record is not before the offset, all partitions of a leader in one
    request. Partitions that cannot be asked, or whose records have no times, are left out.

    Raises:
        ClusterUnreachable: no broker answers.
    """
    begun, now = time.monotonic(), time.time()
    searches = {tp: _AgeSearch(offset) for tp, offset in list(at.items())[:PARTITIONS_SEARCHED]}
    for _ in range(SEARCH_ROUNDS):
        left = SEARCH_SECONDS - (time.monotonic() - begun)
        asked = {tp: search.age for tp, search in searches.items() if not search.over}
        if not asked or left <= 0:
            break
        answers = client.list_offsets({tp: int((now - age) * 1000) for tp, age in asked.items()}, isolation=1, within=left)
        for tp, answer in answers.items():
            searches[tp].take(answer, now)
    return {tp: search.least for tp, search in searches.items() if search.timed and search.least > 0}


class _AgeSearch:
    """Bisects the age of the record at ``offset``, by exponents of 2."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._low, self._high = 0.0, OLDEST_EXPONENT
        self.least = 0.0
        self.timed = self.over = False

    @property
    def age(self) -> float:
        """The age to ask for next."""
        return float(2 ** ((self._low + self._high) / 2))

    def take(self, answer: OffsetAnswer, now: float) -> None:
        """Learn from the first record that is not older than ``age``; offset -1 if there is none."""
        self.over = bool(answer.error) or answer.offset == self._offset
        self.timed = self.timed or (not answer.error and answer.offset >= 0)
        if answer.error:
            return
        if 0 <= answer.offset < self._offset:
            self._high = (self._low + self._high) / 2
            return
        self.least = max(self.least, self.age if answer.offset < 0 else now - answer.timestamp / 1000)
        self._low = (self._low + self._high) / 2

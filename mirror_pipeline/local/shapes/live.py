"""A producer that writes while a mirror runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from uuid import uuid4

from mirror_pipeline.local.shapes.ground import Ground

TICK_SECONDS = 0.05
# Ticks per transaction; every third transaction is aborted.
TRANSACTION_TICKS = 10
LIVE_TRANSACTION_SECONDS = 60.0


def produce_live(bootstrap: str, topics: Sequence[str], rate: float, stop_event: threading.Event) -> dict[str, int]:
    """Write new, unique records to the topics in turn until stopped; some in transactions, some of which are aborted.

    Args:
        bootstrap: bootstrap servers of a cluster without security.
        topics: topics to write to.
        rate: records per second over all topics, without those in transactions.
        stop_event: ends the writing; an open transaction is finished first.

    Returns:
        Committed records for each topic.

    Raises:
        ProblemFound: Records could not be delivered.
    """
    with closing(Ground(bootstrap, seed=1)) as ground:
        return _Live(ground, topics).write(rate, stop_event)


class _Live:
    """Two producers, one of them transactional, and the number of records they have written."""

    def __init__(self, ground: Ground, topics: Sequence[str]) -> None:
        self.ground, self.topics = ground, topics
        self.run = uuid4().hex[:8]
        self.plain = ground.producer(compression_type="lz4")
        self.transactional = ground.producer(transactional_id=f"live-{self.run}", compression_type="zstd")
        self.transactional.init_transactions(LIVE_TRANSACTION_SECONDS)
        self.written: Counter[str] = Counter()

    def write(self, rate: float, stop: threading.Event) -> dict[str, int]:
        """Write at an even pace until stopped."""
        began, sent, tick = time.monotonic(), 0, 0
        while not stop.wait(max(0.0, began + tick * TICK_SECONDS - time.monotonic())):
            tick += 1
            while sent < tick * TICK_SECONDS * rate:
                topic = self.topics[sent % len(self.topics)]
                self.plain.produce(topic, self.ground.value(f"live/{self.run}", 0, sent, 200), b"live-%d" % sent)
                self.written[topic] += 1
                sent += 1
            self.plain.poll(0)
            if tick % TRANSACTION_TICKS == 0:
                self._transaction(tick // TRANSACTION_TICKS)
        self.ground.flush(self.plain)
        return dict(self.written)

    def _transaction(self, number: int) -> None:
        commit = number % 3 != 0
        self.transactional.begin_transaction()
        for topic in self.topics:
            self.transactional.produce(topic, f"live/{self.run}/transaction/{number}/{topic}".encode(), b"transaction")
            self.written[topic] += commit
        self.ground.flush(self.transactional)  # so that aborted records are in the log
        if commit:
            self.transactional.commit_transaction(LIVE_TRANSACTION_SECONDS)
        else:
            self.transactional.abort_transaction(LIVE_TRANSACTION_SECONDS)

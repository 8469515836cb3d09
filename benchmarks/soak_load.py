"""Constant load for the soak: a plain topic, a transactional one with aborts, a compacted one that really is compacted."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PLAIN, TRANSACTIONS, COMPACTED = "soak-plain", "soak-transactions", "soak-compacted"
SHARES = {PLAIN: 0.7, TRANSACTIONS: 0.2, COMPACTED: 0.1}
PARTITIONS = {PLAIN: 6, TRANSACTIONS: 2, COMPACTED: 2}
KEYS = 2_000
VALUE_BYTES = 1_000
TICK_SECONDS = 0.25
ABORT_EVERY = 10
COMPACTION = {
    "cleanup.policy": "compact", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.1", "max.compaction.lag.ms": "60000",
}  # fmt: skip


def create_topics(bootstrap: str) -> None:
    """Make the three topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, count, 1, config=COMPACTION if name == COMPACTED else {}) for name, count in PARTITIONS.items()]
    for created in admin.create_topics(topics).values():
        created.result(30)


class Load:
    """Writes ``rate`` bytes a second in all until it is stopped; counts what became visible."""

    def __init__(self, bootstrap: str, rate: float) -> None:
        self._bootstrap = bootstrap
        self._rate = rate
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(name, *self._how(name)), name=name, daemon=True) for name in SHARES
        ]  # fmt: skip
        self.records = self.bytes = self.aborted = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, with everything written; may be called again."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(60)

    def _how(self, name: str) -> tuple[dict[str, str], Callable[[int], bytes]]:
        if name == TRANSACTIONS:
            return {"transactional.id": f"soak-{os.getpid()}"}, lambda number: b"t%012d" % number
        return {}, lambda number: b"k%06d" % (number % KEYS) if name == COMPACTED else b"p%012d" % number

    def _write(self, name: str, extra: dict[str, str], key: Callable[[int], bytes]) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 20, **extra})
        if extra:
            producer.init_transactions(60)
        count = max(1, int(self._rate * SHARES[name] * TICK_SECONDS / VALUE_BYTES))
        filler = os.urandom(VALUE_BYTES).hex().encode()[: VALUE_BYTES - 20]
        numbers = itertools.count()
        due = time.monotonic()
        for tick in itertools.count(1):
            if self._over.is_set():
                break
            if extra:
                producer.begin_transaction()
            for number in itertools.islice(numbers, count):
                producer.produce(name, b"%020d" % number + filler, key(number), number % PARTITIONS[name])
            self._settle(producer, count, transactional=bool(extra), abort=bool(extra) and tick % ABORT_EVERY == 0)
            due += TICK_SECONDS
            self._over.wait(max(0.0, due - time.monotonic()))
        producer.flush(60)

    def _settle(self, producer: Producer, count: int, *, transactional: bool, abort: bool) -> None:
        if abort:
            producer.flush(30)
            producer.abort_transaction(30)
        elif transactional:
            producer.commit_transaction(30)
        else:
            producer.poll(0)
        with self._lock:
            self.aborted += count if abort else 0
            self.records += 0 if abort else count
            self.bytes += 0 if abort else count * VALUE_BYTES

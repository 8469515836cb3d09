"""A side topic: as many partitions as the topic it belongs to, filled with records that the topic lacks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from mirror_pipeline.errors import BrokerError, ConnectionLost, WireError
from mirror_pipeline.halts import without_leaders
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import Action, after_produce, broker_error
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, OpenRecord, headers, restamp, seal
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.topics.configs import KEPT_FOREVER, number, own_settings
from mirror_pipeline.verify.log_walk import READ_UNCOMMITTED, read_log
from mirror_pipeline.verify.pieces import contents

BATCH_BYTES = 256 << 10
READY_SECONDS = 30.0
"""A controller elects the leaders of a new topic within a second; a busy cluster may need much longer."""
WRITE_ATTEMPTS = 8
WRITE_PAUSE_SECONDS = 0.25


class SideTopic:
    """Writes with its own producer id, and only after reading what the topic already holds.

    Args:
        admin: of the target cluster.
        client: of the same cluster.
        beside: the topic whose settings and partitions it takes over.
        name: name of the side topic.
    """

    def __init__(self, admin: Admin, client: WireClient, beside: str, name: str) -> None:
        self._admin, self._client, self._beside, self._name = admin, client, beside, name

    def exists(self) -> bool:
        """Whether the topic is there."""
        return self._name in self._admin.topics([self._name])

    def ensure(self, *, largest: int = 0) -> None:
        """Create the topic, or its missing partitions, with the settings of the mirrored topic but without deletion.

        A new one takes batches of ``largest`` bytes.

        Raises:
            BrokerError: the cluster refuses.
        """
        model = self._admin.topics([self._beside])[self._beside]
        known = self._admin.topics([self._name]).get(self._name)
        if known is None:
            configs = self._admin.topic_configs([self._beside])[self._beside]
            if isinstance(configs, BrokerError):
                raise configs
            # Records must not expire before an operator has seen them.
            wanted = own_settings(configs) | KEPT_FOREVER
            if largest > (number(configs, "max.message.bytes") or 0):
                wanted["max.message.bytes"] = str(largest)
            self._admin.create_topic(self._name, model.partitions, model.replication_factor, wanted)
        elif known.partitions < model.partitions:
            self._admin.grow(self._name, model.partitions)
        self._wait(model.partitions)

    def _wait(self, partitions: int) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            topic = self._client.metadata([self._name]).topics[self._name]
            if not topic.error and len(topic.partitions) >= partitions and all(p.leader >= 0 for p in topic.partitions.values()):
                return
            if time.monotonic() > deadline:
                raise without_leaders(self._name, self._name, self._admin.cluster.alias, READY_SECONDS).error()
            time.sleep(WRITE_PAUSE_SECONDS)

    def places(self, partition: int, records: Sequence[OpenRecord]) -> list[int | None]:
        """The offset at which the side topic already holds each record, None where it does not; equal records count separately."""
        known: dict[object, deque[int]] = {}
        for record, _ in self._log(partition):
            known.setdefault(contents(record), deque()).append(record.offset)
        return [places.popleft() if (places := known.get(contents(record))) else None for record in records]

    def write(self, partition: int, records: Sequence[OpenRecord]) -> list[int | None]:
        """Write the records that are not there yet, in their order, and return the offset of each.

        After an unknown outcome the log is read again before anything is sent again.

        Raises:
            BrokerError: the cluster refuses for good.
            ConnectionLost: it did not answer in several attempts.
        """
        stamp = self._client.init_producer_id()
        tp = TopicPartition(self._name, partition)
        last: WireError | None = None
        for attempt in range(WRITE_ATTEMPTS):
            time.sleep(WRITE_PAUSE_SECONDS * attempt)
            try:
                places = self.places(partition, records)
                sequence = sum(producer == stamp.producer_id for _, producer in self._log(partition))
                for some in _portions([record for record, place in zip(records, places, strict=True) if place is None]):
                    batch = memoryview(seal(some, codec=0, base_offset=0))
                    header = next(header for _, header in headers(batch))
                    self._send(tp, restamp(header, batch, stamp, sequence), batch[HEADER_BYTES:])
                    sequence += len(some)
                return self.places(partition, records)
            except WireError as error:
                unknown = isinstance(error, BrokerError) and after_produce(error.code) in _PASSING
                if not (unknown or isinstance(error, ConnectionLost)):
                    raise
                self._client.forget(tp)
                last = error
        raise last or ConnectionLost(f"{tp} could not be written")

    def _send(self, tp: TopicPartition, head: bytes, rest: memoryview) -> None:
        connection = self._client.connection(self._client.leader(tp))
        send_produce(connection, {tp: (head, rest)}, timeout_ms=int(self._client.timeout * 500), wait=0.0)
        answer = receive_produce(connection)[tp]
        if answer.error:
            raise broker_error(answer.error, str(tp), answer.message)

    def _log(self, partition: int) -> Iterator[tuple[OpenRecord, int]]:
        """Every record of the side topic, with the producer id that wrote it."""
        if not self.exists():
            return
        tp = TopicPartition(self._name, partition)
        start, end = log_range(self._client, [tp], isolation=READ_UNCOMMITTED)[tp]
        for piece in read_log(self._client, tp, start, end, isolation=READ_UNCOMMITTED, line=1):
            for record in piece.opened():
                yield record, piece.header.producer_id


_PASSING = (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME)


def _portions(records: Sequence[OpenRecord]) -> Iterator[Sequence[OpenRecord]]:
    start = held = 0
    for index, record in enumerate(records):
        if index > start and held + len(record.tail) > BATCH_BYTES:
            yield records[start:index]
            start, held = index, 0
        held += len(record.tail)
    if start < len(records):
        yield records[start:]

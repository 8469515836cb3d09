"""Many tails at once: one request to each leader and step, and a leader that does not answer costs the others nothing."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from crc32c import crc32c

from mirror_pipeline.engine.driver.write.recovery import NotReplicated, Tail, read_tails
from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.halts import Halt
from mirror_pipeline.kafka.answers import OffsetAnswer
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, OpenRecord, headers, restamp, seal, tail_of
from mirror_pipeline.kafka.records.header import CRC_START
from mirror_pipeline.model import Position, Stamp, TopicPartition
from tests.model.cluster import ModelClient, ModelCluster, ModelConnection
from tests.model.processes import Clock

OURS = Stamp(4711, 0)
LAST_DELTA = 23


class Client(ModelClient):
    """Three leaders; the ``silent`` answer nothing, those in ``dead`` lead nothing. Counts what is asked."""

    def __init__(self, cluster: ModelCluster, *, silent: Collection[int] = (), dead: Collection[int] = ()) -> None:
        super().__init__(cluster)
        self.silent, self.dead = set(silent), set(dead)
        self.asked: Counter[str] = Counter()
        self.asked_of: Counter[int] = Counter()

    def leaders(self, tps: Collection[TopicPartition], *, patience: float = 0.0) -> Any:
        self.asked["leaders"] += 1
        found = {tp: tp.partition % 3 for tp in tps}
        errors = {tp: broker_error(5, str(tp)) for tp, node in found.items() if node in self.dead}
        return {tp: node for tp, node in found.items() if tp not in errors}, errors

    def connection(self, node_id: int, lane: int = 0, *, within: float = 0.0) -> ModelConnection:
        self.asked["fetch"] += 1
        if node_id in self.silent:
            raise ConnectionLost("silent", timed_out=True)
        return super().connection(node_id, lane)

    def _count(self, what: str, tps: Collection[TopicPartition]) -> set[TopicPartition]:
        self.asked[what] += 1
        self.asked_of.update({tp.partition % 3 for tp in tps})
        return {tp for tp in tps if tp.partition % 3 in self.silent}

    def list_offsets(
        self, at: Mapping[TopicPartition, int], *, isolation: int = 1, within: float | None = None
    ) -> dict[TopicPartition, OffsetAnswer]:
        lost = self._count("list offsets", at)
        return super().list_offsets(at) | dict.fromkeys(lost, OffsetAnswer(-1, -1, 13))

    def log_ends(self, tps: Collection[TopicPartition], *, within: float | None = None) -> dict[TopicPartition, OffsetAnswer]:
        lost = self._count("log ends", tps)
        return super().log_ends(tps) | dict.fromkeys(lost, OffsetAnswer(-1, -1, 13))

    def describe_producers(self, tps: Collection[TopicPartition], *, within: float | None = None) -> dict[TopicPartition, Any]:
        lost = self._count("describe producers", tps)
        return {**super().describe_producers(tps), **{tp: broker_error(13, str(tp)) for tp in lost}}


def cluster(partitions: int) -> ModelCluster:
    return ModelCluster(Clock(), "west", "east.t", partitions, "id")


def put(made: ModelCluster, partition: int, offsets: list[int], sequence: int, stamp: Stamp = OURS, *, last: int | None = None) -> None:
    """One batch of so many records; ``last`` is its last offset where the cleaner has taken records out."""
    raw = memoryview(seal([OpenRecord(at, 1000, tail_of(b"k", b"v", ())) for at in offsets], codec=0))
    _, header = next(headers(raw))
    batch = bytearray(restamp(header, raw, stamp, sequence) + raw[HEADER_BYTES:])
    if last is not None:
        struct.pack_into(">i", batch, LAST_DELTA, last)
        struct.pack_into(">I", batch, CRC_START - 4, crc32c(batch[CRC_START:]))
    log = made.logs[TopicPartition("east.t", partition)]
    _, header = next(headers(batch))
    log.keep(bytes(batch), header)
    log.replicated = log.end


def tails(client: ModelClient, made: ModelCluster, stamp: Stamp | None = OURS, **given: Any) -> dict[int, Any]:
    wanted = dict.fromkeys(made.logs, Position(0, 0, 0))
    found = read_tails(client, wanted, stamp, timeout=0.0, **given)  # type: ignore[arg-type]
    return {tp.partition: answer for tp, answer in found.items()}


def test_thousands_of_partitions_are_asked_about_together() -> None:
    made = cluster(2000)
    for partition in range(0, 2000, 7):
        put(made, partition, [0, 1], 0)
    client = Client(made)
    found = tails(client, made)
    assert sum(tail.records for tail in found.values()) == 2 * len(range(0, 2000, 7))
    assert sum(client.asked.values()) < 20, client.asked


@pytest.mark.parametrize("trouble", ["silent", "dead"])
def test_a_leader_that_does_not_answer_is_asked_once_and_the_others_go_on(trouble: str) -> None:
    made = cluster(30)
    for partition in range(30):
        put(made, partition, [0, 1, 2], 0)
    client = Client(made, **{trouble: [1]})
    found = tails(client, made)
    lost = {number for number, answer in found.items() if isinstance(answer, ConnectionLost | BrokerError)}
    assert lost == {number for number in range(30) if number % 3 == 1}
    assert all(isinstance(found[number], Tail) and found[number].records == 3 for number in range(30) if number not in lost)
    assert client.asked_of[1] <= 1, "a broker that has not answered was asked again"
    assert all(not isinstance(found[number], NotReplicated) for number in lost)


def test_records_that_the_cleaner_took_out_of_a_batch_are_no_gap() -> None:
    made = cluster(1)
    put(made, 0, [0, 1, 2], 0, last=5)
    put(made, 0, [0, 1], 6, last=2)
    found = tails(Client(made), made)[0]
    assert isinstance(found, Tail) and found.records == 9, found


def test_a_batch_that_is_missing_is_a_gap() -> None:
    made = cluster(1)
    put(made, 0, [0, 1], 0)
    put(made, 0, [0, 1], 4)
    halt = tails(Client(made), made)[0]
    assert isinstance(halt, Halt) and halt.code == "sequence_gap"


def test_what_brokers_remember_of_the_copy_before_is_not_in_the_way_of_the_next() -> None:
    """The topic was emptied by DeleteRecords: the end stays, and so does what the leader knows of our last sequence."""
    made = cluster(1)
    place = TopicPartition("east.t", 0)
    log = made.logs[place]
    assert log.append(stamped([0, 1, 2], 0, OURS)) == (0, 0)
    log.log.clear()
    log.replicated = log.end
    wanted = {place: Position(0, 3, 0)}
    found = read_tails(Client(made), wanted, OURS, timeout=0.0, epochs={place: 1})[place]  # type: ignore[arg-type]
    assert found == Tail(place, 0, 3)
    assert log.append(stamped([0, 1], 0, OURS))[0] == 45, "the same epoch cannot begin again"
    assert log.append(stamped([0, 1], 0, Stamp(OURS.producer_id, 1))) == (0, 3)
    assert log.append(stamped([0], 3, OURS))[0] == 47, "a late sender of the copy before is refused"


def stamped(offsets: list[int], sequence: int, stamp: Stamp) -> bytes:
    raw = memoryview(seal([OpenRecord(at, 1000, tail_of(b"k", b"v", ())) for at in offsets], codec=0))
    _, header = next(headers(raw))
    return bytes(restamp(header, raw, stamp, sequence)) + bytes(raw[HEADER_BYTES:])


def test_a_late_batch_of_the_copy_before_is_not_ours() -> None:
    made = cluster(1)
    put(made, 0, [0, 1], 0)
    halt = tails(Client(made), made, epochs={TopicPartition("east.t", 0): 1})[0]
    assert isinstance(halt, Halt) and halt.code == "foreign_writer"


def test_a_damaged_batch_on_the_target_halts_its_topic_and_not_the_others() -> None:
    made = cluster(2)
    for partition in range(2):
        put(made, partition, [0, 1], 0)
    log = made.logs[TopicPartition("east.t", 1)]
    stored = log.log[0]
    log.log[0] = type(stored)(stored.base, stored.header, stored.raw[:8] + b"\0\0\0\1" + stored.raw[12:])
    found = tails(Client(made), made)
    assert isinstance(found[0], Tail)
    assert isinstance(found[1], Halt) and found[1].code == "unreadable"

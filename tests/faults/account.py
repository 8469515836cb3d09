"""The account of every record: read both logs with an ordinary consumer, compare; then byte for byte; then the ledger."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.model import HoleCause
from mirror_pipeline.model import TopicPartition as Place
from mirror_pipeline.verify.compare import compare_topics
from mirror_pipeline.verify.log_walk import read_log
from tests.faults.report import Account

READ_SECONDS = 60.0
NAME_BYTES = 60

Values = dict[int, list[str]]


def read_values(bootstrap: str, topic: str, *, committed: bool) -> Values:
    """The names (first word) of a topic's values, by partition, in order of the log."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "account", "enable.auto.commit": False, "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted", "log_level": 0,
        }
    )  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        values: Values = {number: [] for number in partitions}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        left, heard = set(partitions), time.monotonic()
        while left:
            messages = consumer.consume(500, timeout=0.2)
            heard = time.monotonic() if messages else heard
            if time.monotonic() - heard > READ_SECONDS:
                raise AssertionError(f"{topic} could not be read to its end: {sorted(left)} are left")
            for message in messages:
                error = message.error()
                if error is None:
                    values[message.partition() or 0].append((message.value() or b"")[:NAME_BYTES].split(b" ", 1)[0].decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
        return values
    finally:
        consumer.close()


def compare_values(source: Values, target: Values, account: Account, *, topic: str) -> None:
    """Count values that are lost, duplicated, out of order, or on the target without a source record.

    A value that the source has twice, because its own producer sent it again, must be on the target twice.
    """
    if not any(source.values()):
        account.unexplain(f"{topic} is empty on the source: the load has not worked")
    for partition in sorted(source.keys() | target.keys()):
        ours, theirs = _occurrences(source.get(partition, [])), _occurrences(target.get(partition, []))
        account.records += len(ours)
        place = {value: index for index, value in enumerate(ours)}
        more = [value for value in theirs if value not in place]
        there = set(theirs)
        lost = [value for value in ours if value not in there]
        duplicated = [value for value in more if (value[0], 1) in place]
        strange = [value for value in more if (value[0], 1) not in place]
        order = [place[value] for value in theirs if value in place]
        wrong = sum(1 for before, after in zip(order, order[1:], strict=False) if after < before)
        account.lost += len(lost)
        account.doubled += len(duplicated)
        account.disordered += wrong
        account.unexplained += len(strange)
        for what, values in (("lost", lost), ("duplicated", duplicated), ("not of the source", strange)):
            if values:
                account.tell(f"{topic}[{partition}]: {len(values)} {what}: {[value for value, _ in values[:3]]} ... {values[-1][0]}")
        if wrong:
            account.tell(f"{topic}[{partition}]: {wrong} out of order")


def _occurrences(values: Sequence[str]) -> list[tuple[str, int]]:
    """Each value with how often it has been there so far."""
    seen: Counter[str] = Counter()
    found = []
    for value in values:
        seen[value] += 1
        found.append((value, seen[value]))
    return found


def acked_are_there(target: Values, acked: Mapping[tuple[str, int], int], failed: Mapping[tuple[str, int], int], topic: str) -> int:
    """How many acknowledged values are not on the target (0 unless some of its sends failed)."""
    missing = 0
    for partition, values in target.items():
        count = acked.get((topic, partition), 0)
        if not failed.get((topic, partition), 0):
            there = set(values)
            missing += sum(1 for number in range(count) if f"{topic}/{partition}/{number}" not in there)
    return missing


def account_contents(mirror: Mirror, pairs: Mapping[str, str], account: Account) -> None:
    """Every field of every record, raw, both sides."""
    for comparison in compare_topics(mirror.flow.source, mirror.flow.target, dict(pairs)):
        if comparison.verdict == "identical":
            continue
        kinds = Counter(difference.kind for difference in comparison.differences)
        account.unexplain(f"compare {comparison.topic}: {comparison.verdict}, {dict(kinds)}, {comparison.differences[:3]}")


def account_ledger(mirror: Mirror, account: Account, *, allowed: Iterable[HoleCause] = ()) -> None:
    """The offset map tiles, and no hole or gap is there that nothing explains."""
    natural = {None, HoleCause.MARKER, HoleCause.ABORTED, HoleCause.COMPACTION, *allowed}
    for store in mirror.flow.lane_stores():
        ledger = Ledger(store)
        try:
            ledger.audit()
        except BufferUnusable as problem:
            account.unexplain(f"ledger: {problem}")
        for send in ledger.sends():
            if send.cause not in natural:
                account.unexplain(f"hole {send.topic}[{send.partition}] [{send.source_start}, {send.source_end}): {send.cause}")
        for gap in ledger.gaps():
            if gap.cause not in natural:
                account.unexplain(f"gap {gap.topic}[{gap.partition}] [{gap.start}, {gap.end}): {gap.cause}")


def account_offsets(mirror: Mirror, pairs: Mapping[str, str], account: Account) -> None:
    """With ``offsets: exact``: every record of the target has its source's offset, and the logs end at the same one."""
    for topic, copy in pairs.items():
        with WireClient(mirror.flow.source) as here, WireClient(mirror.flow.target) as there:
            for number in here.metadata([topic]).topics[topic].partitions:
                source, target = Place(topic, number), Place(copy, number)
                left, right = _offsets(here, source, isolation=1), _offsets(there, target, isolation=0)
                if left != right:
                    different = next((pair for pair in zip(left, right, strict=False) if pair[0] != pair[1]), (len(left), len(right)))
                    account.unexplain(f"{source}: offsets differ, first {different}")


def _offsets(client: WireClient, place: Place, *, isolation: int) -> list[int]:
    """The offset of every record, and last the end of the log."""
    start, end = log_range(client, [place], isolation=isolation)[place]
    return [*(record.offset for piece in read_log(client, place, start, end, isolation=isolation) for record in piece.records()), end]

"""The limit beside the product: record batches from the source to the target with nothing between the two.

    python -m benchmarks.limit SOURCE TARGET PREFIX TOPIC...        copies TOPIC to PREFIX.TOPIC until SIGTERM

No buffer, no checks, no producer ids, no ledger: what brokers and the wire allow on the same cores with this project's own client.
One thread fetches over two connections to each broker, one thread produces over one, with several requests in flight, as `mirror run`
does in one process. Small uncompressed batches are merged as the mirror merges them, because that is faster than passing each on; all
others keep every byte but those that a broker overwrites. Nothing is recovered: any error ends the copy.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct

from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.client import WireClient, readable
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.fetch import FetchedPartition, receive_fetch, send_fetch
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.records.header import CODEC_MASK, HEADER, HEADER_BYTES, LOG_OVERHEAD
from mirror_pipeline.kafka.records.merge import MERGED_BATCH_BYTES, merge, worth_merging
from mirror_pipeline.kafka.wire.buffers import BufferPool
from mirror_pipeline.kafka.wire.connection import Connection
from mirror_pipeline.kafka.wire.transport import Buffer
from mirror_pipeline.local.shapes.ground import OPEN_TIMES
from mirror_pipeline.model import TopicPartition

FETCH_BYTES, FETCH_WAIT_MS = 32 << 20, 500
PARTITION_BYTES = 512 * 1024  # larger answers leave the processor's cache before they are sent
FETCH_CONNECTIONS = 2  # to each broker: while one answer is taken over, the broker prepares the other
KEPT_REPLIES = 32  # per connection; fresh memory costs the kernel more than the copy into it
HELD_BYTES = 48 << 20  # fetched and not acknowledged
REQUEST_BYTES = 4 << 20
REQUESTS_IN_FLIGHT = 5
PRODUCE_TIMEOUT_MS = 30_000
MAX_MESSAGE_BYTES = 16 << 20
ADMIN_SECONDS = 120.0
TOPICS_A_REQUEST = 500
_HEAD = Struct(">qii")  # base offset 0, length, leader epoch -1: none of them is under the checksum
_WAKE = 0.1  # seconds between looks at what has failed


class Pipe:
    """Batches by source partition, in order, between the two threads; bounded in bytes."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self._waiting: dict[TopicPartition, deque[memoryview]] = {tp: deque() for tp in partitions}
        self._turns: deque[TopicPartition] = deque()
        self._held = 0
        self._changed = threading.Condition()

    def put(self, batches: Mapping[TopicPartition, Sequence[memoryview]]) -> None:
        """Add what one answer brought; waits while too much is held."""
        with self._changed:
            while self._held > HELD_BYTES:
                self._changed.wait()
            for tp, found in batches.items():
                if found and not self._waiting[tp]:
                    self._turns.append(tp)
                self._waiting[tp].extend(found)
                self._held += sum(map(len, found))
            self._changed.notify_all()

    def request(self, *, wait: bool) -> dict[TopicPartition, memoryview]:
        """The next request: one batch of each partition that has any, up to 4 MiB; empty when there is none.

        Args:
            wait: wait until there is one.
        """
        chosen: dict[TopicPartition, memoryview] = {}
        with self._changed:
            while wait and not self._turns:
                self._changed.wait()
            size, again = 0, []
            while self._turns and size < REQUEST_BYTES:
                tp = self._turns.popleft()
                batches = self._waiting[tp]
                chosen[tp] = batches.popleft()
                size += len(chosen[tp])
                if batches:
                    again.append(tp)
            self._turns.extend(again)
        return chosen

    def sent(self, size: int) -> None:
        """So many bytes are acknowledged."""
        with self._changed:
            self._held -= size
            self._changed.notify_all()


def outgoing(data: memoryview) -> tuple[list[memoryview], int]:
    """The batches of one partition of an answer as a broker takes them, and the next source offset (-1: there is no whole batch).

    Args:
        data: batches as fetched, in memory that may be written to; the last one may be cut off.
    """
    unpack, at, records, packed, after = HEADER.unpack_from, 0, 0, 0, -1
    stops = []
    while at + HEADER_BYTES <= len(data):
        base, length, _, _, _, attributes, delta, *_, count = unpack(data, at)
        stop = at + length + LOG_OVERHEAD
        if stop > len(data):
            break
        at, after, records, packed = stop, base + delta + 1, records + count, packed | (attributes & CODEC_MASK)
        stops.append(stop)
    if worth_merging(len(stops), records, at, packed=bool(packed)):
        batches = [_writable(batch) for batch in merge(data[:at], records=records, max_bytes=MERGED_BATCH_BYTES)]
    else:
        batches = [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
    for batch in batches:
        _HEAD.pack_into(batch, 0, 0, len(batch) - LOG_OVERHEAD, -1)
    return batches, after


def _writable(batch: Buffer) -> memoryview:
    view = memoryview(batch)
    return memoryview(bytearray(view)) if view.readonly else view


def fetch(client: WireClient, partitions: Sequence[TopicPartition], pipe: Pipe) -> None:
    """Read all partitions from their first offset on, without end.

    Raises:
        MirrorError: a broker refused, or a connection broke.
    """
    offsets = dict.fromkeys(partitions, 0)
    shares: dict[Connection, list[TopicPartition]] = {}
    for node, led in _by_leader(client, partitions).items():
        for number in range(min(FETCH_CONNECTIONS, len(led))):
            shares[_connect(client, node)] = led[number::FETCH_CONNECTIONS]
    for connection in shares:
        _ask(connection, shares[connection], offsets)
    while True:
        for connection in readable(shares, FETCH_WAIT_MS / 1000 * 2):
            answer = receive_fetch(connection)
            found = {tp: _taken(tp, data, offsets) for tp, data in answer.items() if data.records or data.error}
            _ask(connection, shares[connection], offsets)  # before the batches are handed over: the broker works meanwhile
            pipe.put(found)


def _taken(tp: TopicPartition, data: FetchedPartition, offsets: dict[TopicPartition, int]) -> list[memoryview]:
    if data.error:
        raise broker_error(data.error, f"fetch of {tp}")
    batches, after = outgoing(data.records)
    if after >= 0:
        offsets[tp] = after
    return batches


def _ask(connection: Connection, partitions: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
    wants = {tp: (offsets[tp], PARTITION_BYTES) for tp in partitions}
    send_fetch(connection, wants, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES)


def produce(client: WireClient, names: Mapping[TopicPartition, TopicPartition], pipe: Pipe) -> None:
    """Send whatever the pipe holds, without end.

    Args:
        client: of the target.
        names: target partition by source partition.
        pipe: what was fetched.

    Raises:
        MirrorError: a broker refused, or a connection broke.
    """
    led = _by_leader(client, list(names.values()))
    if len(led) != 1:
        raise MirrorError("the limit is measured with one target broker", hint="start clusters of one broker each")
    connection = _connect(client, next(iter(led)))
    flying: deque[int] = deque()
    while True:
        while len(flying) < REQUESTS_IN_FLIGHT and (chosen := pipe.request(wait=not flying)):
            batches = {names[tp]: (batch[:HEADER_BYTES], batch[HEADER_BYTES:]) for tp, batch in chosen.items()}
            send_produce(connection, batches, timeout_ms=PRODUCE_TIMEOUT_MS)
            flying.append(sum(map(len, chosen.values())))
            del batches, chosen  # the views into the fetched answers
        for tp, answer in receive_produce(connection).items():
            if answer.error:
                raise broker_error(answer.error, f"produce to {tp}", answer.message)
        pipe.sent(flying.popleft())


def _by_leader(client: WireClient, partitions: Sequence[TopicPartition]) -> dict[int, list[TopicPartition]]:
    leaders, errors = client.leaders(partitions)
    for error in errors.values():
        raise error
    found: dict[int, list[TopicPartition]] = {}
    for tp in partitions:
        found.setdefault(leaders[tp], []).append(tp)
    return found


def _connect(client: WireClient, node: int) -> Connection:
    host, port = client.metadata(()).brokers[node]
    return Connection(host, port, replies=BufferPool(KEPT_REPLIES))


def create(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Make the target topics; ``partitions`` by name."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {**OPEN_TIMES, "max.message.bytes": str(MAX_MESSAGE_BYTES)}
    topics = [NewTopic(name, num_partitions=count, replication_factor=1, config=config) for name, count in partitions.items()]
    for start in range(0, len(topics), TOPICS_A_REQUEST):
        chunk = topics[start : start + TOPICS_A_REQUEST]
        for made in admin.create_topics(chunk, operation_timeout=ADMIN_SECONDS, request_timeout=ADMIN_SECONDS).values():
            made.result(ADMIN_SECONDS)


def copy(source: str, target: str, prefix: str, topics: Sequence[str]) -> None:
    """Copy until the process is ended.

    Raises:
        MirrorError: a broker refused, or a connection broke.
    """
    reader, writer = (WireClient(ClusterSettings(name, (address,))) for name, address in (("source", source), ("target", target)))
    found = reader.metadata(topics).topics
    names = {
        TopicPartition(topic, number): TopicPartition(f"{prefix}.{topic}", number) for topic in topics for number in found[topic].partitions
    }
    create(target, {f"{prefix}.{topic}": len(found[topic].partitions) for topic in topics})
    for tp, end in writer.list_offsets(dict.fromkeys(names.values(), LATEST_TIME)).items():  # waits for the leaders of new topics
        if end.error:
            raise broker_error(end.error, f"end of {tp}")
    pipe, failed = Pipe(names), threading.Event()
    errors: list[MirrorError] = []

    def guarded(action: object, *arguments: object) -> None:
        try:
            action(*arguments)  # type: ignore[operator]
        except MirrorError as error:
            errors.append(error)
        finally:
            failed.set()

    for words in ((fetch, reader, list(names), pipe), (produce, writer, names, pipe)):
        threading.Thread(target=guarded, args=words, daemon=True).start()
    while not failed.wait(_WAKE):
        pass
    raise errors[0] if errors else MirrorError("a thread ended", hint="its traceback is above")


def main(given: Sequence[str] | None = None) -> int:
    """Copy until SIGTERM; an error is one line and exit code 1."""
    parser = argparse.ArgumentParser(prog="benchmarks.limit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("prefix")
    parser.add_argument("topics", nargs="+")
    options = parser.parse_args(given)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        copy(options.source, options.target, options.prefix, options.topics)
    except MirrorError as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

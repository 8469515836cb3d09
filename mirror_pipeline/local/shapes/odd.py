"""Edge cases inside a record or a batch: nulls, headers, timestamps, tombstones, equal records, one-record batches."""

from __future__ import annotations

import time

from mirror_pipeline.local.shapes.ground import CODECS, Ground, Raw, SeededTopic, raw_batch
from mirror_pipeline.local.shapes.plain import YEAR_2001

# A client without a timestamp writes this; brokers accept it and consumers see "no timestamp".
ODD_TIMESTAMP = -1
YEAR_2100 = 4_102_444_800_000
NOT_UTF8 = b"\xff\xfe\x80caf\xe9"


def _size(records: list[Raw]) -> int:
    return sum(len(key or b"") + len(value or b"") for _, key, value, _ in records)


def _append(ground: Ground, name: str, partitions: int, batches: list[list[Raw]], description: str, *, live: bool = False) -> SeededTopic:
    """Write each batch raw with each codec in turn, distributed over the partitions in turn."""
    topic = ground.create(name, partitions)
    for index, records in enumerate(batches):
        ground.append(topic, index % partitions, raw_batch(records, codec=index // partitions % len(CODECS)))
    return SeededTopic(topic, partitions, sum(map(len, batches)), sum(map(_size, batches)), description, live=live)


def nulls(ground: Ground) -> SeededTopic:
    """Null and empty keys and values in all combinations, and fully equal records, which must remain separate records."""
    now = int(time.time() * 1000)
    choices: tuple[bytes | None, ...] = (None, b"", b"k")
    batches: list[list[Raw]] = []
    for index in range(20):
        records: list[Raw] = [(now + index, key, value, ()) for key in choices for value in (None, b"", b"v-%d" % index)]
        twin: Raw = (now, b"twin", b"equal to its neighbours", ())
        batches.append([*records, twin, twin, twin])
    return _append(ground, "nulls", 2, batches, "null and empty keys and values, equal records", live=True)


def record_headers(ground: Ground) -> SeededTopic:
    """Headers as clients write them: duplicates, order, null and empty and binary values."""
    topic = ground.create("headers", 2)
    producer = ground.producer(compression_type="snappy")
    size = 0
    for index in range(400):
        value = ground.value(topic, index % 2, index, 80)
        binary = bytes((index + step) % 256 for step in range(64))
        headers: list[tuple[str, str | bytes | None]] = [
            ("a", b"1"),
            ("b", b"2"),
            ("a", b"3"),
            ("null", None),
            ("empty", b""),
            ("binary", binary),
            ("ключ", "значение".encode()),
        ]
        producer.produce(topic, value, None, index % 2, headers=headers[index % 3 :])
        size += len(value)
    ground.flush(producer)
    return SeededTopic(topic, 2, 400, size, "duplicate, null, empty and binary headers", live=True)


def raw_headers(ground: Ground) -> SeededTopic:
    """Header keys that clients reject: invalid UTF-8 and empty ones; and one record with 500 headers."""
    now = int(time.time() * 1000)
    batches: list[list[Raw]] = []
    for index in range(20):
        pairs = [(NOT_UTF8, b"x"), (b"", b"no name"), (b"", None), (b"\x00", b""), (NOT_UTF8, None)]
        batches.append([(now + n, b"%d" % n, b"raw-%d-%d" % (index, n), pairs[n % 5 :] + pairs[: n % 5]) for n in range(15)])
    batches.append([(now, None, b"five hundred", [(b"h%d" % n, b"%d" % n) for n in range(500)])])
    return _append(ground, "raw-headers", 2, batches, "header keys that are not UTF-8, or empty")


def times(ground: Ground) -> SeededTopic:
    """Timestamps of 2001, 2100, zero and none, and decreasing ones inside a batch."""
    now = int(time.time() * 1000)
    clocks = (YEAR_2001, 0, ODD_TIMESTAMP, YEAR_2100, now, 1)
    batches: list[list[Raw]] = []
    for index in range(24):
        mixed: list[Raw] = [(clocks[(n + index) % 6], b"%d" % n, b"time-%d-%d" % (index, n), ()) for n in range(12)]
        same: list[Raw] = [(clocks[index % 6], None, b"same-%d-%d" % (index, n), ()) for n in range(12)]
        batches += [mixed, same]
    return _append(ground, "times", 2, batches, "timestamps of 2001, 2100, 0 and none")


def single_record_batches(ground: Ground) -> SeededTopic:
    """Every batch holds one record, with a header of about sixty bytes."""
    count = min(2_000, max(100, ground.scale // 10))
    now = int(time.time() * 1000)
    batches: list[list[Raw]] = [[(now + n, b"%d" % n, b"single-%d" % n, ())] for n in range(count)]
    return _append(ground, "one-record-batches", 2, batches, "every batch holds one record", live=True)


def tombstones(ground: Ground) -> SeededTopic:
    """Values and their tombstones in a topic without compaction, including batches of tombstones only."""
    now = int(time.time() * 1000)
    batches: list[list[Raw]] = []
    for index in range(15):
        batches.append([(now, b"gone-%d" % n, b"%d-%d" % (index, n), ()) for n in range(20)])
        batches.append([(now + 1, b"gone-%d" % n, None, [(b"why", b"deleted")] if n % 2 else ()) for n in range(20)])
    return _append(ground, "tombstones", 1, batches, "values and tombstones")

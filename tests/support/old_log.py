"""A log as brokers and clients before Kafka 0.11 wrote it: segment files by hand, since no broker writes these formats any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mirror_pipeline.kafka.records.compression import compress
from tests.support.batch_samples import message

NONE, GZIP, SNAPPY, LZ4 = range(4)
APPEND_TIME_BIT = 0x08
FIRST_TIME = 1_400_000_000_000


def value(offset: int) -> bytes:
    """What the record at a source offset holds."""
    return b"value-%d" % offset


def old_batch(
    offsets: Sequence[int], magic: int, codec: int = NONE, *, append_time: int | None = None, keys: str = "key-%d", size: int = 0
) -> bytes:
    """Records at these offsets: a compressed wrapper, or one message after the other.

    A wrapper of magic 0 holds absolute offsets, one of magic 1 counts from the offset it was sent with, and keeps doing so
    when the cleaner has taken records out of it; both stand in the log at the offset of their last record.
    """
    rows = [(offset, (keys % offset).encode(), value(offset).ljust(size, b".")) for offset in offsets]
    if codec == NONE:
        bits = 0 if append_time is None else APPEND_TIME_BIT
        times = {offset: FIRST_TIME + offset if append_time is None else append_time for offset in offsets}
        return b"".join(message(at, magic, k, v, timestamp=times[at], attributes=bits) for at, k, v in rows)
    first = offsets[0] if magic else 0
    inner = b"".join(message(at - first, magic, k, v, timestamp=FIRST_TIME + at) for at, k, v in rows)
    if append_time is None:
        return message(offsets[-1], magic, None, compress(codec, inner), timestamp=FIRST_TIME + offsets[-1], attributes=codec)
    return message(offsets[-1], magic, None, compress(codec, inner), timestamp=append_time, attributes=codec | APPEND_TIME_BIT)


def put_into_log(data: Path, topic: str, partition: int, log: bytes) -> None:
    """Write the first segment of an empty partition, in the data folder of a broker that is stopped; it builds the indexes anew."""
    folder = data / f"{topic}-{partition}"
    segment = folder / f"{0:020}.log"
    assert segment.exists(), f"no segment {segment}"
    assert not segment.read_bytes(), f"{segment} is not empty"
    segment.write_bytes(log)
    for index in [*folder.glob("*.index"), *folder.glob("*.timeindex")]:
        index.unlink()

"""Stamping many batches in one pass is the same as stamping each."""

from __future__ import annotations

import pytest

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.batch import OpenRecord, headers, restamp, seal, tail_of
from mirror_pipeline.kafka.records.restamp import assign_sequences
from mirror_pipeline.model import Stamp

STAMP = Stamp(4711, 3)


def log(codec: int) -> memoryview:
    first, data = 0, b""
    for count in (1, 3, 200):
        data += seal([OpenRecord(first + n, 1000 + n, tail_of(b"k", b"v" * n)) for n in range(count)], codec=codec)
        first += count
    return memoryview(data)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("ordinal", [0, 7, 2**31 - 2])
def test_it_is_what_restamp_makes(codec: int, ordinal: int) -> None:
    data, sequence = log(codec), ordinal
    sent = assign_sequences(data, STAMP, ordinal)
    for at, header in headers(data):
        batch = data[at : at + header.size]
        found = next(sent)
        assert (found.head, bytes(found.rest)) == (restamp(header, batch, STAMP, sequence), bytes(batch[61:]))
        assert (found.records, found.newest, found.size) == (header.records, header.max_timestamp, header.size)
        sequence += header.records
    assert next(sent, None) is None


def test_what_restamp_refuses_is_refused() -> None:
    from crc32c import crc32c

    changed = bytearray(log(0))
    changed[22] |= 0x20  # a control batch, its checksum right
    _, header = next(headers(changed))
    changed[17:21] = crc32c(bytes(changed[21 : header.size])).to_bytes(4)
    with pytest.raises(CorruptBatch, match="cannot be produced"):
        next(assign_sequences(memoryview(changed), STAMP, 0))

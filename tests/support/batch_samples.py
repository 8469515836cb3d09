"""Strategies and builders shared by the batch tests."""

from __future__ import annotations

import zlib
from struct import Struct

from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st

from mirror_pipeline.kafka.records.batch import OpenRecord, tail_of

settings.register_profile("no deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("no deadline")

CODECS = (0, 1, 2, 3, 4)

maybe_bytes = st.none() | st.binary(max_size=40)
times = st.integers(-1, 1 << 42)
header_pairs = st.lists(st.tuples(st.binary(max_size=8), maybe_bytes), max_size=4).map(tuple)
utf8_pairs = st.lists(st.tuples(st.text(max_size=4).map(str.encode), maybe_bytes), max_size=4).map(tuple)

_MESSAGE = Struct(">qiIBB")
_INT = Struct(">i")


def contents(headers: st.SearchStrategy[tuple] = header_pairs, max_size: int = 12) -> st.SearchStrategy[list[tuple]]:
    """Lists of (timestamp, key, value, headers); some values repeat so that codecs have something to do."""
    value = maybe_bytes | st.binary(min_size=1, max_size=6).map(lambda data: data * 50)
    return st.lists(st.tuples(times, maybe_bytes, value, headers), min_size=1, max_size=max_size)


def opened(rows: list[tuple], base: int = 0, gaps: list[int] | None = None, attributes: int = 0) -> list[OpenRecord]:
    """Open records of such rows; ``gaps`` says how many offsets are missing in front of each record."""
    records, offset = [], base
    for index, (timestamp, key, value, headers) in enumerate(rows):
        offset += gaps[index % len(gaps)] if gaps else 0
        records.append(OpenRecord(offset, timestamp, tail_of(key, value, headers), attributes))
        offset += 1
    return records


def with_right_crc(batch: bytes) -> bytes:
    """The batch with its checksum made to fit, so that a change reaches the code after the check."""
    fixed = bytearray(batch)
    if fixed[16] == 2:
        fixed[17:21] = crc32c(fixed[21:]).to_bytes(4, "big")
    else:
        fixed[12:16] = zlib.crc32(fixed[16:]).to_bytes(4, "big")
    return bytes(fixed)


def changed(batch: bytes, **fields: int) -> bytes:
    """The batch with header fields overwritten by name and its checksum made to fit."""
    places = {
        "attributes": (21, 2),
        "last_offset_delta": (23, 4),
        "base_timestamp": (27, 8),
        "max_timestamp": (35, 8),
        "producer_id": (43, 8),
        "records": (57, 4),
    }
    out = bytearray(batch)
    for name, value in fields.items():
        start, size = places[name]
        out[start : start + size] = value.to_bytes(size, "big", signed=True)
    return with_right_crc(bytes(out))


def message(offset: int, magic: int, key: bytes | None, value: bytes | None, *, timestamp: int = -1, attributes: int = 0) -> bytes:
    """One message of magic 0 or 1, written from the format's description, not by the code under test."""
    content = timestamp.to_bytes(8, "big", signed=True) if magic else b""
    for field in (key, value):
        content += _INT.pack(-1) if field is None else _INT.pack(len(field)) + field
    raw = _MESSAGE.pack(offset, len(content) + 6, 0, magic, attributes) + content
    return with_right_crc(raw)

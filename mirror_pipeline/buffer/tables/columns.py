"""Arrow columns from Python values, built from buffers.

``pa.array(list)``, ``pa.scalar``, ``pa.table`` and ``Schema.empty_table`` import pandas on first use: 0.3 s and 35 MB in every process;
nothing here does. Comparing or grouping columns does as well, which a process that keeps a lane cannot avoid: see :func:`keep_pandas_out`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import pyarrow as pa

HOLE_TYPE = pa.struct([pa.field("start", pa.int64(), False), pa.field("end", pa.int64(), False), pa.field("cause", pa.string(), False)])
HOLES = pa.list_(pa.field("element", HOLE_TYPE, False))
DIGEST = pa.struct([pa.field("leaf", pa.int64(), False), pa.field("digest", pa.binary(), False), pa.field("records", pa.int64(), False)])
DIGESTS = pa.list_(pa.field("element", DIGEST, False))
OFFSETS = pa.map_(pa.int32(), pa.field("value", pa.int64(), False))
TIME = pa.timestamp("us", "UTC")


class _NoPandas:
    """Finds no pandas; as the first of the finders it speaks for all."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)


def keep_pandas_out() -> None:
    """Let pyarrow work as if pandas were not installed, in a process of our own; who asks for pandas afterwards still gets it.

    pyarrow wants it only to recognise its objects among the values that it is given, and looks for it once. Not for a process that
    others share: there pyarrow would take a pandas column for a plain sequence.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)


def _fixed(kind: pa.DataType, code: str, values: Iterable[int]) -> pa.Array:
    data = array(code, values)
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def empty(schema: pa.Schema) -> pa.Table:
    """A table without rows."""
    return pa.Table.from_batches([], schema)


def int32s(values: Iterable[int]) -> pa.Array:
    """Numbers of 32 bits, none of them null."""
    return _fixed(pa.int32(), "i", values)


def int64s(values: Iterable[int]) -> pa.Array:
    """Numbers of 64 bits, none of them null."""
    return _fixed(pa.int64(), "q", values)


def times(milliseconds: Iterable[int]) -> pa.Array:
    """Timestamps (UTC) from milliseconds since the epoch."""
    return _fixed(TIME, "q", (value * 1000 for value in milliseconds))


def _ends(lengths: Iterable[int]) -> array[int]:
    return array("i", accumulate(lengths, initial=0))


def strings(values: Sequence[str | None]) -> pa.Array:
    """Text; None becomes null."""
    raw = [b"" if value is None else value.encode() for value in values]
    bits = bytearray((len(raw) + 7) // 8)
    for index, value in enumerate(values):
        bits[index >> 3] |= (value is not None) << (index & 7)
    valid = pa.py_buffer(bytes(bits)) if None in values else None
    return pa.Array.from_buffers(pa.string(), len(raw), [valid, pa.py_buffer(_ends(map(len, raw))), pa.py_buffer(b"".join(raw))])


def binaries(values: Sequence[bytes]) -> pa.Array:
    """Bytes, none of them null."""
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(_ends(map(len, values))), pa.py_buffer(b"".join(values))])


def offset_maps(rows: Sequence[Mapping[int, int]]) -> pa.Array:
    """One partition-to-offset map per row."""
    keys = int32s(key for row in rows for key in row)
    items = int64s(value for row in rows for value in row.values())
    return pa.MapArray.from_arrays(int32s(_ends(map(len, rows))), keys, items, type=OFFSETS)

"""Uncompressed batches written as fewer ones, as machine code: a loop over their records that costs hardly more than the copy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int64, c_void_p
from struct import Struct

import numpy as np
from crc32c import crc32c

from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS
from mirror_pipeline.kafka.records.header import CRC_START, LENGTH, LOG_OVERHEAD
from mirror_pipeline.kafka.records.machine_code import machine_code
from mirror_pipeline.kafka.records.records import LONGER
from mirror_pipeline.kafka.wire.buffers import Arena

_CRC = Struct(">I")
_merged = Arena(17)  # what a task holds before it writes
_log = logging.getLogger(__name__)


def join(run: memoryview, *, records: int, max_bytes: int, max_records: int) -> list[memoryview] | None:
    """The same records in fewer batches, each made of whole batches of one leaf; a batch without a neighbour stays unchanged.

    Args:
        run: whole batches of magic 2, their checksums verified; offsets follow one another from batch to batch.
        records: how many there are in the run.
        max_bytes: of a batch that is made of several.
        max_records: of such a batch.

    Returns:
        None where batches are compressed, have append times or holes, or a record is not framed as producers do it:
        a slower reader has to look. Also where there is no machine code, which was logged.
    """
    merged = _merged.take(len(run) + records * LONGER)
    end = _code(_address(run), len(run), _address(merged), len(merged), max_bytes, max_records, LONGER, LEAF_OFFSETS)
    if end < 0:
        return None
    at, joined = 0, []
    while at < end:
        stop = at + LOG_OVERHEAD + LENGTH.unpack_from(merged, at)[0]
        _CRC.pack_into(merged, at + CRC_START - _CRC.size, crc32c(merged[at + CRC_START : stop], 0, -1))
        joined.append(merged[at:stop])
        at = stop
    return joined


def _address(data: memoryview) -> int:
    return np.frombuffer(data, np.uint8).ctypes.data


def _find() -> Callable[..., int]:
    try:
        address = machine_code("mirror_pipeline.kafka.records.merge_kernel", "join_records")
    except Exception as error:  # noqa: BLE001 - copying continues, whatever fails in the compiler
        _log.warning("no machine code, so merging small batches takes far more CPU: %s", error)
        return lambda *_: -1
    return CFUNCTYPE(c_int64, c_void_p, c_int64, c_void_p, *[c_int64] * 5)(address)  # releases the interpreter's lock


_code = _find()

"""The common case of staging in one pass: batches that are taken over byte for byte, checked, counted and digested.

This runs once for every batch of gigabytes. Whatever is not plain ends a run and is looked at by the slow walk
of :mod:`mirror_pipeline.engine.tasks.read.span_builder`, which also says what is wrong with a batch that is damaged.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS, LeafSums, digest
from mirror_pipeline.kafka.records.header import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
)
from mirror_pipeline.kafka.records.merge import are_small
from mirror_pipeline.model import BatchMark

_LOOK_AGAIN = CONTROL | LOG_APPEND_TIME | TRANSACTIONAL
_NEVER_PLAIN = CONTROL | LOG_APPEND_TIME


@dataclass(slots=True)
class PlainRun:
    """Adjacent plain batches, up to byte ``stop`` of an answer.

    ``oldest`` and ``newest`` are in milliseconds since the epoch, ``first_epoch`` is the first batch's leader epoch.
    ``sums`` is empty where batches are so small that they will be merged: what they become is to be digested.
    ``packed`` says that a batch is compressed.
    """

    stop: int
    batches: int
    records: int
    oldest: int
    newest: int
    first_epoch: int
    mark: BatchMark
    sums: LeafSums
    packed: bool


def plain_run(
    data: memoryview, start: int, offset: int, rules: RangeRules, aborted: Sequence[tuple[int, int]], open_aborts: Container[int]
) -> PlainRun | None:
    """Walk plain batches from byte ``start`` on, where source offset ``offset`` is due; None when the first is not plain.

    Plain is a whole batch of magic 2 that holds every offset from the one that is due, has its producer's times, its
    checksum, and a size the target takes, and belongs to no aborted transaction.

    Args:
        data: batches as a broker sent them; the last may be cut off.
        start: where to begin.
        offset: the next source offset.
        rules: the range; a batch beyond its end is not plain, nor one that straddles a hard end.
        aborted: aborted transactions that have not begun yet, (producer id, first offset), the next one last.
        open_aborts: producer ids whose transaction that is open here was aborted.
    """
    unpack, wanted, most = HEADER.unpack_from, rules.range, rules.max_batch_bytes
    end, limit = wanted.end, wanted.end if wanted.hard_end else 1 << 63
    at, last_start, next_abort = start, len(data) - HEADER_BYTES, aborted[-1][1] if aborted else 1 << 63
    batches = records = leaf_sum = leaf_records = seen = 0
    sums, leaf, tiny = LeafSums(), offset // LEAF_OFFSETS, False
    oldest, newest, first_epoch, head = 1 << 63, -1, -1, None
    while at <= last_start and offset < end:
        base, length, epoch, magic, crc, attributes, delta, first, latest, producer, _, _, count = found = unpack(data, at)
        size, behind = length + LOG_OVERHEAD, offset + count
        stop = at + size
        if (
            base != offset or magic != 2 or count != delta + 1 or count <= 0
            or not HEADER_BYTES <= size <= most or stop > len(data) or behind > limit or next_abort < behind
        ):  # fmt: skip
            break
        if attributes & _LOOK_AGAIN and (attributes & _NEVER_PLAIN or producer in open_aborts):
            break
        if crc32c(data[at + CRC_START : stop], 0, -1) != crc:
            break
        if head is None:
            first_epoch, tiny = epoch, are_small(1, count, size, packed=bool(attributes & CODEC_MASK))
        head = found
        if not tiny:
            if offset // LEAF_OFFSETS != leaf:
                sums.put(leaf, leaf_sum, leaf_records)
                leaf, leaf_sum, leaf_records = offset // LEAF_OFFSETS, 0, 0
            leaf_sum += digest(offset, first, latest, count, attributes, data[at + HEADER_BYTES : stop])
            leaf_records += count
        if first < oldest:
            oldest = first
        if latest > newest:
            newest = latest
        seen |= attributes
        batches += 1
        records += count
        offset, at = behind, stop
    if head is None:
        return None
    if leaf_records:
        sums.put(leaf, leaf_sum, leaf_records)
    mark, packed = BatchMark(head[0], head[4], head[2]), bool(seen & CODEC_MASK)
    return PlainRun(at, batches, records, oldest, newest, first_epoch, mark, sums, packed)


"""Which stretches of which partitions the tasks of a verification take. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS
from mirror_pipeline.verify.fold_tasks import Chunk
from mirror_pipeline.verify.tree import stretches

PARTS_PER_SLOT = 4
"""Chunks to begin with for each task slot: the last ones to end shall not run alone for long."""
SAMPLE_LEAVES = 4
DEEP_LEAVES = 16
"""Neighbouring leaves that one task compares record by record."""


def borders(start: int, end: int, leaves: int) -> list[int]:
    """``start``, ``end``, and between them the borders of every ``leaves`` leaves."""
    step = leaves * LEAF_OFFSETS
    return [start, *range((start // step + 1) * step, end, step), end] if start < end else []


def split(chunk: Chunk, leaves: int) -> list[Chunk]:
    """The chunk in parts of so many leaves, cut at borders of leaves."""
    edges = borders(chunk.start, chunk.end, max(1, leaves))
    if len(edges) == 2:
        return [chunk]
    return [chunk.cut(first, end) for first, end in zip(edges, edges[1:], strict=False)]


def plan_chunks(wholes: Sequence[Chunk], *, slots: int) -> list[Chunk]:
    """Cut whole partitions so that every slot has work, the largest first."""
    offsets = sum(chunk.end - chunk.start for chunk in wholes)
    leaves = offsets // (LEAF_OFFSETS * max(1, slots * PARTS_PER_SLOT))
    parts = [part for chunk in wholes for part in split(chunk, leaves)]
    return sorted(parts, key=lambda part: part.start - part.end)


def sample(wholes: Sequence[Chunk], fraction: float, chance: random.Random) -> list[Chunk]:
    """Random leaves of every partition that has any: that fraction of them, at least one stretch."""
    chosen: list[Chunk] = []
    for chunk in wholes:
        parts = split(chunk, SAMPLE_LEAVES)
        if chunk.start < chunk.end:
            chosen += chance.sample(parts, max(1, round(len(parts) * fraction)))
    return chosen


def deep_chunks(whole: Chunk, leaves: Iterable[int]) -> list[Chunk]:
    """Stretches of a partition to compare record by record: neighbouring leaves together, not too many."""
    found = []
    for first, end in stretches(leaves):
        low, high = max(whole.start, first * LEAF_OFFSETS), min(whole.end, end * LEAF_OFFSETS)
        if low < high:
            found += split(whole.cut(low, high), DEEP_LEAVES)
    return found

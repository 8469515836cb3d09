"""What a verification against the source writes into the ledger. Pure."""

from __future__ import annotations

import time

from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS, leaf_of
from mirror_pipeline.model import Verdict, Verification
from mirror_pipeline.verify.compare import Difference
from mirror_pipeline.verify.copies import CopiedPartition
from mirror_pipeline.verify.settle import Settled
from mirror_pipeline.verify.tree import Tree, stretches

KIND = "source"


def verifications(part: CopiedPartition, tree: Tree, settled: Settled) -> list[Verification]:
    """Rows for one partition: the leaves that hold a difference, and the stretches between them that are the same."""
    chunk, now = part.chunk, int(time.time() * 1000)

    def row(start: int, end: int, verdict: Verdict) -> Verification:
        leaves = [leaf for leaf in tree.leaves.values() if leaf_of(start) <= leaf.leaf <= leaf_of(end - 1)]
        below = Tree(leaves)
        return Verification(*part.key, start, end, len(leaves), below.records, below.root, verdict, KIND, now)

    rows, at = [], chunk.start
    if settled.more:  # nobody has counted them all
        return [row(chunk.start, chunk.end, Verdict.DIFFERENT)] if chunk.start < chunk.end else []
    for first, end in stretches(sorted({leaf_of(place) for place in _places(part, settled.differences)})):
        low, high = max(chunk.start, first * LEAF_OFFSETS), min(chunk.end, end * LEAF_OFFSETS)
        if at < low:
            rows.append(row(at, low, Verdict.SAME))
        rows.append(row(low, high, Verdict.DIFFERENT))
        at = high
    return [*rows, row(at, chunk.end, Verdict.SAME)] if at < chunk.end else rows


def _places(part: CopiedPartition, differences: list[Difference]) -> list[int]:
    chunk, places = part.chunk, []
    for difference in differences:
        place = difference.source_offset
        if place is None and difference.target_offset is not None and difference.target_offset < chunk.runs.target_end:
            place = chunk.runs.source_at_or_after(difference.target_offset, chunk.end - 1)
        if place is not None and chunk.start <= place < chunk.end:
            places.append(place)
    return places

"""Merkle trees over leaf digests: one root per partition and side, and the search from roots to differing leaves. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct

from mirror_pipeline.model import LeafDigest

_LEAF = Struct(">qq")
EMPTY = blake2b(b"", digest_size=16).hexdigest()


class Tree:
    """Leaf ``n`` lies below node ``n >> k`` of level ``k``; a missing leaf is a missing node.

    Args:
        leaves: at most one for each leaf number.
    """

    def __init__(self, leaves: Iterable[LeafDigest]) -> None:
        self.leaves = {leaf.leaf: leaf for leaf in leaves}
        level = {number: _node(_LEAF.pack(number, leaf.records), leaf.digest) for number, leaf in self.leaves.items()}
        self.levels = [level]
        while len(level) > 1:
            above: dict[int, list[bytes]] = {}
            for number in sorted(level):
                above.setdefault(number >> 1, []).append(number.to_bytes(8, "big") + level[number])
            level = {number: _node(*parts) for number, parts in above.items()}
            self.levels.append(level)

    @property
    def root(self) -> str:
        """Digest over all leaves, in hexadecimal."""
        top = self.levels[-1]
        return next(iter(top.values())).hex() if top else EMPTY

    @property
    def records(self) -> int:
        """Records in all leaves."""
        return sum(leaf.records for leaf in self.leaves.values())

    def differing(self, other: Tree) -> list[int]:
        """Numbers of the leaves that differ, found from the root: only differing branches are searched."""
        if self.root == other.root:
            return []
        height = min(len(self.levels), len(other.levels)) - 1
        numbers = sorted(self.levels[height].keys() | other.levels[height].keys())
        for level in range(height, -1, -1):
            ours, theirs = self.levels[level], other.levels[level]
            numbers = [n for n in numbers if ours.get(n) != theirs.get(n)]
            if level:
                numbers = [child for n in numbers for child in (2 * n, 2 * n + 1)]
        return numbers


def _node(*parts: bytes) -> bytes:
    state = blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ``[first, end)`` ranges of consecutive ones."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found

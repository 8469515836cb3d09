"""Digests of RecordBatches that say whether two logs hold the same, without opening a batch. Pure.

A batch that was copied untouched has the same bytes after its header on both sides, so one pass over memory decides.
The digests of the batches of a *leaf*, an aligned range of source offsets, are added up modulo 2^128: sums do not
depend on the order or on how a leaf was cut into spans. xxh3 finds accidents, not forgers: it is no cryptographic hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from xxhash import xxh3_128_digest, xxh3_128_intdigest

from mirror_pipeline.kafka.records.header import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, Buffer, headers
from mirror_pipeline.model import LeafDigest

# Source offsets of a leaf. Smaller ones cost rows in the buffer, larger ones make the search inside a leaf longer.
LEAF_OFFSETS = 16_384

_LIMIT = 1 << 128
_KEPT = CODEC_MASK | LOG_APPEND_TIME  # transactional and delete-horizon bits are cleared by the copy
_FACTS = Struct(">qqqih").pack  # source base offset, base and newest timestamp, records, attributes


def leaf_of(offset: int) -> int:
    """Number of the leaf that holds a source offset."""
    return offset // LEAF_OFFSETS


def digest(base_offset: int, base_timestamp: int, max_timestamp: int, records: int, attributes: int, body: memoryview) -> int:
    """Digest of a batch by the fields of its header that count, and the bytes after the header; the *source* offset."""
    return xxh3_128_intdigest(_FACTS(base_offset, base_timestamp, max_timestamp, records, attributes & _KEPT) + xxh3_128_digest(body))


def batch_digest(header: BatchHeader, batch: memoryview, base_offset: int) -> int:
    """Digest of what a batch holds and of where it belongs.

    Args:
        header: the header of ``batch``.
        batch: the whole batch.
        base_offset: the *source* offset of its first record, whichever side it was read from.
    """
    body = batch[HEADER_BYTES : header.size]
    return digest(base_offset, header.base_timestamp, header.max_timestamp, header.records, header.attributes, body)


class LeafSums:
    """Digests of leaves, growing batch by batch."""

    __slots__ = ("records", "sums")

    def __init__(self) -> None:
        self.sums: dict[int, int] = {}
        self.records: dict[int, int] = {}

    def put(self, leaf: int, total: int, records: int) -> None:
        """Count in batches of one leaf: the sum of their digests, and their records."""
        self.sums[leaf] = self.sums.get(leaf, 0) + total
        self.records[leaf] = self.records.get(leaf, 0) + records

    def add(self, header: BatchHeader, batch: memoryview, base_offset: int) -> None:
        """Count one batch in."""
        self.put(base_offset // LEAF_OFFSETS, batch_digest(header, batch, base_offset), header.records)

    def add_all(self, pieces: Iterable[Buffer]) -> None:
        """Count in whole batches that carry their source offsets."""
        for piece in pieces:
            view = memoryview(piece)
            for at, header in headers(view):
                self.add(header, view[at : at + header.size], header.base_offset)

    def spoil(self, offset: int, records: int) -> None:
        """Make the leaf of a source offset differ from whatever it is compared with, and count records in."""
        self.put(offset // LEAF_OFFSETS, 1, records)

    def include(self, other: LeafSums) -> None:
        """Count in what another has summed up."""
        for leaf, total in other.sums.items():
            self.put(leaf, total, other.records[leaf])

    def merge(self, others: Iterable[LeafDigest]) -> None:
        """Count in what others have summed up."""
        for other in others:
            self.put(other.leaf, int.from_bytes(other.digest, "big"), other.records)

    def digests(self) -> tuple[LeafDigest, ...]:
        """The sums, by leaf."""
        return tuple(LeafDigest(leaf, (self.sums[leaf] % _LIMIT).to_bytes(16, "big"), self.records[leaf]) for leaf in sorted(self.sums))


def digests_of(pieces: Iterable[Buffer]) -> tuple[LeafDigest, ...]:
    """Leaf digests of whole batches that carry their source offsets, such as a span's."""
    sums = LeafSums()
    sums.add_all(pieces)
    return sums.digests()

"""Leaf digests and trees: the same however a log was cut, different for every change."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.kafka.records.batch import OpenRecord, headers, restamp, seal, tail_of
from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS, LeafSums, digests_of, leaf_of
from mirror_pipeline.kafka.records.header import CHECKED_FIELDS, HEAD, HEADER_BYTES
from mirror_pipeline.model import LeafDigest, Stamp
from mirror_pipeline.verify.tree import Tree, stretches


def batch(first: int, count: int, *, value: bytes = b"value", codec: int = 0) -> bytes:
    records = [OpenRecord(first + n, 1_700_000_000_000 + first + n, tail_of(b"k", value)) for n in range(count)]
    return seal(records, codec=codec)


LOG = [batch(first, 7) for first in range(LEAF_OFFSETS - 70, LEAF_OFFSETS + 70, 7)]


@given(st.lists(st.integers(0, len(LOG)), max_size=6), st.randoms(use_true_random=False))
def test_spans_add_up_however_the_log_was_cut(cuts: list[int], chance: random.Random) -> None:
    edges = sorted({0, len(LOG), *cuts})
    spans = [LOG[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    chance.shuffle(spans)
    sums = LeafSums()
    for span in spans:
        sums.merge(digests_of([b"".join(span)] if chance.random() < 0.5 else span))
    assert sums.digests() == digests_of(LOG)
    assert [leaf.leaf for leaf in sums.digests()] == [0, 1]
    assert sum(leaf.records for leaf in sums.digests()) == 7 * len(LOG)


def test_a_batch_belongs_to_the_leaf_of_its_base_offset() -> None:
    straddling = batch(LEAF_OFFSETS - 1, 5)
    assert [(leaf.leaf, leaf.records) for leaf in digests_of([straddling])] == [(0, 5)]
    assert (leaf_of(LEAF_OFFSETS - 1), leaf_of(LEAF_OFFSETS)) == (0, 1)


def test_what_the_way_to_the_target_changes_does_not_count() -> None:
    """Transactional bit, producer id, sequence, leader epoch and offset are others there; the source offset comes from the map."""
    whole = bytearray(batch(100, 5))
    (_, header) = next(headers(whole))
    whole[:HEADER_BYTES] = HEAD.pack(100, header.size - 12, 7, 2, 0) + CHECKED_FIELDS.pack(
        0x10, 4, header.base_timestamp, header.max_timestamp, 55, 3, 900, 5
    )
    (_, sent) = next(headers(whole))
    there = restamp(sent, memoryview(whole), Stamp(1, 0), 12345) + bytes(whole[HEADER_BYTES:])
    (_, arrived) = next(headers(there))
    sums = LeafSums()
    sums.add(arrived, memoryview(there), 100)
    assert sums.digests() == digests_of([whole])


@pytest.mark.parametrize("at", [22, 27, 34, 35, 42, 60, 61, 70, 80])
def test_every_byte_that_matters_matters(at: int) -> None:
    """Codec, base and newest time, record count, and everything behind the header."""
    whole = bytearray(batch(100, 5))
    changed = bytearray(whole)
    changed[at] ^= 1
    assert digests_of([whole]) != digests_of([changed])


def test_the_place_on_the_source_matters() -> None:
    whole = batch(100, 5)
    (_, header) = next(headers(whole))
    sums = LeafSums()
    sums.add(header, memoryview(whole), 101)
    assert sums.digests() != digests_of([whole])


leaves = st.dictionaries(st.integers(0, 300), st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 9)), max_size=40)


def tree(content: dict[int, tuple[bytes, int]]) -> Tree:
    return Tree(LeafDigest(number, digest, records) for number, (digest, records) in content.items())


@given(leaves, leaves)
def test_trees_lead_to_exactly_the_leaves_that_differ(ours: dict[int, tuple[bytes, int]], theirs: dict[int, tuple[bytes, int]]) -> None:
    expected = sorted(number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number))
    assert tree(ours).differing(tree(theirs)) == expected
    assert (tree(ours).root == tree(theirs).root) is (not expected)


@given(leaves, st.data())
def test_one_changed_leaf_is_found_and_changes_the_root(content: dict[int, tuple[bytes, int]], data: st.DataObject) -> None:
    content = content or {5: (bytes(16), 1)}
    number = data.draw(st.sampled_from(sorted(content)))
    digest, records = content[number]
    other = {**content, number: (bytes([digest[0] ^ 1]) + digest[1:], records)}
    assert tree(content).differing(tree(other)) == [number]
    assert tree(content).differing(tree({**content, number: (digest, records + 1)})) == [number]
    assert tree({n: c for n, c in content.items() if n != number}).differing(tree(content)) == [number]


def test_neighbours_become_stretches() -> None:
    assert stretches([]) == []
    assert stretches([3, 4, 5, 9, 11, 12]) == [(3, 6), (9, 10), (11, 13)]

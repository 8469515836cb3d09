"""Batches that were merged on the way give the digests of what they became, and only if their records are the same."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.kafka.records.batch import Buffer, OpenRecord, headers, seal, tail_of
from mirror_pipeline.kafka.records.digest import LEAF_OFFSETS, LeafSums, digests_of
from mirror_pipeline.kafka.records.merge import merge
from mirror_pipeline.model import LeafDigest
from mirror_pipeline.verify.merged_batches import Extents, Matching

FIRST = LEAF_OFFSETS - 300


def source(chance: random.Random, *, codec: int = 0) -> list[bytes]:
    """A log of small batches across the border of a leaf."""
    batches, at = [], FIRST
    while at < LEAF_OFFSETS + 300:
        count = chance.choice([1, 1, 5, 16])
        records = [OpenRecord(at + n, 1_700_000_000_000 + at + chance.randrange(90), tail_of(b"k", b"v" * 20)) for n in range(count)]
        batches.append(seal(records, codec=codec))
        at += count
    return batches


def target(log: Sequence[bytes], chance: random.Random) -> list[Buffer]:
    """The same log, staged in runs of any length: some are merged, some stay as they are."""
    made: list[Buffer] = []
    while log:
        run, log = log[: (cut := chance.choice([1, 3, 20, 60]))], log[cut:]
        whole = memoryview(b"".join(run))
        records = sum(header.records for _, header in headers(whole))
        made += merge(whole, records=records, max_bytes=4000) if chance.random() < 0.8 else [whole]
    return made


def folded(log: Sequence[bytes], there: Sequence[Buffer]) -> tuple[LeafDigest, ...]:
    """Digests of the source, told of the target's batches as they are asked for."""
    extents: Extents = deque()

    def walk() -> Iterator[bool]:
        for piece in there:
            extents.extend((header.base_offset, header.next_offset) for _, header in headers(memoryview(piece)))
            yield True

    sums = LeafSums()
    matching = Matching(sums, extents, walk())
    for one in log:
        (_, header), = headers(one)
        matching.add(header, memoryview(one))
    matching.close()
    return sums.digests()


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0, 0, 3]))
def test_the_same_records_give_the_same_digests(seed: int, codec: int) -> None:
    chance = random.Random(seed)
    log = source(chance, codec=codec)
    there = target(log, chance)
    assert folded(log, there) == digests_of(there)
    assert sum(leaf.records for leaf in folded(log, there)) == sum(leaf.records for leaf in digests_of(log))


@pytest.mark.parametrize("way", ["value", "time", "missing", "cut elsewhere", "nothing there"])
def test_every_change_shows(way: str) -> None:
    chance = random.Random(3)
    log = source(chance)
    there = target(log, chance)
    assert len(there) < len(log) / 3
    if way == "value":
        log[7] = log[7].replace(b"vvv", b"vwv", 1)
    elif way == "time":
        log[7] = log[7][:34] + b"\x01" + log[7][35:]
    elif way == "missing":
        del log[7]
    elif way == "cut elsewhere":
        there = [there[0], *there[2:]]
    else:
        there = []
    assert folded(log, there) != digests_of(there)


def test_a_batch_that_cannot_be_opened_again_is_counted_as_it_is() -> None:
    log = [seal([OpenRecord(n, 5, tail_of(None, b"x"))], codec=1) for n in range(3)]
    there = merge(memoryview(b"".join(log)), records=3, max_bytes=10_000)
    bad = bytearray(log[1])
    bad[61] = 0xFF
    log[1] = bytes(bad)
    assert folded(log, there) == digests_of(log) != digests_of(there)

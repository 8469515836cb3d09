"""The offset map of a target that is the beginning of its source."""

from __future__ import annotations

import random

import pytest

from mirror_pipeline.features.adoption.heads import places
from mirror_pipeline.kafka.records.batch import OpenRecord
from mirror_pipeline.verify.align import align
from mirror_pipeline.verify.pieces import Piece, contents
from mirror_pipeline.verify.prefix import NotedPieces, matched_runs
from tests.support.verify_samples import opened, pieces

COUNT = 400


def logs(seed: int) -> tuple[list[OpenRecord], list[OpenRecord], list[tuple[int, int]]]:
    """A source with holes; a target with its beginning, holes of its own and strangers; and the pairs of offsets that belong together."""
    chance = random.Random(seed)
    source_offset = target_offset = 0
    source: list[OpenRecord] = []
    target: list[OpenRecord] = []
    pairs = []
    copied = chance.randrange(COUNT)
    for number in range(COUNT):
        source_offset += chance.choice((1, 1, 1, 1, 5))
        source.append(opened(source_offset, b"v%d" % number, timestamp=1000 + number))
        if number < copied:
            if chance.random() < 0.05:
                target_offset += 1
                target.append(opened(target_offset, b"stranger", b"s", timestamp=target_offset))
            target_offset += chance.choice((1, 1, 1, 3))
            target.append(opened(target_offset, b"v%d" % number, timestamp=1000 + number))
            pairs.append((source_offset, target_offset))
    return source, target, pairs


@pytest.mark.parametrize("seed", range(30))
def test_each_record_gets_its_own_offset(seed: int) -> None:
    source, target, pairs = logs(seed)
    ours, theirs = NotedPieces(pieces(source)), NotedPieces(pieces(target))
    found = align(ours, theirs, limit=1000, prefix=True)
    assert all(candidate.source is None for candidate in found.candidates)
    assert found.beyond == source[len(pairs)].offset
    runs = matched_runs(ours, theirs, found, (found.beyond, 1 << 40))
    assert [(offset, runs.to_target(offset)) for offset, _ in pairs] == pairs
    assert runs.records(0, 1 << 40) == len(pairs)


def test_in_pauses_it_gives_the_same_map() -> None:
    source, target, pairs = logs(3)
    target = [record for record in target if b"stranger" not in bytes(record.tail)]
    low, high, runs = 0, 0, []
    for _ in range(COUNT):
        ours, theirs = (NotedPieces(_since(log, start)) for log, start in ((source, low), (target, high)))
        found = align(ours, theirs, limit=10, budget=1000, prefix=True)
        ends = found.resume or (found.beyond or 1 << 40, 1 << 40)
        runs += list(matched_runs(ours, theirs, found, ends).between(0, 1 << 40))
        if found.resume is None:
            break
        low, high = found.resume
    assert [(source + n, target + n) for source, target, length in runs for n in range(length)] == pairs


def _since(log: list[OpenRecord], start: int) -> list[Piece]:
    return pieces([record for record in log if record.offset >= start])


def test_the_end_of_the_target_is_not_the_end_of_the_search() -> None:
    """An altered last record is named as such; what the source has after it is no difference."""
    source = [opened(n, b"v%d" % n) for n in range(10)]
    target = [*source[:4], opened(4, b"other", timestamp=source[4].timestamp)]
    (candidate,) = align(pieces(source), pieces(target), limit=10, prefix=True).candidates
    assert candidate.source is not None and candidate.target is not None
    assert (candidate.source.offset, candidate.target.offset) == (4, 4)
    whole = align(pieces(source), pieces(source), limit=10, prefix=True)
    assert (whole.records, whole.beyond, whole.candidates) == (10, None, [])
    none = align(pieces(source), pieces([]), limit=10, prefix=True)
    assert (none.records, none.beyond, none.candidates) == (0, 0, [])


def test_places() -> None:
    log = [opened(n, b"v%d" % (n % 50), timestamp=1 + n % 50) for n in range(100)]
    window = [contents(record) for record in log[10:20]]
    assert places(log[:60], window, cut=False) == [10]
    assert places(log, window, cut=False) == [10, 60]
    assert places(log[:15], window, cut=False) == []
    assert places(log[:15], window, cut=True) == [10]
    assert places(log, [], cut=True) == []

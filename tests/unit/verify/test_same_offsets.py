"""Batches of two logs that are the same bytes are not decoded; whatever else differs is found at its offset."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirror_pipeline.kafka.records.batch import headers
from mirror_pipeline.kafka.records.records import seal
from mirror_pipeline.verify import same_offsets
from mirror_pipeline.verify.pieces import Piece
from tests.support.batch_samples import opened

SIZE = 10


def piece(at: int, values: Sequence[bytes], low: int = 0, high: int = 1_000) -> Piece:
    batch = memoryview(seal(opened([(1, None, value, ()) for value in values], at), codec=0))
    ((_, header),) = headers(batch)
    return Piece(header, batch, low, high)


def log_of(*, altered: int = -1, shift: int = 0, low: int = 0, high: int = 1_000) -> list[Piece]:
    """Five batches; ``altered`` is the offset of a record with another value."""
    return [
        piece(at + shift, [b"x" if at + n == altered else b"%d" % (at + n) for n in range(SIZE)], low, high)
        for at in range(0, 5 * SIZE, SIZE)
    ]


def differ(ours: list[Piece], theirs: list[Piece], *, thinned: bool = False) -> int | None:
    return same_offsets._first_difference(*same_offsets._unlike(ours, theirs), thinned=thinned)


def test_the_same_batches_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Piece, "opened", lambda self: pytest.fail("decoded"))
    assert differ(log_of(), log_of()) is None


@pytest.mark.parametrize("altered", [0, 17, 49])
def test_an_altered_record_is_found(altered: int) -> None:
    assert differ(log_of(), log_of(altered=altered)) == altered


def test_the_same_batches_at_other_offsets_differ() -> None:
    assert differ(log_of(), log_of(shift=1)) == 0


def test_what_is_outside_of_the_sample_does_not_count() -> None:
    assert differ(log_of(low=5, high=45), log_of(altered=3, low=5, high=45)) is None
    assert differ(log_of(low=5, high=45), log_of(altered=47, low=5, high=45)) is None


@pytest.mark.parametrize("where", [0, 2, 4])
def test_a_batch_that_is_missing_or_there_twice_is_found(where: int) -> None:
    theirs = log_of()
    twice = [*theirs[:where], theirs[where], *theirs[where:]]
    missing = [*theirs[:where], *theirs[where + 1 :]]
    assert differ(log_of(), missing) == where * SIZE
    assert differ(log_of(), missing, thinned=True) is None
    assert differ(log_of(), twice) is not None

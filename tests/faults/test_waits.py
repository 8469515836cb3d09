"""The judgement over waits: whose broker was in trouble, and for whom that is an excuse."""

from __future__ import annotations

import pytest

from tests.faults.waits import AFTER_SECONDS, BEFORE_SECONDS, Leaders, Trouble, Wait, healthy, waits_of

PLACE = ("t", 0)
WAIT = Wait(PLACE, 100.0, 110.0)


def led(side: str, *leaders: tuple[float, int]) -> Leaders:
    return Leaders(side, [(at, {PLACE: node}) for at, node in leaders])


BOTH = (led("source", (50.0, 1), (105.0, 1)), led("target", (50.0, 2)))


@pytest.mark.parametrize(
    ("troubles", "excused"),
    [
        ((), False),
        ((Trouble("source", 1, 95.0, 99.5),), True),  # just before: within the margin
        ((Trouble("source", 1, 60.0, 100.0 - 2 * BEFORE_SECONDS),), False),
        ((Trouble("target", 2, 110.0 + 2 * AFTER_SECONDS, 120.0),), False),
        ((Trouble("source", 2, 100.0, 110.0),), False),  # another broker of the source
        ((Trouble("target", 2, 105.0, 106.0),), True),
        ((Trouble("target", 1, 105.0, 106.0),), False),
    ],
)
def test_only_the_own_leaders_trouble_is_an_excuse(troubles: tuple[Trouble, ...], excused: bool) -> None:
    assert healthy(WAIT, BOTH, troubles) is not excused


@pytest.mark.parametrize("source", [((50.0, 1), (105.0, 3)), ((50.0, 1), (105.0, -1)), ((50.0, 1), (110.5, 2)), ((105.0, 1),)])
def test_a_partition_whose_leader_moves_or_is_unknown_is_not_healthy(source: tuple[tuple[float, int], ...]) -> None:
    assert not healthy(WAIT, (led("source", *source), BOTH[1]), ())


def test_waits_are_matched_by_name_and_the_longest_comes_first() -> None:
    source = {PLACE: {"a": 1.0, "b": 2.0, "lost": 3.0}}
    target = {PLACE: {"a": 1.5, "b": 9.0, "strange": 4.0}}
    assert [(wait.since, wait.seconds) for wait in waits_of(source, target)] == [(2.0, 7.0), (1.0, 0.5)]

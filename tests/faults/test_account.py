"""The account notices what it must: one lost, one duplicated, one swapped, one without a source record."""

from __future__ import annotations

import pytest

from tests.faults.account import acked_are_there, compare_values
from tests.faults.report import Account, CampaignReport

SOURCE = {0: ["t/0/0", "t/0/1", "t/0/2", "t/0/3"], 1: ["t/1/0"]}


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ({0: ["t/0/0", "t/0/1", "t/0/2", "t/0/3"], 1: ["t/1/0"]}, (0, 0, 0, 0)),
        ({0: ["t/0/0", "t/0/2", "t/0/3"], 1: ["t/1/0"]}, (1, 0, 0, 0)),
        ({0: ["t/0/0", "t/0/1", "t/0/2", "t/0/3"]}, (1, 0, 0, 0)),
        ({0: ["t/0/0", "t/0/1", "t/0/1", "t/0/2", "t/0/3"], 1: ["t/1/0"]}, (0, 1, 0, 0)),
        ({0: ["t/0/0", "t/0/1", "t/0/2", "t/0/3", "t/0/0"], 1: ["t/1/0"]}, (0, 1, 0, 0)),
        ({0: ["t/0/1", "t/0/0", "t/0/2", "t/0/3"], 1: ["t/1/0"]}, (0, 0, 1, 0)),
        ({0: ["t/0/0", "t/0/1", "t/0/2", "t/0/3"], 1: ["t/1/0", "t/1/9"]}, (0, 0, 0, 1)),
        ({0: ["t/0/0", "t/0/1", "t/0/2", "t/0/3", "t/1/0"], 1: []}, (1, 0, 0, 1)),
    ],
)
def test_counts(target: dict[int, list[str]], wanted: tuple[int, int, int, int]) -> None:
    account = Account()
    compare_values(SOURCE, target, account, topic="t")
    assert (account.lost, account.doubled, account.disordered, account.unexplained) == wanted
    assert account.records == 5
    assert account.clean == (wanted == (0, 0, 0, 0))


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (["t/0/0", "t/0/1", "t/0/2", "t/0/1", "t/0/2", "t/0/3"], (0, 0, 0)),
        (["t/0/0", "t/0/1", "t/0/2", "t/0/3"], (2, 0, 0)),
        (["t/0/0", "t/0/1", "t/0/2", "t/0/1", "t/0/2", "t/0/3", "t/0/2"], (0, 1, 0)),
        (["t/0/0", "t/0/1", "t/0/1", "t/0/2", "t/0/2", "t/0/3"], (0, 0, 1)),
    ],
)
def test_what_the_sources_own_producer_sent_twice_is_twice_on_the_target(target: list[str], wanted: tuple[int, int, int]) -> None:
    account = Account()
    source = {0: ["t/0/0", "t/0/1", "t/0/2", "t/0/1", "t/0/2", "t/0/3"]}
    compare_values(source, {0: target}, account, topic="t")
    assert (account.lost, account.doubled, account.disordered) == wanted


def test_a_load_that_did_nothing_proves_nothing() -> None:
    account = Account()
    compare_values({0: []}, {0: []}, account, topic="t")
    assert account.unexplained == 1


def test_acknowledged_values_must_be_there() -> None:
    assert acked_are_there(SOURCE, {("t", 0): 4, ("t", 1): 1}, {}, "t") == 0
    assert acked_are_there(SOURCE, {("t", 0): 6, ("t", 1): 1}, {}, "t") == 2
    assert acked_are_there(SOURCE, {("t", 0): 6}, {("t", 0): 1}, "t") == 0  # failed sends may lie anywhere: the source's log is compared


def test_too_few_faults_is_no_success() -> None:
    report = CampaignReport("x", 1, 2)
    report.fault("one")
    report.close()
    assert report.verdict == "too few faults"
    report.fault("two")
    report.close()
    assert report.verdict == "ok"
    report.account.lost = 1
    report.close()
    assert report.verdict == "FAILED"

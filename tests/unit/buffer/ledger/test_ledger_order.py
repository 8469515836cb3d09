"""The ledger is ordered by its own numbers: rows come from hosts whose clocks may differ by hours."""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa
import pytest

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.translation import numbered
from mirror_pipeline.buffer.ledger.verified import different_now
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.files import write_rows
from mirror_pipeline.buffer.tables.rows import verifications_table
from mirror_pipeline.buffer.tables.schema import VERIFICATIONS, TableSpec
from mirror_pipeline.model import Decision, DecisionKind, TopicPartition, Verdict, Verification
from tests.support.buffer_samples import LIFE, life

NOW = int(time.time() * 1000)
FAST = NOW + 7_200_000


def verification(verdict: Verdict, at: int) -> Verification:
    return Verification("orders", 0, LIFE, 0, 10, 1, 10, "00", verdict, "source", at)


def test_partitions_added_after_a_run_on_a_fast_host_are_known(ledger: Ledger) -> None:
    ledger.add_incarnation(life({0: 0}, at=FAST))
    ledger.add_incarnation(life({0: 0, 1: 0}, at=NOW))
    assert ledger.incarnations()["orders"].starts == {0: 0, 1: 0}
    assert set(ledger.positions()) == {TopicPartition("orders", 0), TopicPartition("orders", 1)}


def test_generations_follow_each_other_as_they_were_written(ledger: Ledger) -> None:
    first, second = life({0: 0}, at=FAST), life({0: 0}, incarnation="BBBB", at=NOW)
    ledger.add_incarnations([first, second])
    assert ledger.incarnations() == {"orders": second}
    assert numbered(ledger.generations().values()) == {"orders": [first, second]}


def test_a_difference_that_a_fast_host_found_does_not_outlive_later_proofs(ledger: Ledger) -> None:
    ledger.add_incarnation(life({0: 0}))
    ledger.add_verifications([verification(Verdict.DIFFERENT, FAST)])
    assert (different_now(ledger.verifications()), ledger.verified()) == ({"orders"}, {})
    ledger.add_verifications([verification(Verdict.SAME, NOW)])
    assert (different_now(ledger.verifications()), ledger.verified()) == (set(), {("orders", 0, LIFE): 10})
    assert ledger.maintain(max_files=1).joined == 2
    assert (different_now(ledger.verifications()), ledger.verified()) == (set(), {("orders", 0, LIFE): 10})


def test_two_processes_that_verify_at_once_get_numbers_of_their_own(ledger: Ledger, store: LaneStore) -> None:
    other = Ledger(store, durable=False)
    for each in (ledger, other):
        each.verifications()
    for each in (ledger, other, ledger):
        each.add_verifications([verification(Verdict.SAME, NOW)])
    assert [row.revision for row in ledger.verifications()] == [0, 1, 2]


@pytest.mark.parametrize("both_fast", [True, False])
def test_the_later_decision_counts_whatever_its_host_says(store: LaneStore, both_fast: bool) -> None:
    def truncated(start: int, at: int) -> Decision:
        return Decision("orders", 0, LIFE, DecisionKind.TRUNCATED, start, 60, "", "me", at)

    decisions = Decisions(store, durable=False)
    decisions.add([truncated(50, FAST)])
    decisions.add([truncated(30, FAST if both_fast else NOW)])
    assert [(each.start, each.revision) for each in Decisions(store).all()] == [(50, 0), (30, 1)]


def test_rows_of_an_older_version_come_first_in_order_of_time(ledger: Ledger, store: LaneStore) -> None:
    older = TableSpec("verifications", pa.schema([column for column in VERIFICATIONS.schema if column.name != "revision"]))
    log = DeltaLog(store, older, durable=False)
    rows = [verification(Verdict.SAME, FAST), replace(verification(Verdict.DIFFERENT, NOW), source_end=5)]
    table = verifications_table(store, rows).select(older.schema.names)
    path, size, stats = write_rows(log, table, durable=False)
    log.commit([add_action(path, size, stats, {})])
    ledger.add_verifications([verification(Verdict.DIFFERENT, NOW - 1)])
    assert [(row.revision, row.at) for row in ledger.verifications()] == [(-1, NOW), (-1, FAST), (0, NOW - 1)]

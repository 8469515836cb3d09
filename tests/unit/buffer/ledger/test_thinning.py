"""Fewer rows, the same offset map."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.offset_map import AUDIT_COLUMNS, POSITION_COLUMNS, faults, fold_positions, reached, totals
from mirror_pipeline.buffer.ledger.thinning import OLD_SECONDS, thin
from mirror_pipeline.buffer.ledger.verified import thinned, verified_ends
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables import rows
from mirror_pipeline.buffer.tables.schema import SENDS
from mirror_pipeline.model import HoleCause, Send, Verdict, Verification
from tests.support.buffer_samples import LIFE, hole, life, send

STORE = LaneStore("/nowhere", "m", "lane-0")
NOW = 2_000_000_000.0
HOUR = 3600.0

Piece = tuple[int, HoleCause | None, float]
"""Offsets, cause of a hole, seconds since the piece before it was recorded."""

causes = st.sampled_from([None, None, None, HoleCause.MARKER, HoleCause.ABORTED])
pieces = st.lists(st.tuples(st.integers(1, 5), causes, st.sampled_from([0.0, 1.0, 700.0, 4000.0, 9 * 86_400.0])), max_size=40)
histories = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), pieces), min_size=1, max_size=3)


def table_of(histories: list[tuple[int, int, list[Piece]]]) -> tuple[pa.Table, dict[int, int]]:
    """A table of sends, one partition for each history, and where each begins on the source."""
    found, starts = [SENDS.schema.empty_table()], {}
    for partition, (start, target, parts) in enumerate(histories):
        starts[partition] = start
        at = NOW - sum(part[2] for part in parts)
        ordinal = 0
        for number, (length, cause, later) in enumerate(parts):
            at += later
            put = 0 if cause else length
            made = Send("orders", partition, LIFE, start, start + length, "east.orders", target, target + put, put, ordinal, number, cause)
            found.append(rows.sends_table(STORE, [made], int(at * 1000)))
            start, target, ordinal = start + length, target + put, ordinal + put
    return pa.concat_tables(found), starts


def translate(sends: list[Send], partition: int, offset: int) -> tuple[int, HoleCause | None]:
    """Where a source offset lies on the target, and why there is no record of it."""
    row = next(s for s in sends if s.partition == partition and s.source_start <= offset < s.source_end)
    return (row.target_start if row.cause else row.target_start + offset - row.source_start), row.cause


@given(histories, st.randoms(use_true_random=False))
def test_a_thinned_map_says_the_same_of_every_offset(history: list[tuple[int, int, list[Piece]]], chance: random.Random) -> None:
    table, starts = table_of(history)
    order = list(range(table.num_rows))
    chance.shuffle(order)
    small = thin(table.take(pa.array(order, pa.int64())), now=NOW)
    before, after = rows.to_sends(table), rows.to_sends(small)
    assert small.schema == table.schema
    assert len(after) <= len(before)
    lives = {"orders": life(starts)}
    for row in before:
        for offset in range(row.source_start, row.source_end):
            assert translate(after, row.partition, offset) == translate(before, row.partition, offset)
    assert sum(s.source_end - s.source_start for s in after) == sum(s.source_end - s.source_start for s in before)
    assert fold_positions(small.select(POSITION_COLUMNS), lives) == fold_positions(table.select(POSITION_COLUMNS), lives)
    assert faults(small.select(AUDIT_COLUMNS), lives) == faults(table.select(AUDIT_COLUMNS), lives) == []
    assert thin(small, now=NOW).num_rows == small.num_rows


@given(histories)
def test_what_files_add_up_to_adds_up(history: list[tuple[int, int, list[Piece]]]) -> None:
    table, starts = table_of(history)
    lives = {"orders": life(starts)}
    whole = table.select(POSITION_COLUMNS)
    half = len(whole) // 2
    folded = totals(pa.concat_tables([totals(whole.slice(0, half)), totals(whole.slice(half))]))
    assert fold_positions(folded, lives) == fold_positions(whole, lives)
    assert reached(folded) == reached(whole)


proofs = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(1, 4), st.sampled_from([*Verdict]), st.sampled_from(["staged", "source"])),
    max_size=30,
)


@given(proofs, st.integers(0, 30))
def test_thinned_proofs_prove_the_same(found: list[tuple[int, int, int, Verdict, str]], before: int) -> None:
    done = [
        Verification("orders", partition, LIFE, start, start + length, 1, length, "root", verdict, kind, at, revision=at)
        for at, (partition, start, length, verdict, kind) in enumerate(found)
    ]
    small = thinned(done, before=before)
    lives = {"orders": life({0: 0, 1: 3})}
    assert verified_ends(sorted(small, key=lambda row: row.revision), lives) == verified_ends(done, lives)
    assert sum(row.records for row in small) == sum(row.records for row in done)
    assert [row for row in small if row.root] == [row for row in done if row in small]


def test_proofs_of_a_constant_load_become_one_row_a_partition(ledger: Ledger) -> None:
    old, now = 10_000, int(time.time() * 1000)
    for number in range(12):
        at = old if number < 10 else now
        rows = [Verification("orders", p, LIFE, number, number + 1, 1, 1, "r", Verdict.SAME, "staged", at + number) for p in (0, 1)]
        ledger.add_verifications(rows)
    before = ledger.verified()
    assert ledger.maintain(max_files=1).joined == 12
    assert ledger.verified() == before == {("orders", 0, LIFE): 12, ("orders", 1, LIFE): 12}
    assert [(row.source_start, row.source_end) for row in ledger.verifications() if row.partition == 0] == [(0, 10), (10, 11), (11, 12)]


def constant_load(seconds: float, every: float, partitions: int) -> pa.Table:
    """A send a partition every few seconds up to now."""
    found = []
    for number in range(int(seconds / every)):
        sends = [replace(send(number, number + 1, partition=p), micro_batch=number) for p in range(partitions)]
        found.append(rows.sends_table(STORE, sends, int((NOW - seconds + number * every) * 1000)))
    return pa.concat_tables(found)


def test_a_topic_under_constant_load_keeps_one_row_a_partition_and_a_few_for_the_last_week() -> None:
    table = constant_load(9 * 86_400, 300, 2)
    small = thin(table, now=NOW)
    hours = OLD_SECONDS / HOUR
    assert small.num_rows <= 2 * (1 + hours + 2 + 2)
    old = [s for s in rows.to_sends(small) if s.source_start == 0]
    assert [(s.partition, s.records > 500) for s in old] == [(0, True), (1, True)]


def test_recent_rows_stay_as_they_were_recorded() -> None:
    table = constant_load(500, 1, 1)
    assert thin(table, now=NOW) is table


@pytest.mark.parametrize(
    "second",
    [
        send(11, 20, ordinal=10, target=10),
        send(9, 20, ordinal=10, target=10),
        send(10, 20, ordinal=10, target=11),
        send(10, 20, ordinal=11, target=10),
        send(10, 20, ordinal=10, target=10, partition=1),
        send(10, 20, ordinal=10, target=10, topic="other"),
        replace(send(10, 20), incarnation="another"),
        replace(send(10, 20), target_topic="elsewhere"),
        replace(send(10, 20), target_end=19),
        hole(10, 11, ordinal=10, target=10),
    ],
)
def test_what_does_not_go_on_is_not_joined(second: Send) -> None:
    table = rows.sends_table(STORE, [send(0, 10), second], 0)
    assert thin(table, now=NOW) is table


def test_holes_join_only_with_holes_of_their_cause() -> None:
    made = [
        send(0, 10),
        hole(10, 11, ordinal=10, target=10),
        hole(11, 14, ordinal=10, target=10),
        hole(14, 15, ordinal=10, target=10, cause=HoleCause.ABORTED),
        send(15, 17, ordinal=10, target=10),
    ]
    found = rows.to_sends(thin(rows.sends_table(STORE, made, 0), now=NOW))
    assert [(s.source_start, s.source_end, s.cause) for s in found] == [
        (0, 10, None),
        (10, 14, HoleCause.MARKER),
        (14, 15, HoleCause.ABORTED),
        (15, 17, None),
    ]

"""How far a partition is verified, from any history of verifications; digests of spans come back as they were written."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.verified import verified_ends
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.schema import SPANS
from mirror_pipeline.model import Incarnation, LeafDigest, PartFile, Verdict, Verification

KEY = ("t", 0, "life")
LIFE = Incarnation("t", "life", "a", "b", "east.t", "id", {0: 3}, {0: 0}, 1)


def row(start: int, end: int, verdict: Verdict = Verdict.SAME, at: int = 0) -> Verification:
    return Verification(*KEY, start, end, 1, end - start, "00", verdict, "staged", at)


rows = st.lists(
    st.builds(
        lambda start, length, verdict: row(start, start + length, verdict), st.integers(3, 30), st.integers(1, 9), st.sampled_from(Verdict)
    ),
    max_size=12,
)


@given(rows)
def test_the_end_is_where_the_first_unproven_offset_lies(history: list[Verification]) -> None:
    proven = [False] * 60
    for one in history:
        proven[one.source_start : one.source_end] = [one.verdict is not Verdict.DIFFERENT] * (one.source_end - one.source_start)
    end = next(at for at in range(3, 60) if not proven[at])
    assert verified_ends(history, {"t": LIFE}) == ({KEY: end} if end > 3 else {})


def test_an_earlier_life_counts_from_its_first_verification() -> None:
    older = replace(LIFE, incarnation="next")
    assert verified_ends([row(10, 20), row(20, 25)], {"t": older}) == {KEY: 25}
    assert verified_ends([row(10, 20)], {"t": LIFE}) == {}


def test_verifications_are_kept_and_an_older_ledger_has_none(store: LaneStore) -> None:
    ledger = Ledger(store, durable=False)
    assert ledger.exists() is False
    ledger.ensure()
    assert (ledger.verified(), ledger.verifications()) == ({}, [])
    ledger.add_incarnation(LIFE)
    done = [row(3, 9, at=1_700_000_000_001), row(9, 12, Verdict.DELETED_ON_TARGET, at=1_700_000_000_002)]
    ledger.add_verifications(done)
    ledger.add_verifications([])
    assert Ledger(store).verifications() == done
    assert Ledger(store).verified() == {KEY: 12}


def written(store: LaneStore, micro_batch: int, digests: tuple[LeafDigest, ...]) -> PartFile:
    writer = PartFileWriter(store, micro_batch, 0, durable=False)
    writer.add(SpanDraft("t", 0, "life", 10 * micro_batch, 10 * micro_batch + 10, 10, 1, 1, 2, (), digests), b"payload")
    part = writer.close()
    assert part is not None
    return part


def test_a_buffer_of_an_older_version_goes_on(store: LaneStore) -> None:
    """Its table has no column for digests, its files neither; new spans have them."""
    names = [name for name in SPANS.schema.names if name != "digests"]
    older = replace(SPANS, schema=pa.schema([SPANS.schema.field(name) for name in names]))
    log = DeltaLog(store, older, durable=False)
    log.ensure()
    part = written(store, 0, ())
    path = f"{store.table('spans')}/{part.path}"
    pq.write_table(pq.read_table(path).drop_columns(["digests"]), path, compression="none", use_dictionary=False)
    log.commit([add_action(part.path, os.path.getsize(path), {"numRecords": 1}, {"micro_batch": "0"})], app_id="mirror-spans", version=0)

    spans = SpanTable(store, durable=False)
    spans.ensure()
    digests = (LeafDigest(0, b"d" * 16, 10),)
    assert spans.commit(1, [written(store, 1, digests)])
    for table in (spans, SpanTable(store)):
        assert [(span.start, span.digests) for span in table.spans()] == [(0, ()), (10, digests)]
    with SpanReader(store) as reader:
        assert [bytes(reader.payload(span)) for span in spans.spans()] == [b"payload"] * 2

"""Spark with delta-spark and the buffer's own code read and write the same tables; docs/buffer.md's SQL is run as it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import Decision, DecisionKind, Gap, Hole, HoleCause, Incarnation, PartFile, Quarantined, Send, Stamp

DOCS = Path(__file__).parents[3] / "docs" / "buffer.md"
BLOCK = re.compile(r"^### (?P<title>[^\n]+)\n(?:(?!^#)[^\n]*\n)*?```sql\n(?P<sql>.*?)```", re.M | re.S)
QUESTIONS = {found["title"]: found["sql"] for found in BLOCK.finditer(DOCS.read_text())}
LIFE = "source-topic-id"
LARGE = b"b" * 500_000  # goes past the Parquet writer
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Settings:
    uri: str
    lease: float = 30.0


@pytest.fixture
def store(tmp_path: Path) -> LaneStore:
    return open_lane(Settings(str(tmp_path / "buffer")), "east-to-west", "lane-0")


def stage(store: LaneStore, micro_batch: int, *rows: tuple[SpanDraft, bytes]) -> PartFile:
    writer = PartFileWriter(store, micro_batch, 0)
    for draft, payload in rows:
        writer.add(draft, payload)
    part = writer.close()
    assert part is not None
    return part


def span(start: int, end: int, partition: int = 0, holes: tuple[Hole, ...] = ()) -> SpanDraft:
    return SpanDraft("orders", partition, LIFE, start, end, end - start, 1, 1_700_000_000_000, 1_700_000_000_999, holes)


def send(start: int, end: int, target: int, ordinal: int, *, partition: int = 0, batch: int = 0, cause: HoleCause | None = None) -> Send:
    records = 0 if cause else end - start
    return Send("orders", partition, LIFE, start, end, "east.orders", target, target + records, records, ordinal, batch, cause)


@pytest.fixture
def lane(store: LaneStore) -> LaneStore:
    """Three micro-batches staged, two of them on the target; partition 2 has nothing yet."""
    spans, ledger = SpanTable(store), Ledger(store)
    spans.ensure()
    ledger.ensure()
    ledger.add_incarnation(Incarnation("orders", "old-id", "east", "west", "east.orders", "t", {0: 0}, {0: 0}, 1_000))
    ledger.add_incarnation(Incarnation("orders", LIFE, "east", "west", "east.orders", "t", {0: 5, 1: 0}, {0: 100, 1: 0}, 2_000))
    ledger.add_incarnation(Incarnation("orders", LIFE, "east", "west", "east.orders", "t", {0: 5, 1: 0, 2: 9}, {0: 100, 1: 0, 2: 4}, 2_000))
    ledger.save_producer(Stamp(4_000, 1), "west")
    holes = (Hole(15, 16, HoleCause.MARKER),)
    for number, part in enumerate([(span(5, 16, holes=holes), b"a" * 100), (span(16, 20), LARGE), (span(0, 7, 1), b"\x00\xff" * 10)]):
        assert spans.commit(number, [stage(store, number, part)])
    gap = Gap("east-to-west", "orders", 0, LIFE, 20, 25, HoleCause.RETENTION, "policy", 3_000)
    assert ledger.record(0, [send(5, 15, 100, 0), send(15, 16, 110, 10, cause=HoleCause.MARKER)])
    assert ledger.record(1, [send(16, 20, 110, 10, batch=1)], [gap])
    return store


def views(spark: SparkSession, lane: LaneStore) -> None:
    python = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    assert python
    exec(python[1], {"spark": spark, "lane": lane.uri})  # noqa: S102


def answers(spark: SparkSession, title: str, offset: int | None = None) -> list[dict[str, Any]]:
    """The documented question as it stands, or about another offset."""
    text = QUESTIONS[title]
    if offset is not None:
        text, changed = re.subn(r"\d+ AS offset", f"{offset} AS offset", text)
        assert changed == 1
    return [row.asDict(recursive=True) for row in spark.sql(text).collect()]


def pick(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.long
def test_the_documented_questions_have_the_right_answers(spark: SparkSession, lane: LaneStore) -> None:
    views(spark, lane)
    asked = dict(QUESTIONS)

    def ask(title: str, offset: int | None = None) -> list[dict[str, Any]]:
        asked.pop(title, None)
        return answers(spark, title, offset)

    copied = ask("What was copied when")
    assert {row["target_topic"] for row in copied} == {"east.orders"}
    assert sum(row["records"] for row in copied) == 14
    assert sum(row["micro_batches"] for row in copied) in (2, 3)  # a minute may end between the two

    far = pick(ask("How far is each partition"), "topic", "partition", "next_source_offset", "next_target_offset", "records")
    positions = Ledger(lane).positions()
    assert far == [(tp.topic, tp.partition, p.source_next, p.target_next, p.ordinal) for tp, p in sorted(positions.items())]
    assert far == [("orders", 0, 20, 114, 14), ("orders", 1, 0, 0, 0), ("orders", 2, 9, 4, 0)]

    for target, source in {None: 18, 100: 5, 109: 14, 110: 16}.items():
        rows = ask("Which source offset is a target offset", target)
        assert pick(rows, "topic", "partition", "incarnation", "source_offset") == [("orders", 0, LIFE, source)]
    assert ask("Which source offset is a target offset", 114) == []

    for offset, there in {None: 112, 0: 100, 14: 109, 15: 110, 20: None}.items():
        assert ask("Which target offset is a source offset", offset) == [{"target_offset": there}]

    missing = ask("What is missing")
    assert pick(missing, "partition", "start_offset", "end_offset", "offsets") == [(0, 20, 25, 5)]
    assert pick(missing, "cause", "decided_by") == [("retention", "policy")]
    assert ask("Why offsets have no record") == [{"topic": "orders", "cause": "transaction_marker", "offsets": 1}]
    assert pick(ask("What the buffer holds"), "topic", "spans", "records", "bytes", "waiting_bytes") == [("orders", 3, 22, 500_120, 20)]
    assert ask("Does the offset map tile") == []
    assert asked == {}, "a question in docs/buffer.md that no test asks"


@pytest.mark.long
def test_the_documented_columns_are_the_tables_columns(spark: SparkSession, lane: LaneStore) -> None:
    views(spark, lane)
    cases = Decisions(lane)
    cases.add([Decision("orders", 0, LIFE, DecisionKind.GAP, 20, 25, "", "me@here", 3_000)])
    cases.keep([Quarantined("orders", 0, LIFE, 20, 21, "large", b"batch")])
    for table in ("decisions", "quarantine", "verifications"):
        spark.read.format("delta").load(lane.table(table)).createOrReplaceTempView(table)
    for table in ("spans", "sends", "gaps", "incarnations", "producers", "verifications", "decisions", "quarantine"):
        section = DOCS.read_text().split(f"\n### {table}\n")[1].split("\n##")[0]
        documented = [name for row in re.findall(r"^\| (`[^|]*) \|", section, re.M) for name in re.findall(r"`(\w+)`", row)]
        assert sorted(documented) == sorted(spark.table(table).columns), table


@pytest.mark.long
def test_a_map_that_does_not_tile_is_seen_by_both(spark: SparkSession, lane: LaneStore) -> None:
    ledger = Ledger(lane)
    ledger.record(2, [send(22, 25, 114, 14)])
    views(spark, lane)
    assert pick(answers(spark, "Does the offset map tile"), "partition", "reached", "source_start") == [(0, 20, 22)]
    with pytest.raises(BufferUnusable, match=r"orders\[0\]: the send of \[22, 25\) leaves a hole"):
        ledger.audit()


def test_spark_sees_payloads_holes_and_evictions(spark: SparkSession, lane: LaneStore) -> None:
    spans = SpanTable(lane)

    def seen() -> list[Any]:
        return spark.read.format("delta").load(lane.table("spans")).orderBy("micro_batch").collect()

    with SpanReader(lane) as reader:
        ours = [bytes(reader.payload(ref)) for ref in sorted(spans.pending({}), key=lambda ref: ref.micro_batch)]
    rows = seen()
    assert [bytes(row.payload) for row in rows] == ours == [b"a" * 100, LARGE, b"\x00\xff" * 10]
    assert [row.micro_batch for row in rows] == [0, 1, 2]
    assert [hole.asDict() for hole in rows[0].holes] == [{"start": 15, "end": 16, "cause": "transaction_marker"}]
    skipped = spark.read.format("delta").load(lane.table("spans")).where("micro_batch >= 1 AND partition = 1 AND end_offset > 5")
    assert [row.start_offset for row in skipped.collect()] == [0]
    assert spans.evict([0], target_bytes=0) == [0]
    assert spans.vacuum(grace=0) > 0
    assert [row.micro_batch for row in seen()] == [1, 2]
    spans._log.checkpoint()
    assert [row.micro_batch for row in seen()] == [1, 2]


@pytest.mark.long
def test_what_spark_does_to_the_tables_is_understood(spark: SparkSession, lane: LaneStore) -> None:
    spans, ledger = SpanTable(lane), Ledger(lane)
    before = (ledger.positions(), ledger.sends(), ledger.incarnations(), ledger.last_record())
    sends, staged = lane.table("sends"), lane.table("spans")
    spark.sql(f"OPTIMIZE delta.`{sends}`")
    spark.sql(f"VACUUM delta.`{sends}` RETAIN 1 HOURS")
    spark.sql(f"VACUUM delta.`{staged}` RETAIN 1 HOURS")
    assert len(ledger._sends.files()) == 1
    assert (ledger.positions(), ledger.sends(), ledger.incarnations(), ledger.last_record()) == before
    assert ledger.record(1, [send(16, 20, 110, 10)]) is False
    assert ledger.record(2, [send(20, 25, 114, 14, cause=HoleCause.RETENTION)]) is True
    spark.sql(f"DELETE FROM delta.`{staged}` WHERE micro_batch = 0")  # noqa: S608
    assert [ref.micro_batch for ref in spans.pending({})] == [1, 2]
    assert spans.last_micro_batch() == 2
    assert spans.commit(3, [stage(lane, 3, (span(25, 30), b"c"))]) is True
    assert [row.micro_batch for row in spark.read.format("delta").load(staged).orderBy("micro_batch").collect()] == [1, 2, 3]


def test_spark_reads_a_ledger_after_upkeep(spark: SparkSession, lane: LaneStore) -> None:
    ledger = Ledger(lane)
    assert ledger.maintain(max_files=1).joined > 1
    views(spark, lane)
    positions = ledger.positions()
    far = pick(answers(spark, "How far is each partition"), "partition", "next_source_offset", "next_target_offset", "records")
    assert far == [(tp.partition, p.source_next, p.target_next, p.ordinal) for tp, p in sorted(positions.items())]

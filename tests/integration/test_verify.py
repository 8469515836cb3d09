"""Verification against real brokers: untouched copies are fine whatever their shape, every damage is called by its name."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.ledger import Ledger
from mirror_pipeline.buffer.spans import SpanTable
from mirror_pipeline.engine.spark import SparkRunner
from mirror_pipeline.model import Verdict
from mirror_pipeline.verify.staged import StagedVerdict, verify_staged
from tests.conftest import ClusterPair
from tests.integration.mirrors import create_topic, make_mirror, produce


def staged(mirror: Mirror, spark: SparkSession, budget: int = 1 << 30) -> StagedVerdict:
    """Verify what one lane has staged."""
    store = mirror.lane_stores()[0]
    return verify_staged(
        ledger=Ledger(store),
        spans=SpanTable(store),
        runner=SparkRunner(spark),
        target=mirror.target,
        timeout=10.0,
        budget_bytes=budget,
    )


def verdicts_of(mirror: Mirror) -> list[tuple[str, int, int, int, str, str]]:
    rows = Ledger(mirror.lane_stores()[0]).verifications()
    return sorted((r.topic, r.partition, r.source_start, r.source_end, r.verdict.value, r.kind) for r in rows)


def test_what_was_staged_is_found_on_the_target(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 3)
    produce(source, topic_name, 3000, partitions=3)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert mirror.run(once=True, session=spark).state == "ok"
    life = Ledger(mirror.lane_stores()[0]).incarnations()[topic_name].incarnation

    first = staged(mirror, spark)
    assert (first.records, first.differences, first.unreadable) == (3000, (), ())
    assert first.verified == {(topic_name, p, life): 1000 for p in range(3)}
    assert verdicts_of(mirror) == [(topic_name, p, 0, 1000, "same", "staged") for p in range(3)]

    again = staged(mirror, spark)
    assert (again.records, again.verified) == (0, first.verified)
    produce(source, topic_name, 30, partitions=3, start=3000)
    assert mirror.run(once=True, session=spark).records == 30
    assert staged(mirror, spark).verified == {(topic_name, p, life): 1010 for p in range(3)}
    assert Verdict.SAME in {row.verdict for row in Ledger(mirror.lane_stores()[0]).verifications()}

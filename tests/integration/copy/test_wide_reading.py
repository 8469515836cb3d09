"""Reading over many connections gives the same copy as reading over two."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline.engine.tasks.longlink.read_ahead import ReadAhead
from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.local.shapes.fill import fill
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, make_mirror


@pytest.mark.slow
def test_all_odd_shapes_over_many_connections(clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    prefix = f"{topic_name}-"
    topics = [made.name for made in fill(east, scale=2000, prefix=prefix)]
    mirror = make_mirror(tmp_path, east, west, [f"{prefix}.*"], engine={"connections": 6})
    assert mirror.run(once=True, session=spark).state == "ok"
    assert_identical(mirror, topics)


@pytest.mark.slow
def test_all_odd_shapes_read_ahead_from_micro_batch_to_micro_batch(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """In the mirror's own process, where reading does not stop between micro-batches: here each is a few batches long."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    prefix = f"{topic_name}-"
    topics = [made.name for made in fill(east, scale=2000, prefix=prefix)]
    engine = {"connections": 6, "inline_bytes": "1GB", "micro_batch_bytes": "1MB"}
    mirror = make_mirror(tmp_path, east, west, [f"{prefix}.*"], engine=engine)
    assert mirror.run(once=True).state == "ok"
    assert_identical(mirror, topics)


@pytest.mark.long
def test_what_is_read_ahead_is_not_read_again(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    records = fill_bulk(east, topic_name, 3, 60_000_000)
    made: list[ReadAhead] = []
    begin = ReadAhead.__init__
    monkeypatch.setattr(ReadAhead, "__init__", lambda self, *given: (made.append(self), begin(self, *given))[1])
    engine = {"connections": 24, "inline_bytes": "1GB", "micro_batch_bytes": "8MB"}
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=engine)
    report = mirror.run(once=True)
    assert (report.state, report.records) == ("ok", records)
    assert_identical(mirror, [topic_name])
    assert len(made) <= 3, "one for the first micro-batch, whose batches nobody knew, one for the rest, one for its end"


@pytest.mark.long
def test_stretches_of_one_partition_are_put_together_in_order(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    records = fill_bulk(east, topic_name, 1, 30_000_000)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine={"connections": 24, "bandwidth": "100MB"})
    report = mirror.run(once=True, session=spark)
    assert (report.state, report.records) == ("ok", records)
    assert_identical(mirror, [topic_name])

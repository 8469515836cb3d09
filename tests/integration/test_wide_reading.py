"""Reading over many connections gives the same copy as reading over two."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline.local.shapes import fill
from mirror_pipeline.local.shapes_bulk import fill_bulk
from tests.conftest import ClusterPair
from tests.integration.mirrors import assert_identical, make_mirror


@pytest.mark.slow
def test_all_odd_shapes_over_many_connections(clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    prefix = f"{topic_name}-"
    topics = [made.name for made in fill(east, scale=2000, prefix=prefix)]
    mirror = make_mirror(tmp_path, east, west, [f"{prefix}.*"], engine={"connections": 6})
    assert mirror.run(once=True, session=spark).state == "ok"
    assert_identical(mirror, topics)


def test_stretches_of_one_partition_are_put_together_in_order(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    records = fill_bulk(east, topic_name, 1, 30_000_000)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine={"connections": 24, "bandwidth": "100MB"})
    report = mirror.run(once=True, session=spark)
    assert (report.state, report.records) == ("ok", records)
    assert_identical(mirror, [topic_name])

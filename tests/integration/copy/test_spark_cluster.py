"""The same lane on a Spark standalone cluster: the workers have nothing but the installed package; one of them is killed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.local.shapes.bulk import fill_bulk
from tests.integration.processes import document, kill_tree, start_mirror, wait_until
from tests.integration.spark_cluster import SparkCluster
from tests.support.mirrors import assert_identical, end_offsets, make_mirror, write_config

END_SECONDS = 400
SIZE = 300_000_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_of_the_cluster_is_killed(cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    source, target = (c.bootstrap_servers for c in cluster_factory(2))
    records = fill_bulk(source, "bulk", 12, SIZE)
    with SparkCluster(tmp_path, workers=2, cores=2) as spark:
        own = {
            "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.executor.cores": "2",
            "spark.pyspark.python": sys.executable,
        }  # fmt: skip
        engine = {"spark_master": spark.url, "micro_batch_bytes": "8MB", "inline_bytes": 0, "spark": own}
        config = write_config(tmp_path, source, target, ["bulk"], engine=engine)
        mirror = make_mirror(tmp_path, source, target, ["bulk"], engine=engine)

        def arrived() -> int:
            try:
                return sum(end_offsets(mirror, "east.bulk", target=True).values())
            except KeyError:  # not made yet
                return 0

        process = start_mirror(config, "run", "--once", "--json")
        try:
            def under_way() -> bool:
                return process.poll() is not None or (arrived() > records * 0.1 and all(spark.executors(n) for n in range(2)))

            wait_until(under_way, END_SECONDS, "the first records, with both workers at work")
            assert process.poll() is None, (tmp_path / "stderr.txt").read_text()[-2000:]
            killed, before = spark.kill_worker(1), arrived()
            print(f"worker 1 killed ({killed} processes) with {before} of {records} records on the target")
            assert before < records, "the copy was over before the worker was killed"
            assert process.wait(END_SECONDS) == 0, (tmp_path / "stderr.txt").read_text()[-2000:]
        finally:
            kill_tree(process)
    print(document(config))
    assert sum(end_offsets(mirror, "east.bulk", target=True).values()) == records
    assert_identical(mirror, ["bulk"])
    for store in mirror.flow.lane_stores():
        Ledger(store).audit()

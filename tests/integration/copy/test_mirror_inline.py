"""Small micro-batches are run by the mirror's own process; Spark takes over when there is more to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.local.shapes.bulk import fill_bulk
from tests.integration.processes import document, kill_tree, start_mirror, wait_until
from tests.support.mirrors import assert_identical, create_topic, end_offsets, make_mirror, produce, write_config

SECONDS = 240


def java_below(pid: int) -> list[str]:
    names = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            names.append(child.name())
    return [name for name in names if name.startswith("java")]


@pytest.mark.long
def test_a_lane_of_little_traffic_needs_no_spark_and_a_busy_one_starts_it(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    source, target = (c.bootstrap_servers for c in cluster_factory(2))
    names = [f"small-{number}" for number in range(3)]
    for name in names:
        create_topic(source, name, 3)
        produce(source, name, 500, partitions=3)
    engine = {"inline_bytes": "100KB", "spark_master": "local[4]"}
    include = ["small-.*", "bulk"]
    config = write_config(tmp_path, source, target, include, engine=engine)
    mirror = make_mirror(tmp_path, source, target, include, engine=engine)

    def there(topic: str, count: int) -> Callable[[], bool]:
        def look() -> bool:
            try:
                return sum(end_offsets(mirror, f"east.{topic}", target=True).values()) == count
            except KeyError:
                return False

        return lambda: process.poll() is not None or look()

    process = start_mirror(config, "run", "--for", "10m", "--json")
    try:
        for name in names:
            wait_until(there(name, 500), SECONDS, f"{name} on the target")
        produce(source, "small-1", 500, partitions=3, start=500)
        wait_until(there("small-1", 1000), SECONDS, "more of small-1 on the target")
        assert process.poll() is None, (tmp_path / "stderr.txt").read_text()[-2000:]
        assert java_below(process.pid) == [], "Spark runs although nothing was large"
        libraries = [each.path for each in psutil.Process(process.pid).memory_maps()]
        assert any("/pyarrow/" in path for path in libraries)
        assert not [path for path in libraries if "/pandas/" in path], "35 MB that no lane needs"
        records = fill_bulk(source, "bulk", 4, 60_000_000)  # new while the lane runs, and more than 256 times inline_bytes
        wait_until(lambda: process.poll() is not None or bool(java_below(process.pid)), SECONDS, "Spark to start")
        wait_until(there("bulk", records), SECONDS, "the large topic on the target")
        process.terminate()
        assert process.wait(60) == 0, (tmp_path / "stderr.txt").read_text()[-2000:]
    finally:
        kill_tree(process)
    (row,) = document(config)["mirrors"]  # type: ignore[misc]
    assert (row["state"], row["records"]) == ("ok", 2_000 + records)
    assert_identical(mirror, [*names, "bulk"])
    for store in mirror.flow.lane_stores():
        Ledger(store).audit()

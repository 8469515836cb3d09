"""``kill -9`` of the whole process tree at random times, a stopped target: every record once, none lost."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.local.shapes.bulk import fill_bulk
from tests.integration.processes import document, kill_a_worker, kill_tree, lane_is_running, start_mirror, wait_until
from tests.support.mirrors import assert_identical, end_offsets, make_mirror, produce, write_config
from tests.support.quotas import set_quotas

pytestmark = pytest.mark.long

START_SECONDS = 240
END_SECONDS = 400
SMALL_STEPS = {"micro_batch_bytes": "1MB", "spark_master": "local[4]", "target_wait": "2m"}


def kill_often(cluster_factory: Callable[..., list[LocalCluster]], folder: Path, *, kills: int, size: int, seed: int) -> None:
    """Copy ``size`` bytes while the process tree is killed ``kills`` times, then to the end, then compare."""
    chance = random.Random(seed)
    print(f"seed {seed}")
    source, target = (c.bootstrap_servers for c in cluster_factory(2))
    records = fill_bulk(source, "bulk", 12, size)
    config = write_config(folder, source, target, ["bulk"], engine=SMALL_STEPS)
    mirror = make_mirror(folder, source, target, ["bulk"], engine=SMALL_STEPS)
    for number in range(kills):
        process = start_mirror(config, "run", "--once")
        wait_until(lane_is_running(folder, process), START_SECONDS, "the lane to run")
        time.sleep(chance.uniform(0, 0.6))
        ended = process.poll()
        kill_tree(process)
        there = sum(end_offsets(mirror, "east.bulk", target=True).values()) if number or not ended else 0
        print(f"kill {number + 1}: {there} of {records} records on the target")
        if ended is not None:
            assert ended == 0, (folder / "stderr.txt").read_text()[-2000:]
            produce(source, "bulk", 20_000, partitions=12, start=10**9 + number * 20_000, size=1000)
            records += 20_000
    process = start_mirror(config, "run", "--once", "--json")
    assert process.wait(END_SECONDS) == 0, (folder / "stderr.txt").read_text()[-2000:]
    print(document(config))
    assert sum(end_offsets(mirror, "east.bulk", target=True).values()) == records
    assert_identical(mirror, ["bulk"])
    mirror_ledger_is_whole(mirror)


def mirror_ledger_is_whole(mirror: object) -> None:
    """The offset map tiles every partition."""
    from mirror_pipeline.buffer.ledger.ledger import Ledger

    for store in mirror.flow.lane_stores():  # type: ignore[attr-defined]
        Ledger(store).audit()


@pytest.mark.slow
def test_three_kills(cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    kill_often(cluster_factory, tmp_path, kills=3, size=60_000_000, seed=random.randrange(10**6))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_during_500_mb(cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    seed = int(os.environ.get("MIRROR_SEED", random.randrange(10**6)))
    kill_often(cluster_factory, tmp_path, kills=20, size=500_000_000, seed=seed)


def test_the_target_stops_and_comes_back(cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    first, second = cluster_factory(2)
    source, target = first.bootstrap_servers, second.bootstrap_servers
    records = fill_bulk(source, "bulk", 4, 60_000_000)
    steps = {**SMALL_STEPS, "target_wait": "5m", "request_timeout": "5s"}
    config = write_config(tmp_path, source, target, ["bulk"], engine=steps)
    mirror = make_mirror(tmp_path, source, target, ["bulk"], engine=steps)
    set_quotas(target, {"producer_byte_rate": 2_000_000.0})  # still copying when the target stops
    process = start_mirror(config, "run", "--once", "--json")
    try:
        wait_until(lane_is_running(tmp_path, process), START_SECONDS, "the lane to run")
        wait_until(
            lambda: process.poll() is not None or sum(p.position for t in mirror.lag().topics for p in t.partitions) > 0,
            60,
            "the first records",
        )
        assert process.poll() is None, (tmp_path / "stderr.txt").read_text()[-2000:]
        set_quotas(target, {"producer_byte_rate": None})
        second.stop()
        wait_until(lambda: all(p.staged == p.end for t in mirror.lag().topics for p in t.partitions), 120, "staging to go on")
        assert process.poll() is None, (tmp_path / "stderr.txt").read_text()[-2000:]
        assert mirror.lag().lag_records > 0
        wait_until(lambda: mirror.status().lanes[0].target_down_since is not None, 60, "the status to say so")
        assert mirror.status().staged_records > 0
        second.start()
        assert process.wait(END_SECONDS) == 0, (tmp_path / "stderr.txt").read_text()[-2000:]
    finally:
        kill_tree(process)
    assert sum(end_offsets(mirror, "east.bulk", target=True).values()) == records
    assert_identical(mirror, ["bulk"])
    assert mirror.status().lanes[0].target_down_since is None


@pytest.mark.slow
def test_a_lane_survives_the_death_of_its_workers(cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    """Spark's Python workers die again and again: the run itself goes on."""
    source, target = (c.bootstrap_servers for c in cluster_factory(2))
    records = fill_bulk(source, "bulk", 6, 80_000_000)
    config = write_config(tmp_path, source, target, ["bulk"], engine=SMALL_STEPS)
    mirror = make_mirror(tmp_path, source, target, ["bulk"], engine=SMALL_STEPS)
    process = start_mirror(config, "run", "--once", "--json")
    try:
        wait_until(lane_is_running(tmp_path, process), START_SECONDS, "the lane to run")
        killed = 0
        while process.poll() is None:
            killed += kill_a_worker(process)
            time.sleep(random.uniform(0.5, 4))  # a new worker imports for a second before it can do anything
        print(f"{killed} workers killed")
        assert process.returncode == 0, (tmp_path / "stderr.txt").read_text()[-2000:]
    finally:
        kill_tree(process)
    assert killed > 2
    assert sum(end_offsets(mirror, "east.bulk", target=True).values()) == records
    assert_identical(mirror, ["bulk"])
    mirror_ledger_is_whole(mirror)

"""The life of a buffer under a running mirror: it stays under its cap, forgets only what was verified, and outlives a full disk."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.usage import lane_use
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.engine.driver.maintain import thread
from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.reports import RunReport
from tests.integration.processes import start_mirror, wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce

MB = 10**6
SMALL_STEPS = {"micro_batch_bytes": "1MB", "poll_interval": "100ms"}


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping every second in place of every minute."""
    monkeypatch.setattr(thread, "MAINTENANCE_SECONDS", 1.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 44 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=44m", "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Running:
    """A mirror that runs in a thread; ``peak`` is the largest size its buffer was seen to have."""

    def __init__(self, mirror: Mirror, spark: SparkSession, **how: object) -> None:
        self.mirror, self.peak, self.stop = mirror, 0, threading.Event()
        self.report: RunReport | None = None
        self.problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(spark, how), daemon=True)
        self._thread.start()

    def _run(self, spark: SparkSession, how: dict[str, object]) -> None:
        try:
            self.report = self.mirror.run(session=spark, stop=self.stop, **how)  # type: ignore[arg-type]
        except Exception as problem:  # noqa: BLE001 - raised in the test's thread
            self.problem = problem

    def look(self) -> int:
        size = sum(lane_use(store).total for store in self.mirror.flow.lane_stores())
        self.peak = max(self.peak, size)
        return size

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        def there() -> bool:
            self.look()
            assert self.problem is None, self.problem
            return condition()

        wait_until(there, seconds, what)

    def end(self) -> RunReport:
        self.stop.set()
        self._thread.join(60)
        assert self.problem is None, self.problem
        assert self.report is not None
        return self.report


def copied(mirror: Mirror, records: int) -> Callable[[], bool]:
    """Whether the ledger has so many records."""
    return lambda: sum(p.ordinal for store in mirror.flow.lane_stores() for p in Ledger(store).positions().values()) >= records


def larger_than_the_cap(clusters: ClusterPair, folder: Path, topic: str) -> tuple[Mirror, int]:
    """A mirror with a buffer of 16 MB for a topic of 24 MB, and the records in it."""
    source, target = (c.bootstrap_servers for c in clusters)
    records = fill_bulk(source, topic, 4, 24 * MB)
    return make_mirror(folder, source, target, [topic], engine=SMALL_STEPS, buffer={"max_bytes": "16MB", "retention": "24h"}), records


@pytest.mark.long
def test_a_copy_larger_than_the_cap_stays_under_it(
    clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str, brisk: None
) -> None:
    mirror, records = larger_than_the_cap(clusters, tmp_path, topic_name)
    running = Running(mirror, spark)
    running.until(copied(mirror, records), 90, "everything to be copied")
    (store,) = mirror.flow.lane_stores()
    assert running.end().state == "ok"
    assert running.peak <= 16 * MB
    use = mirror.status().lanes[0].buffer
    assert use is not None
    assert (use.upkeep_error, use.full_since) == ("", None)
    ledger = Ledger(store)
    verified = sum(ledger.verified().values())
    spans = SpanTable(store).spans()
    print(f"peak {running.peak:,} bytes, {verified} of {records} offsets verified, {len(spans)} spans left")
    # Whatever has left the buffer was verified: what is still there begins where verification has come to, or before.
    for (topic, partition, life), position in ledger.reached().items():
        left = [ref.start for ref in spans if (ref.topic, ref.partition, ref.incarnation) == (topic, partition, life)]
        assert min(left, default=position) <= ledger.verified().get((topic, partition, life), 0)
    ledger.audit()
    assert_identical(mirror, [topic_name])


@pytest.mark.long
def test_a_backfill_larger_than_the_cap_ends(
    clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str, brisk: None
) -> None:
    """What is on the target leaves the buffer while a backfill runs, for it is compared beside the copy as in any run."""
    mirror, records = larger_than_the_cap(clusters, tmp_path, topic_name)
    stop = threading.Event()
    limit = threading.Timer(120, stop.set)
    limit.start()
    try:
        report = mirror.backfill(topic_name, 0, int(time.time() * 1000) + 1, stop=stop, session=spark)
    finally:
        limit.cancel()
    assert (report.run.state, report.run.records) == ("ok", records)
    assert_identical(mirror, [topic_name])


@pytest.mark.long
def test_a_difference_on_the_target_keeps_the_spans(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name)
    produce(source, topic_name, 50)
    mirror = make_mirror(tmp_path, source, target, [topic_name], buffer={"retention": "1s"})
    assert mirror.run(once=True, session=spark).records == 50
    (store,) = mirror.flow.lane_stores()
    before = SpanTable(store).spans()
    name = f"east.{topic_name}"
    mirror.flow.target_admin().delete_topic(name)
    create_topic(target, name)
    produce(target, name, 50, start=1)
    staged = SpanTable(store).oldest() or 0.0
    wait_until(lambda: time.time() > staged + 1.1, 10, "retention to be over")
    (row,) = mirror.evict()
    assert row["differences"] > 0
    assert f"{topic_name}[0]" in row["note"]
    assert SpanTable(store).spans() == before


def test_commands_evict_beside_a_running_lane(
    clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str, brisk: None
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    create_topic(source, topic_name, 2)
    mirror = make_mirror(tmp_path, source, target, [topic_name], engine=SMALL_STEPS, buffer={"retention": "1s"})
    running = Running(mirror, spark)
    command = start_mirror(tmp_path / "mirror.yaml", "evict", "--json")
    for number in range(8):
        produce(source, topic_name, 500, partitions=2, start=500 * number, size=1000)
        mirror.evict()
    assert command.wait(60) == 0, (tmp_path / "stderr.txt").read_text()
    running.until(copied(mirror, 4000), 60, "everything to be copied")
    (store,) = mirror.flow.lane_stores()
    running.until(lambda: SpanTable(store).spans() == [], 30, "everything to be verified and forgotten")
    assert running.end().state == "ok"
    assert sum(Ledger(store).verified().values()) == 4000
    assert_identical(mirror, [topic_name])


@pytest.mark.long
def test_a_full_disk_holds_staging_up_and_nothing_else(
    clusters: ClusterPair, small_disk: Path, tmp_path: Path, spark: SparkSession, topic_name: str, brisk: None
) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    records = fill_bulk(source, topic_name, 2, 44 * MB)  # more than the disk holds, and the cap is far away
    mirror = make_mirror(tmp_path, source, target, [topic_name], engine=SMALL_STEPS, buffer={"uri": str(small_disk / "buffer")})
    running = Running(mirror, spark)
    running.until(copied(mirror, records), 90, "everything to be copied")

    # Somebody else takes all the rest of the disk.
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as out:
        try:
            while out.write(b"x" * 65536):
                pass
        except OSError:
            pass
    assert shutil.disk_usage(small_disk).free < 65536
    produce(source, topic_name, 2000, partitions=2, start=10**7, size=5000)
    time.sleep(3)  # the lane runs against the full disk meanwhile
    assert running.problem is None
    filler.unlink()
    running.until(copied(mirror, records + 2000), 60, "the lane to go on")
    assert running.end().state == "ok"
    Ledger(mirror.flow.lane_stores()[0]).audit()
    assert_identical(mirror, [topic_name])

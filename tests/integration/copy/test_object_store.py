"""The buffer in an object store: a real S3 server process, real brokers, real processes that die, hang, and meet each other."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.usage import lane_use
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.crash_points import ONCE, STOP
from mirror_pipeline.engine.driver.maintain import thread
from mirror_pipeline.errors import LaneBusy, UsageError
from mirror_pipeline.local.shapes.bulk import fill_bulk
from tests.integration.processes import document, kill_tree, start_mirror, wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, end_offsets, produce, write_config
from tests.support.object_store import BUCKET, ObjectStore

MB = 1_000_000
LEASE = 3.0
LONG_LEASE = 20.0  # longer than a run takes on a busy machine
SECONDS = 120
INLINE = {"micro_batch_bytes": "1MB", "inline_bytes": "1GB"}


class Setting:
    """One mirror whose buffer lies in the store, and what lies on the source for it."""

    def __init__(self, clusters: ClusterPair, folder: Path, topic: str, size: int, *, lease: float = LEASE, **mirror: Any) -> None:
        self.folder, self.topic = folder, topic
        source, target = (c.bootstrap_servers for c in clusters)
        self.source = source
        self.records = fill_bulk(source, topic, 4, size)
        mirror.setdefault("engine", INLINE)
        mirror["buffer"] = {"uri": f"s3://{BUCKET}/deep/buffer", "lease": f"{lease:.0f}s", **mirror.get("buffer", {})}
        self.config = write_config(folder, source, target, [topic], **mirror)
        self.mirror = Mirror(load_config(self.config), "m")

    def there(self) -> int:
        """Records on the target."""
        try:
            return sum(end_offsets(self.mirror, f"east.{self.topic}", target=True).values())
        except KeyError:
            return 0

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return start_mirror(self.config, "run", *arguments)

    def words(self) -> str:
        """What the processes have said."""
        return (self.folder / "stderr.txt").read_text()

    def holder(self) -> int | None:
        """The process that said last that it runs the lane."""
        return next((lane.pid for lane in self.mirror.status().lanes if lane.state == "running"), None)

    def copied(self) -> None:
        """Everything is there, once, in order, and the ledger tells it."""
        assert self.there() == self.records
        assert_identical(self.mirror, [self.topic])
        assert self.mirror.verify(topics=[self.topic]).ok
        (store,) = self.mirror.flow.lane_stores()
        Ledger(store).audit()


def stopped(process: subprocess.Popen[str]) -> Callable[[], bool]:
    return lambda: process.poll() is not None or psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


def test_a_copy_through_an_object_store(clusters: ClusterPair, tmp_path: Path, topic_name: str, object_store: ObjectStore) -> None:
    setting = Setting(clusters, tmp_path, topic_name, 12 * MB)
    assert setting.mirror.run(once=True).records == setting.records
    setting.copied()
    produce(setting.source, topic_name, 100, partitions=4, start=10**9, size=1000)
    setting.records += 100
    assert setting.mirror.run(once=True).records == 100
    setting.copied()
    status = setting.mirror.status()
    assert [(lane.lane, lane.state) for lane in status.lanes] == [("lane-0", "finished")]
    keys = object_store.keys("")
    assert all(key.startswith("deep/buffer/") for key in keys)
    assert status.buffer_total_bytes == sum(path.stat().st_size for path in _bodies(object_store, "deep/buffer/m"))
    assert not (tmp_path / "s3:").exists()


def test_a_ledger_is_backed_up_and_restored_in_an_object_store(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, object_store: ObjectStore
) -> None:
    setting = Setting(clusters, tmp_path / "one", topic_name, 2 * MB, lease=LONG_LEASE)
    setting.mirror.run(once=True)
    file = Path(setting.mirror.backup(tmp_path).file)
    produce(setting.source, topic_name, 4000, partitions=4, start=10**9, size=1000)
    setting.records += 4000
    setting.mirror.run(once=True)
    with pytest.raises(UsageError, match="cannot rename"):
        setting.mirror.restore(file, replace=True)
    text = setting.config.read_text()
    assert text.count("deep/buffer") == 1
    setting.config.write_text(text.replace("deep/buffer", "new/buffer"))
    setting.mirror = Mirror(load_config(setting.config), "m")
    assert [(row.state, row.records) for row in setting.mirror.restore(file).topics] == [("caught_up", 4000)]
    produce(setting.source, topic_name, 100, partitions=4, start=2 * 10**9)
    setting.records += 100
    assert setting.mirror.run(once=True).records == 100
    setting.copied()


def _bodies(store: ObjectStore, prefix: str) -> list[Path]:
    """The files in which the server keeps its objects."""
    found = list(store.folder.glob(f"*/{BUCKET}/{prefix}"))
    assert len(found) == 1
    return [path for path in found[0].rglob("*") if path.is_file() and not path.name.endswith(".meta.json")]


@pytest.mark.long
def test_spark_tasks_write_to_and_read_from_the_store(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, object_store: ObjectStore
) -> None:
    setting = Setting(
        clusters, tmp_path, topic_name, 8 * MB, engine={"micro_batch_bytes": "4MB", "inline_bytes": 0, "spark_master": "local[2]"}
    )
    process = setting.start("--once", "--json")
    try:
        assert process.wait(SECONDS) == 0, setting.words()[-2000:]
    finally:
        kill_tree(process)
    assert document(setting.config)["mirrors"]
    setting.copied()


@pytest.mark.long
def test_a_killed_run_is_followed_by_another_once_its_lease_is_over(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, object_store: ObjectStore
) -> None:
    setting = Setting(clusters, tmp_path, topic_name, 40 * MB)
    process = setting.start("--once")
    wait_until(lambda: process.poll() is not None or setting.there() > 0, SECONDS, "records to arrive")
    assert process.poll() is None, setting.words()[-2000:]
    kill_tree(process)
    assert 0 < setting.there() < setting.records
    began = time.monotonic()
    setting.mirror.run(once=True)
    assert time.monotonic() - began >= LEASE
    setting.copied()


@pytest.mark.long
def test_two_runs_of_one_lane(clusters: ClusterPair, tmp_path: Path, topic_name: str, object_store: ObjectStore) -> None:
    setting = Setting(clusters, tmp_path, topic_name, 1 * MB, lease=LONG_LEASE)
    process = setting.start("--for", "10m")
    try:
        wait_until(lambda: process.poll() is not None or setting.there() == setting.records, SECONDS, "the first run to copy")
        with pytest.raises(LaneBusy, match=f"m/lane-0 is held by process {process.pid} on "):
            setting.mirror.run(once=True)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        began = time.monotonic()
        setting.mirror.run(once=True)  # a holder that has ended need not be waited for
        assert time.monotonic() - began < LONG_LEASE
    finally:
        kill_tree(process)
    setting.copied()


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [
        "commit.before:3",
        "record.before:1",
        pytest.param("produce.before_send:3", marks=pytest.mark.slow),
        pytest.param("produce.before_ack:3", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_stopped_for_longer_than_its_lease_does_no_harm(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, object_store: ObjectStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs between its look at the lease and what it does next; another run takes over; then it wakes."""
    setting = Setting(clusters, tmp_path, topic_name, 16 * MB)
    monkeypatch.setenv(STOP, place)
    monkeypatch.setenv(ONCE, str(tmp_path / "stopped"))
    process = setting.start("--once")
    monkeypatch.delenv(STOP)
    monkeypatch.delenv(ONCE)
    second: subprocess.Popen[str] | None = None
    try:
        wait_until(stopped(process), SECONDS, f"the first run to stop at {place}")
        assert process.poll() is None, setting.words()[-2000:]
        second = setting.start("--for", "10m")
        wait_until(lambda: second.poll() is not None or setting.holder() == second.pid, SECONDS, "the second run to take over")
        wait_until(lambda: second.poll() is not None or setting.there() == setting.records, SECONDS, "the second run to copy")
        assert second.poll() is None, setting.words()[-2000:]
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(60) == 1
        produce(setting.source, topic_name, 100, partitions=4, start=10**9, size=1000)
        setting.records += 100
        wait_until(lambda: second.poll() is not None or setting.there() == setting.records, SECONDS, "the second run to go on")
        second.send_signal(signal.SIGINT)
        assert second.wait(60) in (0, 130), setting.words()[-2000:]
    finally:
        for each in (process, second):
            if each is not None:
                kill_tree(each)
    words = setting.words()
    assert "was taken over by process" in words or "by another run" in words
    setting.copied()


@pytest.mark.long
def test_a_store_that_is_away_pauses_the_lane(clusters: ClusterPair, tmp_path: Path, topic_name: str, object_store: ObjectStore) -> None:
    setting = Setting(clusters, tmp_path, topic_name, 24 * MB)
    process = setting.start("--once")
    try:
        wait_until(lambda: process.poll() is not None or setting.there() > 0, SECONDS, "records to arrive")
        object_store.kill()
        time.sleep(LEASE + 2)  # longer than the lease: nobody has taken over when it comes back
        assert process.poll() is None, setting.words()[-2000:]
        held = setting.there()
        time.sleep(1)
        assert setting.there() == held < setting.records
        object_store.start()
        assert process.wait(SECONDS) == 0, setting.words()[-2000:]
    finally:
        kill_tree(process)
    assert "the object store does not respond" in setting.words()
    setting.copied()


@pytest.mark.long
def test_a_copy_larger_than_the_cap_stays_under_it(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "MAINTENANCE_SECONDS", 1.0)
    cap = 12 * MB
    setting = Setting(clusters, tmp_path, topic_name, 18 * MB, buffer={"max_bytes": cap})
    sizes: list[int] = []

    def look(_: object) -> None:
        if not sizes or time.monotonic() - looked[0] > 0.3:
            looked[0] = time.monotonic()
            sizes.append(sum(lane_use(store).total for store in setting.mirror.flow.lane_stores()))

    looked = [0.0]
    setting.mirror.run(once=True, observer=look)
    assert max(sizes) <= cap
    assert setting.there() == setting.records
    (store,) = setting.mirror.flow.lane_stores()
    left = sum(span.records for span in SpanTable(store).spans())
    assert left < setting.records
    assert_identical(setting.mirror, [topic_name])

"""What becomes of target logs behind a mirror's back: cut off and emptied, or cleaned by compaction before the ledger was written."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Producer

from mirror_pipeline import Mirror
from mirror_pipeline.errors import UsageError
from mirror_pipeline.kafka.records.batch import headers
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.integration.processes import kill_tree, start_mirror, wait_until
from tests.support.mirrors import create_topic, end_offsets, make_mirror, produce, trim, values, write_config

pytestmark = pytest.mark.long

SECONDS = 240
INLINE = {"inline_bytes": "512MB"}


@pytest.fixture
def pair(cluster_factory: Callable[..., list[LocalCluster]]) -> tuple[LocalCluster, LocalCluster]:
    """Of one broker each: what is cut off or cleaned in one log would come back from its replicas."""
    source, target = cluster_factory(names=["east", "west"], brokers=1, heap="256m", config={"log.cleaner.backoff.ms": "200"})
    return source, target


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[LocalCluster, LocalCluster]) -> Callable[..., int]:
    """Runs the mirror once in a process of its own, which dies at a crash point if one is named."""
    east, west = (cluster.bootstrap_servers for cluster in pair)
    config = write_config(tmp_path, east, west, ["t"], engine=INLINE)

    def once(crash: str = "") -> int:
        monkeypatch.setenv("MIRROR_CRASH_AT", crash)
        process = start_mirror(config, "run", "--once", "--json")
        try:
            return process.wait(SECONDS)
        finally:
            kill_tree(process)

    return once


def target_values(mirror: Mirror) -> list[str]:
    return [value.rstrip(".") for value in values(mirror, "east.t")]


def cut_last_batch(target: LocalCluster) -> None:
    """The target's log loses its last batch while it is down, as in a crash without replicas."""
    target.stop()
    (folder,) = [path for broker in target.brokers for path in broker.data.glob("east.t-0")]
    log = folder / "00000000000000000000.log"
    content = log.read_bytes()
    log.write_bytes(content[: [at for at, _ in headers(memoryview(content))][-1]])
    target.start()


def test_an_emptied_target_topic_is_filled_again_when_that_is_accepted(
    pair: tuple[LocalCluster, LocalCluster], run: Callable[..., int], tmp_path: Path
) -> None:
    """The brokers still know the producer: the copy begins again under the next epoch, wherever a run of it is killed."""
    source, target = pair
    east, west = source.bootstrap_servers, target.bootstrap_servers
    mirror = make_mirror(tmp_path, east, west, ["t"], engine=INLINE)
    create_topic(east, "t")
    for start in (0, 20):
        produce(east, "t", 20, start=start)
        assert run() == 0
    with pytest.raises(UsageError, match="not halted"):
        mirror.resolve("t", "target_truncated")
    cut_last_batch(target)
    assert end_offsets(mirror, "east.t", target=True) == {0: 20}
    assert run() == 1, (tmp_path / "stdout.txt").read_text()
    assert [halt.code for halt in mirror.halts()] == ["target_truncated"]
    trim(west, "east.t", {0: OFFSET_END})
    mirror.resolve("t", "target_truncated")
    for crash in ("recover.before", "produce.before_send", "produce.after_send", "record.before", "record.after"):
        assert run(crash) == -signal.SIGKILL, crash
    assert run() == 0, (tmp_path / "stdout.txt").read_text()
    produce(east, "t", 5, start=40)
    assert run() == 0
    assert target_values(mirror) == [f"value-{number}" for number in range(45)]


def test_a_target_cleaned_before_the_ledger_was_written_has_no_gap(
    pair: tuple[LocalCluster, LocalCluster], run: Callable[..., int], tmp_path: Path
) -> None:
    source, target = pair
    east, west = source.bootstrap_servers, target.bootstrap_servers
    compacted: dict[str, Any] = {"cleanup__policy": "compact", "min__cleanable__dirty__ratio": "0.01", "segment__bytes": "1048576"}
    create_topic(east, "t", cleanup__policy="compact")
    create_topic(west, "east.t", **compacted)
    producer = Producer({"bootstrap.servers": east, "linger.ms": 5, "batch.num.messages": 20})
    for number in range(3500):
        producer.produce("t", f"{number}.".ljust(1000, "."), key=f"key-{number % 7}")
    assert producer.flush(60) == 0
    mirror = make_mirror(tmp_path, east, west, ["t"], engine=INLINE)
    assert run("record.before") == -signal.SIGKILL
    assert end_offsets(mirror, "east.t", target=True) == {0: 3500}
    wait_until(lambda: len(target_values(mirror)) < 2500, 120, "the cleaner")
    assert run() == 0, (tmp_path / "stdout.txt").read_text()
    producer.produce("t", b"last", key="key-0")
    assert producer.flush(60) == 0
    assert run() == 0, (tmp_path / "stdout.txt").read_text()
    assert end_offsets(mirror, "east.t", target=True) == {0: 3501}
    assert target_values(mirror)[-1] == "last"

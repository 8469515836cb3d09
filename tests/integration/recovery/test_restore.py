"""A ledger restored from a backup that is older than the target: nothing is lost, nothing arrives twice."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import UsageError
from mirror_pipeline.features.backup import restore_backup
from tests.integration.processes import kill_tree, start_mirror, wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, end_offsets, produce, write_config
from tests.support.reverse_pair import IN_PROCESS


@pytest.fixture
def killed(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> tuple[Mirror, str, Path]:
    """A mirror whose lane was killed after it had copied 600 records more than its backup, taken while it ran, knows of."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 3)
    produce(east, topic_name, 300, partitions=3)
    # Micro-batches that are smaller than what the backup lacks: a first one that holds all of it would need no catch-up.
    config = write_config(tmp_path, east, west, [topic_name], engine={**IN_PROCESS, "micro_batch_bytes": "1MB"})
    mirror = Mirror(load_config(config), "m")
    run = start_mirror(config, "run")
    try:
        reached(mirror, topic_name, 300)
        assert main(["backup", str(tmp_path), "-c", str(config)]) == 0
        (file,) = tmp_path.glob("mirror-backup-m-*.tar")
        for start in (300, 600):
            produce(east, topic_name, 300, partitions=3, start=start, size=20_000)
            reached(mirror, topic_name, start + 300)
    finally:
        kill_tree(run)
    produce(east, topic_name, 90, partitions=3, start=900)
    return mirror, topic_name, file


def reached(mirror: Mirror, topic: str, records: int) -> None:
    def there() -> bool:
        try:
            on_target = sum(end_offsets(mirror, f"east.{topic}", target=True).values()) == records
            known = sum(hour.records for each in mirror.delays(3600).topics for hour in each.hours)
        except Exception:  # noqa: BLE001 - the topic is not there yet
            return False
        return on_target and known == records

    wait_until(there, 60, f"{records} records to be copied")


def test_an_older_ledger_is_caught_up_and_copying_goes_on(
    killed: tuple[Mirror, str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror, topic, file = killed
    with pytest.raises(UsageError, match="has a ledger"):
        mirror.restore(file)
    config = str(tmp_path / "mirror.yaml")
    assert main(["restore", str(file), "-c", config, "--replace", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(["restore", str(file), "-c", config]) == 2
    done = mirror.restore(file, replace=True)
    assert said["topics"] == [topic.to_json() for topic in done.topics] and said["kept"] != done.kept
    assert done.ok and Path(done.kept, "lane-0", "sends").is_dir()
    assert [(row.topic, row.state) for row in done.topics] == [(topic, "caught_up")]
    assert 590 <= done.topics[0].records <= 600
    assert [(row.state, row.records) for row in mirror.run(once=True).topics] == [("ok", 90)]
    assert sum(end_offsets(mirror, f"east.{topic}", target=True).values()) == 990
    assert_identical(mirror, [topic])
    assert mirror.verify().ok
    produce(mirror.flow.source.bootstrap_servers[0], topic, 30, partitions=3, start=990)
    assert [(row.state, row.records) for row in mirror.run(once=True).topics] == [("ok", 30)]
    shutil.rmtree(tmp_path / "buffer" / "m")
    assert mirror.restore(file).topics[0].records == done.topics[0].records + 120


def test_without_the_catch_up_the_topic_halts(killed: tuple[Mirror, str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, topic, file = killed
    monkeypatch.setattr(restore_backup, "catch_up", lambda *_: [])
    mirror.restore(file, replace=True)
    (row,) = mirror.run(once=True).topics
    assert (row.state, row.records) == ("halted", 0), row
    assert sum(end_offsets(mirror, f"east.{topic}", target=True).values()) == 900


def test_a_target_that_others_have_written_is_refused(killed: tuple[Mirror, str, Path]) -> None:
    mirror, topic, file = killed
    produce(mirror.flow.target.bootstrap_servers[0], f"east.{topic}", 1, start=int(time.time()))
    done = mirror.restore(file, replace=True)
    assert not done.ok and "are not the next" in done.topics[0].reason
    assert [row.state for row in mirror.run(once=True).topics] == ["halted"]


def test_what_is_no_backup_is_refused(killed: tuple[Mirror, str, Path], tmp_path: Path) -> None:
    mirror, _, file = killed
    (tmp_path / "half.tar").write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for name in ("half.tar", "mirror.yaml"):
        with pytest.raises(UsageError, match="is no backup"):
            mirror.restore(tmp_path / name, replace=True)
    assert [row.state for row in mirror.run(once=True).topics] == ["ok"], "nothing was touched"

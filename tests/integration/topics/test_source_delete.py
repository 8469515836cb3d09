"""`topics.on_source_delete: delete`: the copy of a deleted topic is deleted once it is delivered and verified, and never otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.cli.main import main
from mirror_pipeline.crash_points import CRASH, DELETION_POINTS
from mirror_pipeline.engine.driver import lane
from mirror_pipeline.engine.driver.maintain import thread
from mirror_pipeline.engine.driver.topics import deletion
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, NothingSelected
from mirror_pipeline.features.failover.report import FailoverOptions
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_ID
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.integration.processes import wait_until
from tests.support.deleted_topics import delete_topic, expected
from tests.support.groups import running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import add_partitions, assert_identical, create_topic, make_mirror, nowhere, produce, values
from tests.support.reverse_pair import IN_PROCESS


def target_id(mirror: Mirror, topic: str) -> str:
    """"" if the target has no such topic."""
    with mirror.flow.target_client() as client:
        return client.metadata([topic]).topics[topic].topic_id


def deleting(folder: Path, clusters: ClusterPair, *topics: str, **more: Any) -> Mirror:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    selected = {"include": list(topics), "on_source_delete": "delete"}
    return make_mirror(folder, east, west, topics, topics=selected, **{"engine": IN_PROCESS, **more})


def states(mirror: Mirror) -> dict[str, tuple[str, str]]:
    return {row.topic: (row.state, row.code) for row in mirror.run(once=True).topics}


def is_forgotten(mirror: Mirror) -> bool:
    """Whether the mirror, which has no other topic, does not know its topic any more."""
    with pytest.raises(NothingSelected):
        mirror.run(once=True)
    return mirror.lag().topics == ()


def copied(folder: Path, clusters: ClusterPair, topic: str, count: int = 100, **more: Any) -> Mirror:
    """A mirror that has copied the topic."""
    create_topic(clusters[0].bootstrap_servers, topic, 2)
    produce(clusters[0].bootstrap_servers, topic, count, partitions=2)
    mirror = deleting(folder, clusters, topic, **more)
    assert mirror.run(once=True).records == count
    return mirror


def reason(mirror: Mirror) -> str:
    (row,) = mirror.run(once=True).topics
    assert (row.state, row.code) == ("halted", "source_gone")
    return row.reason


@pytest.mark.long
def test_the_copy_is_deleted_after_delivery_and_verification(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic, other = new_topic_name(), new_topic_name()
    east = clusters[0].bootstrap_servers
    for name in (topic, other):
        create_topic(east, name)
        produce(east, name, 100)
    mirror = deleting(tmp_path, clusters, topic, other)
    assert mirror.run(once=True).state == "ok"
    produce(east, topic, 50, start=100)
    here, mirror.flow.target = mirror.flow.target, nowhere(mirror.flow.target)
    with pytest.raises(ClusterUnreachable):
        mirror.run(once=True)  # 50 records are in the buffer
    delete_topic(mirror, topic)
    mirror.flow.target = here
    assert {row.topic: row.code for row in mirror.lag().topics} == {topic: "source_gone", other: ""}
    assert any("the next run deletes its copy" in row.hint for row in mirror.plan().topics)
    old = target_id(mirror, f"east.{topic}")
    assert old
    report = mirror.run(once=True)
    assert {(row.topic, row.state, row.code, row.records) for row in report.topics} == {(topic, "ended", "ended", 50), (other, "ok", "", 0)}
    assert report.state == "ok"
    assert target_id(mirror, f"east.{topic}") == "" and target_id(mirror, f"east.{other}")
    assert any(f"topic east.{topic} (id {old})" in line for line in caplog.messages)
    assert {row.topic: row.state for lane_ in mirror.status().lanes for row in lane_.topics} == {topic: "ended", other: "ok"}
    for rows in (mirror.lag().topics, mirror.plan().topics, mirror.run(once=True).topics):
        assert [(row.topic, row.state) for row in rows] == [(other, "ok")]
    config = ["-c", str(tmp_path / "mirror.yaml")]
    for words in (["health"], ["status", "--exit-code"], ["lag"], ["plan"], ["check"]):
        assert main([*config, *words]) == 0, words
    create_topic(east, topic)
    produce(east, topic, 7, start=500)
    assert {row.topic: row.lag_records for row in mirror.lag().topics} == {topic: 7, other: 0}
    assert states(mirror) == {topic: ("ok", ""), other: ("ok", "")}
    assert values(mirror, f"east.{topic}") == expected(500, 507)
    assert target_id(mirror, f"east.{topic}") != old
    assert_identical(mirror, [topic, other])


@pytest.mark.long
def test_a_running_mirror_deletes_the_copy_and_begins_the_recreated_topic_anew(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "MAINTENANCE_SECONDS", 2.0)
    monkeypatch.setattr(lane, "DISCOVER_SECONDS", 1.0)
    monkeypatch.setattr(lane, "RAREST_DISCOVER_SECONDS", 1.0)
    mirror = copied(tmp_path, clusters, topic_name)
    old = target_id(mirror, f"east.{topic_name}")
    with running(mirror):
        wait_until(lambda: [r.state for each in mirror.status().lanes for r in each.topics] == ["ok"], 60, "the run")
        delete_topic(mirror, topic_name)
        wait_until(lambda: target_id(mirror, f"east.{topic_name}") == "", 60, "the copy to be deleted")
        wait_until(lambda: [r.state for each in mirror.status().lanes for r in each.topics] == ["ended"], 60, "the state")
        create_topic(clusters[0].bootstrap_servers, topic_name)
        produce(clusters[0].bootstrap_servers, topic_name, 9, start=1000)
        wait_until(lambda: target_id(mirror, f"east.{topic_name}") not in ("", old), 60, "the new copy")
        wait_until(lambda: mirror.lag().lag_records == 0 and len(values(mirror, f"east.{topic_name}")) == 9, 60, "the records")
    assert_identical(mirror, [topic_name])


def test_a_copy_that_is_not_verified_stays(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = copied(tmp_path, clusters, topic_name)
    for start in (100, 200):
        produce(clusters[0].bootstrap_servers, topic_name, 100, partitions=2, start=start)
        assert mirror.run(once=True).records == 100
    delete_topic(mirror, topic_name)
    with monkeypatch.context() as short:
        short.setattr(deletion, "DELETION_VERIFY_SECONDS", -1.0)
        short.setattr(deletion, "DELETION_VERIFY_BYTES", 1)
        assert reason(mirror).endswith("its copy is not deleted: 200 offsets of its copy are not verified yet")
        assert target_id(mirror, f"east.{topic_name}")
    assert states(mirror) == {topic_name: ("ended", "ended")}
    assert target_id(mirror, f"east.{topic_name}") == ""


@pytest.mark.long
def test_a_copy_that_others_have_written_to_stays(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    mirror = copied(tmp_path, clusters, topic_name)
    produce(clusters[1].bootstrap_servers, f"east.{topic_name}", 1)
    delete_topic(mirror, topic_name)
    assert reason(mirror).endswith(f"east.{topic_name}[0] ends at offset 51, the copy at 50: others have written to it")
    assert "others have written to it" in reason(mirror) and target_id(mirror, f"east.{topic_name}")
    assert {row.topic: (row.state, row.code) for row in mirror.lag().topics} == {topic_name: ("halted", "source_gone")}


@pytest.mark.long
def test_a_copy_in_a_topic_that_was_grown_and_written_to_stays(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """The mirror has no position in the third partition."""
    mirror = copied(tmp_path, clusters, topic_name)
    add_partitions(clusters[1].bootstrap_servers, f"east.{topic_name}", 3)
    produce(clusters[1].bootstrap_servers, f"east.{topic_name}", 3, partitions=3)
    delete_topic(mirror, topic_name)
    assert "others have written to it" in reason(mirror) and target_id(mirror, f"east.{topic_name}")


@pytest.mark.long
def test_a_copy_stays_where_the_source_had_more(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east = clusters[0].bootstrap_servers
    create_topic(east, topic_name)
    produce(east, topic_name, 20_000, size=1000)
    mirror = deleting(tmp_path, clusters, topic_name, engine={**IN_PROCESS, "bandwidth": "1MB", "micro_batch_bytes": "1MB"})
    with running(mirror):
        wait_until(lambda: mirror.lag().lag_records < 20_000, 60, "the first records")
    assert mirror.lag().lag_records > 0
    delete_topic(mirror, topic_name)
    assert "were never read" in reason(mirror)
    assert target_id(mirror, f"east.{topic_name}")
    mirror.resolve(topic_name, "source_gone")
    assert is_forgotten(mirror) and target_id(mirror, f"east.{topic_name}"), "a person leaves it out: the copy stays"


def test_a_copy_stays_while_the_source_does_not_answer_or_is_another_cluster(
    clusters: ClusterPair, cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, topic_name: str
) -> None:
    """A third cluster of one broker: it is only asked who it is."""
    mirror = copied(tmp_path, clusters, topic_name)
    here, mirror.flow.source = mirror.flow.source, nowhere(mirror.flow.source)
    with pytest.raises(ClusterUnreachable):
        mirror.run(once=True)
    (third,) = cluster_factory(brokers=1)
    mirror.flow.source = replace(here, bootstrap_servers=tuple(third.bootstrap_servers.split(",")))
    assert states(mirror) == {topic_name: ("halted", "other_cluster")}
    assert target_id(mirror, f"east.{topic_name}")
    mirror.flow.source = here
    assert states(mirror) == {topic_name: ("ok", "")}


def test_a_promoted_topic_stays(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    mirror = copied(tmp_path, clusters, topic_name)
    mirror.failover(FailoverOptions())
    delete_topic(mirror, topic_name)
    assert states(mirror) == {topic_name: ("promoted", "promoted")}
    assert target_id(mirror, f"east.{topic_name}")


def test_the_policy_must_be_written_out(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    mirror = copied(tmp_path, clusters, topic_name)
    delete_topic(mirror, topic_name)
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    plain = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    assert "its copy is not deleted" not in reason(plain) and target_id(plain, f"east.{topic_name}")


def killed(folder: Path, point: str) -> None:
    line = [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(folder / "mirror.yaml"), "run", "--once"]
    done = subprocess.run(line, env={**os.environ, CRASH: point}, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("point", DELETION_POINTS)
def test_a_deletion_that_was_killed_is_settled_by_the_next_run(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, point: str, back: bool
) -> None:
    """``back``: the source topic is recreated in between. What still exists then was not deleted, and stays."""
    mirror = copied(tmp_path, clusters, topic_name)
    delete_topic(mirror, topic_name)
    killed(tmp_path, point)
    old = target_id(mirror, f"east.{topic_name}")
    assert bool(old) == (point == "deletion.named")
    if back:
        create_topic(clusters[0].bootstrap_servers, topic_name, 2)
        produce(clusters[0].bootstrap_servers, topic_name, 10, partitions=2, start=1000)
    if back and old:
        assert states(mirror) == {topic_name: ("halted", "recreated")} and target_id(mirror, f"east.{topic_name}") == old
        return
    assert states(mirror) == {topic_name: ("ok", "") if back else ("ended", "ended")}
    if back:
        assert_identical(mirror, [topic_name])
    else:
        assert target_id(mirror, f"east.{topic_name}") == "" and is_forgotten(mirror)


@pytest.mark.long
def test_after_a_kill_everything_is_checked_again(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    mirror = copied(tmp_path, clusters, topic_name)
    delete_topic(mirror, topic_name)
    killed(tmp_path, "deletion.named")
    produce(clusters[1].bootstrap_servers, f"east.{topic_name}", 1)
    assert "others have written to it" in reason(mirror) and target_id(mirror, f"east.{topic_name}")


@pytest.mark.long
def test_another_topic_of_the_same_name_is_not_touched(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    mirror = copied(tmp_path, clusters, topic_name)
    old, name = target_id(mirror, f"east.{topic_name}"), f"east.{topic_name}"
    delete_topic(mirror, topic_name)
    killed(tmp_path, "deletion.deleted")
    create_topic(clusters[1].bootstrap_servers, name)
    produce(clusters[1].bootstrap_servers, name, 5)
    new = target_id(mirror, name)
    with mirror.flow.target_client() as client, pytest.raises(BrokerError) as refused:
        client.delete_topic(old, name)
    assert refused.value.code == UNKNOWN_TOPIC_ID
    assert states(mirror) == {topic_name: ("ended", "ended")}
    assert is_forgotten(mirror) and target_id(mirror, name) == new
    assert values(mirror, name) == expected(0, 5)

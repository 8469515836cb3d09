"""What is shown is true of each topic: halts that a run reported, and those that only a look at the clusters shows, on real brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.cli.main import main
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.support.deleted_topics import delete_everywhere
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, trim, write_config


@pytest.fixture
def mirror(clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]) -> tuple[Mirror, list[str]]:
    """A mirror of four topics that have been copied once: halted, trimmed, deleted, fine."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    names = sorted(new_topic_name() for _ in range(4))
    made = make_mirror(tmp_path, east, west, names, engine={"inline_bytes": "16MB"})
    for name in names:
        create_topic(east, name)
        produce(east, name, 50)
    assert made.run(once=True).state == "ok"
    return made, names


def shown(mirror: Mirror) -> tuple[dict[str, str], dict[str, str], set[str]]:
    """Codes by topic, as `lag` and as `plan` show them, and the topics that `check` finds wrong."""
    lag = {topic.topic: topic.code for topic in mirror.lag().topics if topic.state == "halted"}
    plan = {topic.topic: topic.code for topic in mirror.plan().topics if topic.state == "halted"}
    wrong = {finding.what.removeprefix("topic ") for finding in mirror.check() if not finding.ok}
    return lag, plan, wrong


def test_the_ledger_knows_how_long_records_took(mirror: tuple[Mirror, list[str]], clusters: ClusterPair) -> None:
    made, (early, *_) = mirror
    produce(made.flow.source.bootstrap_servers[0], early, 10, start=50, at=int(time.time() * 1000) - 3_600_000)
    assert made.run(once=True).state == "ok"
    found = {topic.topic: [hour for hour in topic.hours if hour.records] for topic in made.delays(3600).topics}
    sent = {name: sum(hour.records for hour in hours) for name, hours in found.items()}
    assert sorted(sent.values()) == [50, 50, 50, 60] and sent[early] == 60
    for name, hours in found.items():
        worst = max(hour.delay_p99_ms or 0 for hour in hours)
        assert 3_600_000 <= worst < 3_800_000 if name == early else 0 < worst < 120_000


def test_lag_plan_and_check_know_what_a_run_would_stop_at(mirror: tuple[Mirror, list[str]], clusters: ClusterPair) -> None:
    made, (told, trimmed, deleted, _) = mirror
    east = made.flow.source.bootstrap_servers[0]
    assert shown(made) == ({}, {}, set())
    produce(east, told, 100, start=50)
    trim(east, told, {0: 120})
    run = made.run(once=True)
    assert {t.topic: t.code for t in run.topics if t.state == "halted"} == {told: "trimmed"}
    produce(east, trimmed, 100, start=50)
    trim(east, trimmed, {0: 130})
    delete_everywhere(east, deleted)
    codes = {told: "trimmed", trimmed: "trimmed", deleted: "source_gone"}
    assert shown(made) == (codes, codes, set(codes))
    lag = {topic.topic: topic for topic in made.lag().topics}
    assert f"--topic {trimmed} --accept trimmed" in lag[trimmed].hint
    made.resolve(told, "trimmed")
    assert told not in shown(made)[0]
    assert {t.topic: t.state for lane in made.status().lanes for t in lane.topics}[told] == "accepted"


def test_lag_knows_how_far_back_every_topic_is(clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]) -> None:
    """Batches larger than a look takes: a broker gives one of them per request."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    names = sorted(new_topic_name() for _ in range(2))
    for hours, name in enumerate(names, 2):
        create_topic(east, name, 20, retention__ms="-1")
        produce(east, name, 20, partitions=20, size=100_000, at=int((time.time() - hours * 3600) * 1000))
    answer = make_mirror(tmp_path, east, west, names, engine={"inline_bytes": "16MB"}).lag()
    seconds = [topic.lag_seconds for topic in answer.topics]
    assert all(age is not None and 0.9 * hours * 3600 < age < hours * 3600 + 120 for hours, age in enumerate(seconds, 2)), seconds
    assert answer.lag_seconds == seconds[1]


@pytest.mark.long
def test_a_run_whose_target_is_down_ends_with_what_is_not_copied(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    east, west = cluster_factory(names=["east", "west"], brokers=1)
    path = write_config(tmp_path, east.bootstrap_servers, west.bootstrap_servers, [topic_name], engine={"inline_bytes": "16MB"})
    create_topic(east.bootstrap_servers, topic_name)
    produce(east.bootstrap_servers, topic_name, 50)
    assert main(["run", "-c", str(path), "--once"]) == 0
    west.kill()
    produce(east.bootstrap_servers, topic_name, 500, start=50)
    capsys.readouterr()
    assert main(["run", "-c", str(path), "--for", "20s", "--json"]) == 3
    (answer,) = json.loads(capsys.readouterr().out)["mirrors"]
    (topic,) = answer["topics"]
    assert (answer["state"], topic["state"], answer["lag_records"], answer["staged_records"]) == ("behind", "behind", 500, 500)
    assert topic["reason"].startswith("500 offsets are not on the target: ")
    assert answer["target_down"]

"""Target names by map and by regex on real brokers; names that collide, or that a running topic would lose, are refused everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.errors import UsageError
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.project import read_project
from mirror_pipeline.orchestration.sensors.lane_facts import lane_job_name
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, values, write_config

pytestmark = pytest.mark.long

IN_PROCESS = {"inline_bytes": "1GB"}


def expected(count: int, start: int = 0) -> list[str]:
    return [f"value-{number}".ljust(20, ".") for number in range(start, start + count)]


def in_dagster(path: Path) -> str:
    """The message with which the mirror's lane fails as a Dagster job; "" when it succeeds."""
    project = read_project(path)
    lane = build(project).resolve_job_def(lane_job_name(project.mirrors[0], "lane-0"))
    (op,) = [node.name for node in lane.nodes]
    config = {"ops": {op: {"config": {"budget_seconds": 60.0, "idle_seconds": 3.0, "whole_lane": True}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        done = lane.execute_in_process(instance=instance, raise_on_error=False, run_config=config)
    failed = [event.step_failure_data for event in done.all_events if event.is_step_failure]
    return "; ".join(str(data.user_failure_data or data.error) for data in failed)


def test_topics_named_by_map_and_by_regex(clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mapped, left, stem = (new_topic_name() for _ in range(3))
    for number, topic in enumerate((mapped, left, f"eu.{stem}", f"us.{stem}")):
        create_topic(east, topic)
        produce(east, topic, 30, start=100 * number)
    by_map = make_mirror(tmp_path / "map", east, west, [mapped, left], naming={"map": {mapped: f"eu.{mapped}"}}, engine=IN_PROCESS)
    assert {row.topic: row.target_topic for row in by_map.plan().topics} == {mapped: f"eu.{mapped}", left: f"east.{left}"}
    assert by_map.run(once=True).records == 60
    assert values(by_map, f"eu.{mapped}") == expected(30) and values(by_map, f"east.{left}") == expected(30, 100)

    naming = {"match": r"(eu|us)\.(.*)", "replace": r"\2-\1", "otherwise": "identity"}
    by_regex = make_mirror(tmp_path / "regex", east, west, [rf"..\.{stem}"], naming=naming, engine=IN_PROCESS)
    assert by_regex.run(once=True).records == 60
    assert values(by_regex, f"{stem}-eu") == expected(30, 200) and values(by_regex, f"{stem}-us") == expected(30, 300)
    (answer,) = by_regex.translate(f"{stem}-us", offset=7, reverse=True)
    assert (answer.topic, answer.source_offset) == (f"us.{stem}", 7)


def test_two_topics_of_one_target_name_are_refused_everywhere(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    for prefix in ("eu", "us"):
        create_topic(east, f"{prefix}.{topic_name}")
    make_mirror(tmp_path, east, west, [rf"..\.{topic_name}"], naming="identity").refresh_catalogue()  # Dagster has a lane for them
    naming = {"match": r"eu\.(.*)", "replace": r"us.\1", "otherwise": "identity"}
    path = write_config(tmp_path, east, west, [rf"..\.{topic_name}"], naming=naming, engine=IN_PROCESS)
    mirror = Mirror(load_config(path), "m")
    said = f"target topic us.{topic_name} on cluster west would get the records of two topics: "
    with pytest.raises(UsageError, match=said) as caught:  # nothing else is to be copied
        mirror.run(once=True)
    assert "`naming`, or exclude one of them" in caught.value.hint
    both = [f"eu.{topic_name}", f"us.{topic_name}"]
    assert [row.topic for row in mirror.plan().topics if row.reason.startswith(said)] == both
    assert [finding.what for finding in mirror.check() if not finding.ok] == ["topics", *(f"topic {topic}" for topic in both)]
    assert said in in_dagster(path)
    assert mirror.refresh_catalogue().topics == ()
    assert f"us.{topic_name}" not in mirror.flow.target_admin().topics(), "nothing is created"


def test_a_running_topic_keeps_its_name_or_is_refused_everywhere(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    topic, other = new_topic_name(), new_topic_name()
    for name in (topic, other):
        create_topic(east, name)
        produce(east, name, 10)
    assert make_mirror(tmp_path, east, west, [topic, other], engine=IN_PROCESS).run(once=True).records == 20
    for name in (topic, other):
        produce(east, name, 5, start=10)
    make_mirror(tmp_path, east, west, [topic, other]).refresh_catalogue()  # Dagster has a lane for them
    path = write_config(tmp_path, east, west, [topic, other], naming={"map": {topic: f"new.{topic}"}}, engine=IN_PROCESS)
    mirror = Mirror(load_config(path), "m")
    what = f"{topic} has been mirrored to east.{topic} so far, the configuration now says new.{topic}"
    hint = f"set `naming` back for it, e.g. {{map: {{{topic}: east.{topic}}}}}"
    (row,) = [row for row in mirror.plan().topics if row.code]
    assert (row.topic, row.code, row.reason) == (topic, "renamed", what) and row.hint.startswith(hint)
    assert [f.what for f in mirror.check() if not f.ok and what in f.detail] == [f"topic {topic}"]
    said = in_dagster(path)
    assert what in said and hint in said
    report = mirror.run(once=True)
    assert {t.topic: (t.state, t.code) for t in report.topics} == {topic: ("halted", "renamed"), other: ("ok", "")}
    there = mirror.flow.target_admin().topics()
    assert f"new.{topic}" not in there and len(values(mirror, f"east.{topic}")) == 10 and len(values(mirror, f"east.{other}")) == 15
    back = make_mirror(tmp_path, east, west, [topic], naming={"map": {topic: f"east.{topic}"}, "otherwise": "identity"}, engine=IN_PROCESS)
    assert back.run(once=True).records == 5
    assert values(back, f"east.{topic}") == expected(15)

"""Every setting of a mirror that can change between two runs: the copy goes on, or the topic stops with the reason by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.config import BufferConfig, MirrorConfig, TopicSelection
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce

IN_PROCESS = {"inline_bytes": "1GB"}


@dataclass(frozen=True)
class Change:
    """What is different in the second run, and what that does to a topic that was copied before: a halt's code, "" when it goes on."""

    settings: dict[str, Any]
    code: str = ""
    turned: bool = False
    renamed: bool = False


CHANGES: dict[str, list[Change]] = {
    "name": [Change({"name": "other"}, "target_filled", renamed=True)],
    "source": [Change({}, "other_cluster", turned=True)],
    "target": [Change({}, "other_cluster", turned=True)],
    "topics": [],  # by its own keys, below
    "naming": [
        Change({"naming": "{topic}.{source}"}, "renamed"),
        Change({"naming": "{source}.{topic}"}),
        Change({"naming": {"map": {"TOPIC": "x.TOPIC"}}}, "renamed"),
        Change({"naming": {"match": "(.*)", "replace": r"east.\1", "otherwise": "identity"}}),
    ],
    "offsets": [Change({"offsets": "exact"})],  # nothing is in the way where all offsets are the same so far
    "start": [
        Change({"start": "latest"}),
        Change({"start": "2030-01-01T00:00:00Z"}),
        Change({"start": {"TOPIC": {"0": 999}, "otherwise": "latest"}}),
    ],
    "on_loss": [Change({"on_loss": "record_gap"})],
    "lanes": [Change({"lanes": 3})],
    "writers": [Change({"writers": "shared"})],
    "sources": [],  # need clusters of their own: test_several_sources
    "reverse_of": [],  # names another mirror: test_failback
    "groups": [Change({"groups": {"include": [".*"]}})],
    "engine": [Change({"engine": {**IN_PROCESS, "micro_batch_bytes": "1MB", "connections": 4}})],
    "topics.include": [Change({"topics": {"include": [".*"], "exclude": ["(?!TOPIC).*"]}})],
    "topics.exclude": [Change({"topics": {"include": ["TOPIC"], "exclude": ["nothing"]}})],
    "topics.originals_only": [Change({"topics": {"include": ["TOPIC"], "originals_only": True}})],
    "topics.manage": [Change({"topics": {"include": ["TOPIC"], "manage": False}})],
    "topics.configs": [Change({"topics": {"include": ["TOPIC"], "configs": {"defaults_from": "source", "exclude": []}}})],
    "topics.acls": [Change({"topics": {"include": ["TOPIC"], "acls": {"sync": True}}})],
    "topics.follow_trim": [Change({"offsets": "exact", "topics": {"include": ["TOPIC"], "follow_trim": True}})],
    "topics.on_source_delete": [Change({"topics": {"include": ["TOPIC"], "on_source_delete": choice}}) for choice in ("keep", "delete")],
    "topics.replication_factor": [Change({"topics": {"include": ["TOPIC"], "replication_factor": 3}})],
    "buffer.uri": [Change({"buffer": {"uri": "./elsewhere"}}, "target_filled")],
    "buffer.retention": [Change({"buffer": {"retention": "1h"}})],
    "buffer.archive": [Change({"buffer": {"archive": "90d"}})],
    "buffer.max_bytes": [Change({"buffer": {"max_bytes": "2GB"}})],
    "buffer.durable": [Change({"buffer": {"durable": False}})],
    "buffer.lease": [Change({"buffer": {"lease": "45s"}})],
}


def test_every_setting_is_in_the_list() -> None:
    own = {field.name for field in fields(MirrorConfig)}
    own |= {f"topics.{field.name}" for field in fields(TopicSelection)} | {f"buffer.{field.name}" for field in fields(BufferConfig)}
    assert set(CHANGES) == own


def named(value: Any, topic: str) -> Any:
    if isinstance(value, dict):
        return {key.replace("TOPIC", topic): named(each, topic) for key, each in value.items()}
    if isinstance(value, list):
        return [named(each, topic) for each in value]
    return value.replace("TOPIC", topic) if isinstance(value, str) else value


@pytest.mark.long
@pytest.mark.parametrize(("setting", "number"), [(name, number) for name, found in CHANGES.items() for number in range(len(found))])
def test_a_changed_setting_goes_on_or_is_refused_by_name(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], setting: str, number: int
) -> None:
    change = CHANGES[setting][number]
    topic = new_topic_name()
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic)
    produce(east, topic, 30)
    first = make_mirror(tmp_path, east, west, [topic], engine=IN_PROCESS)
    assert first.run(once=True).records == 30
    produce(east, topic, 12, start=30)
    source, target = (west, east) if change.turned else (east, west)
    if change.turned:
        create_topic(west, topic)
    settings = {"engine": IN_PROCESS, **named(change.settings, topic)}
    second = make_mirror(tmp_path, source, target, [topic], **settings) if not change.renamed else renamed(first, tmp_path)
    report = second.run(once=True)
    assert [(row.topic, row.state, row.code) for row in report.topics] == [(topic, "halted" if change.code else "ok", change.code)]
    assert report.records == (0 if change.code else 12)
    if not change.code:
        assert_identical(second, [topic])
    assert make_mirror(tmp_path, east, west, [topic], engine=IN_PROCESS).run(once=True).records == (12 if change.code else 0)
    assert_identical(first, [topic])


def renamed(mirror: Mirror, folder: Path) -> Mirror:
    from mirror_pipeline import load_config

    path = folder / "mirror.yaml"
    path.write_text(path.read_text().replace('"name": "m"', '"name": "other"'))
    return Mirror(load_config(path), "other")


def test_a_topic_that_is_no_longer_selected_is_paused_and_goes_on_later(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]
) -> None:
    kept, paused = new_topic_name(), new_topic_name()
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    for topic in (kept, paused):
        create_topic(east, topic)
        produce(east, topic, 10)
    both = make_mirror(tmp_path, east, west, [kept, paused], engine=IN_PROCESS)
    assert both.run(once=True).records == 20
    for topic in (kept, paused):
        produce(east, topic, 5, start=10)
    one = make_mirror(tmp_path, east, west, [kept], engine=IN_PROCESS)
    assert [(row.topic, row.records) for row in one.run(once=True).topics] == [(kept, 5)]
    again = make_mirror(tmp_path, east, west, [kept, paused], engine=IN_PROCESS)
    assert again.run(once=True).records == 5
    assert_identical(again, [kept, paused])

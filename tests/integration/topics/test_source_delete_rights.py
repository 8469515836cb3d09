"""`topics.on_source_delete: delete` on clusters with an authorizer: a topic that is hidden is not deleted, and deleting needs a right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, NewTopic, ResourcePatternType, ResourceType

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION
from tests.integration.processes import wait_until
from tests.integration.secured import NAME, TARGET, TOPIC, Secured, secured
from tests.support.mirrors import produce
from tests.support.scram import USER

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ON_TOPICS = ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS")
AUTHORIZATION_FAILED = 29
IN_PROCESS: dict[str, Any] = {"inline_bytes": "1GB", "target_wait": "8s", "source_wait": "8s"}


def set_right(place: Secured, alias: str, topic: str, permission: str, *operations: str) -> None:
    acls = [
        AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation[each], AclPermissionType[permission]
        )
        for each in operations
    ]
    for future in place.operator(alias).create_acls(acls).values():
        future.result(30)


def errors(mirror: Mirror) -> tuple[int, int]:
    """What the mirror's principal is told of the source topic and of its copy."""
    with mirror.flow.source_client() as source, mirror.flow.target_client() as target:
        return source.metadata([TOPIC]).topics[TOPIC].error, target.metadata([TARGET]).topics[TARGET].error


def copied(place: Secured) -> Mirror:
    """A mirror that may delete copies, after its first run."""
    place.operator("east").create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    for alias in ("east", "west"):
        set_right(place, alias, "*", "ALLOW", *ON_TOPICS)
    body = yaml.safe_load(place.config.read_text())
    body["mirrors"][0]["topics"]["on_source_delete"] = "delete"
    place.config.write_text(yaml.safe_dump({**body, "engine": IN_PROCESS}))
    mirror = Mirror(load_config(place.config), NAME)
    produce(place.clusters["east"].bootstrap_servers, TOPIC, 10)
    wait_until(lambda: errors(mirror)[0] == 0, 30, "the rights to count")
    assert mirror.run(once=True).records == 10
    return mirror


def test_a_hidden_topic_is_not_a_deleted_one_and_deleting_needs_a_right(tmp_path: Path) -> None:
    with secured(tmp_path) as place:
        mirror = copied(place)
        set_right(place, "east", TOPIC, "DENY", "DESCRIBE", "READ")
        wait_until(lambda: errors(mirror)[0] == AUTHORIZATION_FAILED, 30, "the right to be gone")
        for _ in range(2):
            assert not [row for row in mirror.run(once=True).topics if row.state == "ended"]
        assert errors(mirror) == (AUTHORIZATION_FAILED, 0)
        place.operator("east").delete_topics([TOPIC])[TOPIC].result(30)
        assert not [row for row in mirror.run(once=True).topics if row.state == "ended"]
        assert errors(mirror) == (AUTHORIZATION_FAILED, 0), "who may not see whether it is there does not delete"


def test_without_the_right_to_delete_the_copy_stays(tmp_path: Path) -> None:
    with secured(tmp_path) as place:
        mirror = copied(place)
        place.operator("east").delete_topics([TOPIC])[TOPIC].result(30)
        wait_until(lambda: errors(mirror)[0] == UNKNOWN_TOPIC_OR_PARTITION, 30, "the topic to go")
        (row,) = mirror.run(once=True).topics
        assert row.code == "source_gone" and "its copy is not deleted" in row.reason and "TOPIC_AUTHORIZATION_FAILED" in row.reason
        assert errors(mirror) == (UNKNOWN_TOPIC_OR_PARTITION, 0)
        set_right(place, "west", TARGET, "ALLOW", "DELETE")
        done: list[tuple[str, str]] = []

        def deleted() -> bool:
            done[:] = [(each.topic, each.state) for each in mirror.run(once=True).topics]
            return done == [(TOPIC, "ended")]

        wait_until(deleted, 60, "the right to count")
        assert errors(mirror) == (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION)

"""ACLs of target topics follow their source's, between clusters with an authorizer and a mirror with rights of its own."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclOperation, AclPermissionType, NewTopic, ResourcePatternType, ResourceType

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.crash_points import CRASH
from mirror_pipeline.features.topic_sync.sync_state import topics_store
from mirror_pipeline.features.topic_sync.topic_changes import ACL, TopicChanges
from tests.integration.processes import wait_until
from tests.integration.secured import Secured, secured
from tests.support.groups import IN_PROCESS, running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce
from tests.support.scram import USER

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TOPIC, HOME = "pay.events", "home.events"
ON_TOPICS = ("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER", "ALTER_CONFIGS")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Two mirrors, there and back, that may do all they need on topics, and nothing on the clusters themselves."""
    with secured(tmp_path_factory.mktemp("secured")) as made:
        for alias, topic in (("east", TOPIC), ("west", HOME)):
            made.operator(alias).create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
            grant(made, alias, [binding("*", operation, user=USER) for operation in ON_TOPICS])
        body = yaml.safe_load(made.config.read_text())
        topics = {"acls": {"sync": True}, "configs": {"interval": "1s"}}
        there, back = ({**body["mirrors"][0], "topics": {"include": [f"{name}\\..*"], **topics}} for name in ("pay", "home"))
        back |= {"name": "back", "source": "west", "target": "east"}
        made.config.write_text(yaml.safe_dump({**body, "mirrors": [there, back], "engine": IN_PROCESS}))
        yield made


def binding(
    name: str, operation: str, permission: str = "ALLOW", *, user: str = "dummy", pattern: str = "LITERAL",
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:  # fmt: skip
    principal = f"User:{user}"
    return AclBinding(
        kind, name, ResourcePatternType[pattern], principal, "*", AclOperation[operation], AclPermissionType[permission]
    )


def on_cluster(operation: str) -> AclBinding:
    return binding("kafka-cluster", operation, user=USER, kind=ResourceType.BROKER)


def grant(place: Secured, alias: str, acls: list[AclBinding]) -> None:
    for future in place.operator(alias).create_acls(acls).values():
        future.result(30)


def revoke(place: Secured, alias: str, acls: list[AclBinding]) -> None:
    filters = [
        AclBindingFilter(a.restype, a.name, a.resource_pattern_type, a.principal, a.host, a.operation, a.permission_type) for a in acls
    ]
    for future in place.operator(alias).delete_acls(filters).values():
        assert len(future.result(30)) == 1


def held(place: Secured, alias: str, user: str = "dummy") -> set[tuple[str, str, str, str]]:
    """Name, pattern, operation and permission of a user's ACLs on topics."""
    everything = AclBindingFilter(
        ResourceType.TOPIC, None, ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY  # type: ignore[arg-type]
    )
    found: list[Any] = place.operator(alias).describe_acls(everything).result(30)
    return {(a.name, a.resource_pattern_type.name, a.operation.name, a.permission_type.name) for a in found}


def mirror_of(place: Secured, name: str) -> Mirror:
    return Mirror(load_config(place.config), name)


def made(mirror: Mirror) -> int:
    """How many ACLs the ledger says the mirror has made."""
    store = topics_store(mirror.flow)
    assert store is not None
    return sum(key.kind == ACL for key in TopicChanges(store).read())


def await_lines(ask: Callable[[], Iterable[str]], word: str, wanted: list[str]) -> None:
    """Wait until precisely these of the lines hold a word: a round ends a moment after its run."""
    deadline = time.monotonic() + 30
    while (found := [line for line in ask() if word in line]) != wanted and time.monotonic() < deadline:
        time.sleep(0.3)
    assert found == wanted


def test_without_the_right_records_are_copied_and_one_line_says_what_to_grant(place: Secured) -> None:
    grant(place, "east", [binding(TOPIC, "DESCRIBE", user="early")])
    mirror = mirror_of(place, "secured")
    produce(place.clusters["east"].bootstrap_servers, TOPIC, 10)
    assert (mirror.run(once=True).state, held(place, "west", "early")) == ("ok", set())
    command = f"kafka-acls.sh --bootstrap-server ... --add --allow-principal User:{USER} --operation Describe --cluster"
    wanted = [f"no right to DESCRIBE cluster {alias}: ACLs are not carried; grant it: {command}" for alias in ("east", "west")]
    for ask in (lambda: mirror.plan().notes, lambda: [f.detail for f in mirror.check()], lambda: mirror.lag().notes):
        await_lines(ask, "ACLs are not", wanted)
    grant(place, "east", [on_cluster("DESCRIBE")])
    grant(place, "west", [on_cluster("DESCRIBE")])
    lacks = f"no right to ALTER cluster west: ACLs are not carried; grant it: {command.replace('Describe', 'Alter')}"
    wait_until(lambda: lacks in mirror.plan().notes, 30, "the right to be known")
    assert (mirror.run(once=True).state, made(mirror)) == ("ok", 0), "what was refused is nobody's"
    assert lacks in mirror.lag().notes
    grant(place, "west", [on_cluster("ALTER")])
    grant(place, "east", [on_cluster("ALTER")])
    wait_until(lambda: lacks not in mirror.plan().notes or not mirror.run(once=True), 30, "the right to be known")
    mirror.run(once=True)
    assert held(place, "west", "early") == {(f"east.{TOPIC}", "LITERAL", "DESCRIBE", "ALLOW")}


@pytest.mark.parametrize(("name", "source", "target", "topic"), [("secured", "east", "west", TOPIC), ("back", "west", "east", HOME)])
def test_c4_acls_follow_in_both_directions(place: Secured, name: str, source: str, target: str, topic: str) -> None:
    """MirrorMaker 2's case C4, and what it does not do: prefixes, denials, revocations."""
    for alias in ("east", "west"):
        grant(place, alias, [on_cluster("DESCRIBE"), on_cluster("ALTER")])
    copy, beginning = f"{source}.{topic}", topic.partition(".")[0]
    mirror = mirror_of(place, name)
    produce(place.clusters[source].bootstrap_servers, topic, 10)
    with running(mirror):
        wait_until(lambda: mirror.lag().lag_records == 0, 60, "the records to be copied")
        theirs = binding(copy, "READ", user="theirs")
        grant(place, target, [theirs])
        given = [
            binding(topic, "DESCRIBE"), binding(topic, "ALL", user="all"), binding(topic, "WRITE", user="writes"),
            binding(topic, "WRITE", "DENY"), binding(f"{beginning}.", "READ", pattern="PREFIXED"), binding(topic, "READ", user="theirs"),
            binding("elsewhere", "READ"),
        ]  # fmt: skip
        grant(place, source, given)
        dummy = {
            (copy, "LITERAL", "DESCRIBE", "ALLOW"), (copy, "LITERAL", "WRITE", "DENY"),
            (f"{source}.{beginning}.", "PREFIXED", "READ", "ALLOW"),
        }  # fmt: skip
        wait_until(lambda: held(place, target) >= dummy and bool(held(place, target, "all")), 30, "the ACLs to follow")
        assert held(place, target) == dummy
        assert held(place, target, "all") == {(copy, "LITERAL", "READ", "ALLOW")} and held(place, target, "writes") == set()
        revoke(place, source, [given[0], given[1], given[4], given[5]])
        wait_until(lambda: not held(place, target, "all") and (copy, "LITERAL", "DESCRIBE", "ALLOW") not in held(place, target), 30, "that")
        assert held(place, target) == {(copy, "LITERAL", "WRITE", "DENY")}
        assert held(place, target, "theirs") == {(copy, "LITERAL", "READ", "ALLOW")}, "the mirror has not made it"
    revoke(place, source, [given[2], given[3], given[6]])
    assert mirror.run(once=True).state == "ok"
    assert not held(place, target)
    early = held(place, target, "early") if target == "west" else set()
    assert made(mirror) == 3 + len(early), "what is left: the mirror's own rights to read on all topics of the source"


@pytest.mark.parametrize("point", ["acls.named", "acls.changed"])
def test_a_round_that_was_killed_is_settled_by_the_next_one(place: Secured, point: str) -> None:
    """Nothing that the mirror made is forgotten: a revocation is still followed."""
    for alias in ("east", "west"):
        grant(place, alias, [on_cluster("DESCRIBE"), on_cluster("ALTER")])
    mirror, given = mirror_of(place, "secured"), binding(TOPIC, "READ", user=point)
    produce(place.clusters["east"].bootstrap_servers, TOPIC, 10)
    assert mirror.run(once=True).state == "ok"
    for change, there in ((grant, {(f"east.{TOPIC}", "LITERAL", "READ", "ALLOW")}), (revoke, set())):
        change(place, "east", [given])
        killed = subprocess.run(
            place.line("run", "-m", "secured", "--for", "2m"), env={**place.environment, CRASH: point}, capture_output=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
        with running(mirror):
            wait_until(partial(same, place, point, there), 30, "the ACL to follow")


def same(place: Secured, user: str, wanted: set[tuple[str, str, str, str]]) -> bool:
    """Whether precisely these ACLs of a user are on the target."""
    return held(place, "west", user) == wanted


def test_without_an_authorizer_records_are_copied_and_that_is_said(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    produce(east, topic_name, 10)
    topics = {"include": [topic_name], "acls": {"sync": True}}
    mirror = make_mirror(tmp_path, east, west, [topic_name], topics=topics, engine=IN_PROCESS)
    wanted = [f"cluster {alias} has no authorizer: ACLs are not carried; set topics.acls.sync to false" for alias in ("east", "west")]
    assert [note for note in mirror.plan().notes if "has no authorizer" in note] == wanted
    assert mirror.run(once=True).state == "ok"
    assert_identical(mirror, [topic_name])
    for ask in (lambda: mirror.plan().notes, lambda: [f.detail for f in mirror.check()], lambda: mirror.lag().notes):
        await_lines(ask, "has no authorizer", wanted)

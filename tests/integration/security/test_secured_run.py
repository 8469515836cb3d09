"""A mirror between clusters with TLS, SCRAM and ACLs: the rights that `mirror check` prints suffice, and nothing secret is anywhere."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, NewTopic, ResourcePatternType, ResourceType

from tests.integration.secured import NAME, PASSWORD, PAYLOAD, TARGET, TOPIC, Leaks, Secured, commands, leaks, retried, secured
from tests.support.dagster_page import Up, consume, end, family, until
from tests.support.dagster_page import start as start_up
from tests.support.scram import USER

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
COUNT = 300


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as made:
        made.operator("east").create_topics([NewTopic(TOPIC, 2, 1, config={"cleanup.policy": "delete"})])[TOPIC].result(30)
        produce(made, 0)
        yield made


def produce(place: Secured, first: int) -> None:
    """Uncompressed: what leaks can be found."""
    producer = Producer({"bootstrap.servers": place.clusters["east"].bootstrap_servers})
    for number in range(first, first + COUNT):
        producer.produce(TOPIC, f"{PAYLOAD} {number}".encode(), f"{PAYLOAD} key {number}".encode(), number % 2)
    assert producer.flush(60) == 0


def ends(place: Secured, alias: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": place.clusters[alias].bootstrap_servers, "group.id": "looks"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=15)[1] for number in (0, 1)]
    finally:
        consumer.close()


def answer(place: Secured, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON document and everything said by a command; neither canary is in any of it."""
    done = place.mirror(*words, "--json", "--debug")
    said = done.stdout + done.stderr
    assert PASSWORD not in said and PAYLOAD not in said
    return done.returncode, json.loads(done.stdout or "{}"), said


@pytest.fixture(scope="module")
def granted(place: Secured) -> set[tuple[str, str, str]]:
    """Do as a new operator would: ask, grant what is printed, ask again. Every right that was asked for."""
    given: set[tuple[str, str, str]] = set()
    for turn in range(6):
        code, _, said = answer(place, "check")
        if code == 0:
            assert turn, "a principal without rights passes"
            return given
        new = set().union(*(place.grant(command) for command in commands(said)))
        assert new - given, f"nothing more to grant, and still not in order:\n{said}"
        given |= new
        # ACLs reach a broker a moment after the controller has them.
        asked = commands(said)
        retried(lambda asked=asked: commands(answer(place, "check")[2]) != asked)
    pytest.fail(f"{given} are not enough:\n{said}")


def test_who_may_see_no_topics_is_told_so_and_not_that_his_regex_is_wrong(place: Secured) -> None:
    """Before anything was granted."""
    if answer(place, "check")[0] == 0:
        pytest.skip("rights were granted before: run this test first")
    said = place.mirror("check").stdout.replace("\n", " ")
    assert "or none that this principal may describe" in said
    assert "regexes match whole names" not in said
    code, plan, text = answer(place, "plan")
    (mirror,) = plan["mirrors"]
    assert mirror["topics"] == [] and any(f"{USER} sees only topics" in note for note in mirror["notes"])
    assert commands(text)


def test_the_rights_that_check_prints_are_these_and_no_others(granted: set[tuple[str, str, str]], place: Secured) -> None:
    """As docs/security.md lists them. Nothing on the source but reading."""
    assert granted == {
        ("east", "Read", "pay."), ("east", "DescribeConfigs", "pay."),
        ("west", "Create", TARGET), ("west", "Read", TARGET), ("west", "Write", TARGET), ("west", "DescribeConfigs", TARGET),
    }  # fmt: skip
    any_name: Any = None
    for alias in ("east", "west"):
        anything = AclBindingFilter(
            ResourceType.ANY, any_name, ResourcePatternType.ANY, f"User:{USER}", any_name, AclOperation.ANY, AclPermissionType.ANY
        )
        found = place.operator(alias).describe_acls(anything).result(30)
        assert {acl.restype for acl in found} == {ResourceType.TOPIC}, "no right on the cluster"
    assert answer(place, "plan")[0] == 0


def test_with_them_everything_works_and_nothing_leaks(granted: set[tuple[str, str, str]], place: Secured) -> None:
    before = ends(place, "east", TOPIC)
    out = place.folder / "run.json"
    with out.open("w") as stdout:
        run = subprocess.Popen(
            place.line("run", "--once", "--json", "--debug"), env=place.environment, stdout=stdout, stderr=subprocess.STDOUT
        )
        with Leaks(run.pid, (place.temporary,)) as watched:
            assert run.wait(400) == 0, out.read_text()
    assert watched.found == set()
    assert any("java" in name for name in watched.seen), "Spark was at work"
    assert ends(place, "west", TARGET) == before == [COUNT // 2] * 2
    for words in (("lag",), ("status",), ("gaps",), ("verify",), ("plan",), ("check",), ("evict",)):
        code, body, said = answer(place, *words)
        assert code == 0, (words, said)
    assert answer(place, "verify")[1]
    assert ends(place, "east", TOPIC) == before, "the source is as it was"
    search(place)


def test_the_same_in_dagster(granted: set[tuple[str, str, str]], place: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    up: Up = start_up(place.config, place.clusters["east"].bootstrap_servers, place.clusters["west"].bootstrap_servers)
    try:
        with Leaks(up.process.pid, (place.temporary,)) as watched:
            produce(place, COUNT)
            until("the lane has copied", lambda: len(consume(up.west, TARGET)) == 2 * COUNT)
            until("its materialization is recorded", lambda: up.ask(MATERIALIZED, key={"path": [NAME, "target", TOPIC]}))
            assert len(family(up)) >= 5
    finally:
        assert end(up) == 0
    assert watched.found == set()
    search(place)


MATERIALIZED = "query($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset { assetMaterializations(limit: 1) { runId } } } }"


def search(place: Secured) -> None:
    """The password is in its own file and nowhere else; records are in the buffer and on the clusters."""
    own = {place.folder / "secrets", place.folder / "clusters"}
    buffers = {path for path in place.config.parent.rglob("*") if path.is_dir() and path.name == "spans"}
    assert buffers
    assert leaks(place.folder, [PASSWORD], but=own) == set()
    assert leaks(place.folder, [PAYLOAD], but=own | buffers) == set()


def test_the_search_finds_what_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log").write_text(f"password={PASSWORD}")
    assert leaks(tmp_path, [PASSWORD, PAYLOAD]) == {f"{PASSWORD} in {tmp_path / 'a' / 'log'}"}
    assert leaks(tmp_path, [PASSWORD], but=[tmp_path / "a"]) == set()
    told = f"hint: kafka-acls.sh --bootstrap-server ... --add --allow-principal User:m --operation Read --topic '*'; kafka-acls.sh {'x'}"
    assert commands(told) == ["--bootstrap-server ... --add --allow-principal User:m --operation Read --topic '*'"]

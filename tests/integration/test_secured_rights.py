"""The rights that `mirror check` prints, on clusters with TLS, SCRAM and ACLs: granted as printed, check and plan are content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, NewTopic, ResourcePatternType, ResourceType

from tests.integration.secured import PASSWORD, TARGET, TOPIC, USER, Secured, commands, retried, secured

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as made:
        made.operator("east").create_topics([NewTopic(TOPIC, 2, 1, config={"cleanup.policy": "delete"})])[TOPIC].result(30)
        yield made


def answer(place: Secured, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON document and everything said by a command; the password is in none of it."""
    done = place.mirror(*words, "--json", "--debug")
    said = done.stdout + done.stderr
    assert PASSWORD not in said
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
    assert "or shows this principal none" in said
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
    for alias in ("east", "west"):
        anything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{USER}", None, AclOperation.ANY, AclPermissionType.ANY
        )
        found = place.operator(alias).describe_acls(anything).result(30)
        assert {acl.restype for acl in found} == {ResourceType.TOPIC}, "no right on the cluster"
    assert answer(place, "plan")[0] == 0

"""Which rights are missing, and the commands that grant them."""

from __future__ import annotations

import pytest

from mirror_pipeline.config import ClusterSettings, SecretRef, Security
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.topics import rights

EAST = ClusterSettings("east", ("east:9093",), Security("SASL_SSL", "SCRAM-SHA-512", "mirror", SecretRef("${env:X}")))
OPEN = ClusterSettings("east", ("east:9092",))


def refusal(code: int) -> BrokerError:
    return BrokerError(code, "X", "described")


def test_what_is_lacking() -> None:
    assert rights.lacking(frozenset({"READ", "DESCRIBE"}), rights.SOURCE) == ("DESCRIBE_CONFIGS",)
    assert rights.lacking(frozenset({"READ", "WRITE", "DESCRIBE_CONFIGS"}), rights.TARGET) == ()
    assert rights.lacking(refusal(29), rights.NEW) == rights.NEW, "not even described"
    assert rights.lacking(refusal(3), rights.NEW) == (), "not there, and we may know that"
    assert rights.lacking(frozenset(), rights.TARGET) == () == rights.lacking(None, rights.TARGET), "a broker that does not tell"


def test_one_command_grants_all_that_is_lacking_on_a_topic() -> None:
    assert rights.sentence(EAST, "orders", ("READ", "DESCRIBE_CONFIGS")) == (
        "no right to READ topic orders on cluster east; grant it: kafka-acls.sh --bootstrap-server ... --add --allow-principal User:mirror"
        " --operation Read --operation DescribeConfigs --topic orders"
    )
    assert rights.sentence(EAST, "new", rights.NEW).startswith("no right to CREATE, READ and WRITE topic new")
    assert "no right to DESCRIBE_CONFIGS topic" in rights.sentence(EAST, "orders", ("DESCRIBE_CONFIGS",))
    assert "User:<principal>" in rights.grant(OPEN, ["READ"], "orders")


def test_rights_on_groups_are_asked_for_by_their_regex() -> None:
    assert rights.lacking(refusal(30), rights.GROUPS_SOURCE) == ("DESCRIBE",)
    assert rights.lacking(frozenset({"DESCRIBE"}), rights.GROUPS_TARGET) == ("READ",)
    assert rights.groups_sentence(EAST, "shop-.*", rights.GROUPS_TARGET) == (
        "no right to READ groups shop-.* on cluster east; grant it: kafka-acls.sh --bootstrap-server ... --add --allow-principal"
        " User:mirror --operation Read --resource-pattern-type prefixed --group shop-"
    )
    assert rights.groups_sentence(EAST, ".*", rights.GROUPS_SOURCE).endswith("--operation Describe --group '*'")


@pytest.mark.parametrize(
    ("pattern", "asked"),
    [
        ("orders.v1", "--topic orders.v1"),
        (r"orders\.v1", "--topic orders.v1"),
        (r"orders\..*", "--resource-pattern-type prefixed --topic orders."),
        ("orders-.*", "--resource-pattern-type prefixed --topic orders-"),
        ("orders.*", "--resource-pattern-type prefixed --topic orders"),
        (".*", "--topic '*'"),
        ("(a|b)", "--topic '*'"),
    ],
)
def test_what_may_be_hidden_is_asked_for_as_narrowly_as_its_regex_allows(pattern: str, asked: str) -> None:
    said = rights.unseen(EAST, [pattern], [])
    assert said.startswith("mirror sees only topics that it may describe; if these exist, grant: kafka-acls.sh")
    assert said.endswith(f"--operation Read --operation DescribeConfigs {asked}")


def test_nothing_is_hidden_where_topics_are_seen_or_nobody_is_asked_who_he_is() -> None:
    assert rights.unseen(EAST, ["a.*", "b"], ["abc", "b"]) == ""
    assert rights.unseen(OPEN, ["a.*"], []) == ""

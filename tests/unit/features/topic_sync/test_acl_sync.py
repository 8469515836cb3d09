"""Which ACLs of the source become which ACLs of the target, and which of the target's are deleted again."""

from __future__ import annotations

import pytest

from mirror_pipeline.config import ClusterSettings, FrozenMap
from mirror_pipeline.config.name_pattern import NameMatch
from mirror_pipeline.config.naming import NameMap, NamingRule
from mirror_pipeline.config.settings import Security
from mirror_pipeline.features.topic_sync.acl_sync import AclStep, acl_step, carried_acls, keeps_prefixes, own_principals
from mirror_pipeline.kafka.security.acls import Acl

OWN = frozenset({"User:*", "User:mirror"})
TARGETS = {"pay.eu": "east.pay.eu", "pay.us": "east.pay.us", "orders": "east.orders"}


def acl(name: str, operation: str = "READ", permission: str = "ALLOW", *, pattern: str = "LITERAL", user: str = "ann") -> Acl:
    return Acl(name, pattern, f"User:{user}", "*", operation, permission)


def carried(*source: Acl, naming: NamingRule = "prefix", targets: dict[str, str] | None = None) -> set[Acl]:
    return set(carried_acls(source, TARGETS if targets is None else targets, naming, "east", OWN).wanted)


@pytest.mark.parametrize(
    ("operation", "there"),
    [("READ", "READ"), ("DESCRIBE", "DESCRIBE"), ("DESCRIBE_CONFIGS", "DESCRIBE_CONFIGS"), ("ALL", "READ"), ("WRITE", None),
     ("DELETE", None), ("CREATE", None), ("ALTER", None), ("ALTER_CONFIGS", None)],
)  # fmt: skip
def test_of_what_is_allowed_only_reading_is_carried(operation: str, there: str | None) -> None:
    assert carried(acl("orders", operation)) == ({acl("east.orders", there)} if there else set())


@pytest.mark.parametrize("operation", ["READ", "WRITE", "ALL", "DELETE"])
def test_what_is_denied_stays_denied_unless_it_locks_out_the_mirror(operation: str) -> None:
    assert carried(acl("orders", operation, "DENY")) == {acl("east.orders", operation, "DENY")}
    for user in ("*", "mirror"):
        found = carried_acls([acl("orders", operation, "DENY", user=user)], TARGETS, "prefix", "east", OWN)
        locks = operation != "DELETE"
        assert [*found.wanted] == ([] if locks else [acl("east.orders", operation, "DENY", user=user)])
        assert [line.startswith(f"DENY {operation} for User:{user} on orders is not carried") for line in found.refused] == [True] * locks


def test_principal_and_host_are_carried_as_they_are() -> None:
    principal = "User:CN=app/host@REALM,O=x"
    given = Acl("orders", "LITERAL", principal, "10.0.0.7", "READ", "ALLOW")
    assert carried(given) == {given._replace(name="east.orders")}


def test_a_prefix_stays_one_where_names_keep_their_beginning() -> None:
    given = acl("pay.", pattern="PREFIXED")
    assert carried(given) == {acl("east.pay.", pattern="PREFIXED")}
    assert carried(given, naming="identity", targets={"pay.eu": "pay.eu"}) == {given}
    assert carried(given, naming="x-{topic}", targets={"pay.eu": "x-pay.eu"}) == {acl("x-pay.", pattern="PREFIXED")}


@pytest.mark.parametrize(
    "naming", ["{topic}.{source}", NameMap(FrozenMap({"pay.eu": "a"}), "prefix"), NameMatch(r"pay\.(.*)", r"\1", "prefix")]
)
def test_elsewhere_each_topic_of_the_prefix_gets_its_own(naming: NamingRule) -> None:
    assert not keeps_prefixes(naming)
    targets = {"pay.eu": "a", "pay.us": "b", "orders": "c"}
    assert carried(acl("pay.", pattern="PREFIXED"), naming=naming, targets=targets) == {acl("a"), acl("b")}


def test_an_acl_on_all_topics_becomes_one_for_each_copy() -> None:
    assert carried(acl("*")) == {acl(name) for name in TARGETS.values()}


def test_what_concerns_no_mirrored_topic_is_not_carried() -> None:
    assert carried(acl("secret"), acl("sec", pattern="PREFIXED"), acl("order")) == set()


def step(
    source: set[Acl], held: set[Acl], made: dict[Acl, Acl], handed_over: set[str] | None = None, *, targets: dict[str, str] | None = None
) -> AclStep:
    targets = TARGETS if targets is None else targets
    found = carried_acls(source, targets, "prefix", "east", OWN)
    return acl_step(found, source, held, made, handed_over or set())


def test_an_acl_that_was_there_before_is_nobodys_but_its_owners() -> None:
    found = step({acl("orders")}, {acl("east.orders"), acl("east.orders", user="bob")}, {})
    assert (found.create, found.delete, found.made, found.forget) == (frozenset(), frozenset(), {}, frozenset())
    revoked = step(set(), {acl("east.orders"), acl("east.orders", user="bob")}, {})
    assert not revoked.delete


def test_what_was_made_is_deleted_when_the_source_revokes_it() -> None:
    first = step({acl("orders")}, set(), {})
    assert first.create == {acl("east.orders")} and first.made == {acl("east.orders"): acl("orders")}
    again = step({acl("orders")}, set(first.create), dict(first.made))
    assert not again.create and again.made == first.made
    revoked = step(set(), {acl("east.orders"), acl("east.other")}, dict(first.made))
    assert revoked.delete == revoked.forget == {acl("east.orders")}


def test_what_another_acl_of_the_source_still_gives_stays() -> None:
    made = {acl("east.orders"): acl("orders", "ALL")}
    found = step({acl("orders")}, {acl("east.orders")}, made)
    assert not found.delete and found.made == {acl("east.orders"): acl("orders")}


def test_someone_elses_deletion_of_ours_is_undone() -> None:
    found = step({acl("orders")}, set(), {acl("east.orders"): acl("orders")})
    assert found.create == {acl("east.orders")}


def test_a_topic_that_is_paused_or_handed_over_keeps_what_was_made_for_it() -> None:
    made = {acl("east.orders"): acl("orders"), acl("east.pay.", pattern="PREFIXED"): acl("pay.", pattern="PREFIXED")}
    assert not step({acl("orders"), acl("pay.", pattern="PREFIXED")}, set(made), made, targets={}).forget
    assert step(set(), set(made), made, {"east.orders"}, targets={}).delete == {acl("east.pay.", pattern="PREFIXED")}
    assert step(set(), set(made), made, {"east.pay.eu"}, targets={}).delete == {acl("east.orders")}


def test_the_mirrors_own_principals() -> None:
    assert own_principals(ClusterSettings("west", ("h:1",), Security(username="m"))) == {"User:*", "User:m"}
    assert own_principals(ClusterSettings("west", ("h:1",))) == {"User:*", "User:ANONYMOUS"}

"""Selection and naming: every topic is either mirrored under a legal name of its own, or has a reason why not."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.config import FrozenMap, MirrorConfig, TopicSelection
from mirror_pipeline.config.naming import NameMap, NamingRule, sources, topic_name_problem
from mirror_pipeline.errors import UsageError
from mirror_pipeline.topics.naming import Known, choose, name_topics, target_name
from mirror_pipeline.topics.select import came_from, select, unmatched

NAMES = ["orders", "orders-old", "payments.eu", "payments.internal", "__consumer_offsets", "__mine", "west.orders", "east.orders"]


def why(excluded: list, topic: str) -> str:
    return next(e.why for e in excluded if e.topic == topic)


def test_whole_names_and_exclude_wins() -> None:
    chosen, excluded = select(NAMES, ["orders", r"payments\..*"], [r".*\.internal"])
    assert chosen == ["orders", "payments.eu"]
    assert why(excluded, "orders-old") == "matches no include regex"
    assert why(excluded, "payments.internal") == r'matches exclude ".*\.internal"'


def test_internal_topics_are_never_chosen() -> None:
    chosen, excluded = select(NAMES, ["__consumer_offsets", ".*"], [])
    assert "__consumer_offsets" not in chosen and "__mine" not in chosen
    assert why(excluded, "__consumer_offsets") == "internal topic of Kafka"


def test_names_that_came_from_the_target_are_left_out_with_prefix_only() -> None:
    chosen, excluded = select(NAMES, [".*"], [], naming="prefix", source="east", target="west")
    assert "west.orders" not in chosen and "east.orders" in chosen
    assert "was copied from cluster west" in why(excluded, "west.orders")
    assert "west.orders" in select(NAMES, [".*"], [], naming="identity", source="east", target="west")[0]
    assert "west.orders" not in select(NAMES, [".*"], [], naming="{source}.x.{topic}", source="east", target="west")[0]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("west.orders", True),
        ("c.west.orders", True),
        ("payments.west.orders", False),
        ("west", False),
        ("west.", False),
        ("c.orders", False),
    ],
)
def test_hops_are_seen_through_known_clusters_only(topic: str, expected: bool) -> None:
    assert came_from(topic, "west", {"east", "c"}) is expected


@given(st.lists(st.from_regex(r"[a-c_.]{1,6}", fullmatch=True)), st.sampled_from(["prefix", "identity"]))
def test_each_topic_is_chosen_or_has_a_reason(names: list[str], naming: str) -> None:
    chosen, excluded = select(names, ["a.*", "b"], ["ab.*"], naming=naming, source="c", target="a")
    assert sorted([*chosen, *(e.topic for e in excluded)]) == sorted(set(names))
    assert all(e.why for e in excluded)
    assert all(re.fullmatch("a.*|b", name) and not re.fullmatch("ab.*", name) for name in chosen)


def test_regexes_that_match_nothing_say_what_is_near() -> None:
    lines = unmatched(NAMES, ["ordrs", "payments", "orders", "zzz"])
    assert lines == [
        'include "ordrs" matches no topic: did you mean "orders"?',
        'include "payments" matches no topic: it matches only part of "payments.eu"; a regex must match the whole name',
        'include "zzz" matches no topic',
    ]


def test_a_source_without_topics_blames_no_regex() -> None:
    for names in ([], ["__consumer_offsets"]):
        assert unmatched(names, [".*", "orders"]) == ["the source has no topics yet, or shows none to this user"]


def test_target_names() -> None:
    assert target_name("prefix", "east", "orders") == "east.orders"
    assert target_name("identity", "east", "orders") == "orders"
    assert target_name("{source}-{topic}.copy", "east", "orders") == "east-orders.copy"


def test_names_that_kafka_refuses() -> None:
    assert len(target_name("prefix", "east", "t" * 244)) == 249
    with pytest.raises(UsageError, match="has 250 characters, Kafka allows 249"):
        target_name("prefix", "east", "t" * 245)


@given(
    st.from_regex(r"[a-zA-Z0-9._-]{1,240}", fullmatch=True).filter(lambda n: not (topic_name_problem(n) or n.startswith("__"))),
    st.sampled_from(["prefix", "identity", "{source}-{topic}", "x_{topic}", "{topic}.{source}"]),
)
def test_names_can_be_read_back(topic: str, naming: str) -> None:
    name = target_name(naming, "east", topic)
    assert not topic_name_problem(name)
    assert next(sources(naming, "east", name)) == topic


def nothing_begun(_: MirrorConfig) -> dict[str, str]:
    return {}


def refused(
    mirrors: Sequence[MirrorConfig], one: MirrorConfig, topics: Sequence[str], known: Known = nothing_begun
) -> dict[str, tuple[str, str]]:
    """Code and message of the topics that a mirror refuses; the others must keep their names."""
    named = name_topics(mirrors, one, topics, (), known)
    assert named.names.keys() | named.refused.keys() == set(topics) and not named.names.keys() & named.refused.keys()
    return {topic: (halt.code, halt.message) for topic, halt in named.refused.items()}


def test_a_name_that_cannot_be_used_refuses_its_topic_alone() -> None:
    one = mirror("m", "east", "west", "prefix")
    long = "t" * 245
    assert refused([one], one, ["orders", long]) == {
        long: ("", f'topic {long} would be named "east.{long}" on the target, which has 250 characters, Kafka allows 249')
    }


def test_of_two_new_topics_under_one_name_neither_begins() -> None:
    one = mirror("m", "east", "west", "prefix")
    said = "target topic {} on cluster west would get the records of two topics: {} of this mirror and {} of this mirror"
    assert refused([one], one, ["a.b", "a_b", "c"]) == {
        "a.b": ("", said.format("east.a.b", "a_b", "a.b")), "a_b": ("", said.format("east.a_b", "a.b", "a_b")),
    }  # fmt: skip


@pytest.mark.parametrize("begun", ["a.b", "a_b"])
def test_of_topics_under_one_name_the_one_that_has_begun_continues(begun: str) -> None:
    one = mirror("m", "east", "west", "prefix")
    (other,) = {"a.b", "a_b"} - {begun}
    ((topic, (code, message)),) = refused([one], one, ["a.b", "a_b", "c"], lambda _: {begun: f"east.{begun}"}).items()
    assert (topic, code) == (other, "") and f"{begun} of this mirror and {other} of this mirror" in message


def test_a_copied_topic_whose_new_name_is_taken_is_halted_as_renamed() -> None:
    one = mirror("m", "east", "west", NameMap(FrozenMap({"late": "east.orders", "long": "x" * 250}), "prefix"))
    known = {"orders": "east.orders", "late": "east.late", "long": "east.long"}
    found = refused([one], one, ["orders", "late", "long"], lambda _: known)
    assert {topic: code for topic, (code, _) in found.items()} == {"late": "renamed", "long": "renamed"}


def mirror(name: str, source: str, target: str, naming: NamingRule, include: str = ".*") -> MirrorConfig:
    return MirrorConfig(name, source, target, TopicSelection((include,)), naming=naming)


@pytest.mark.parametrize("naming", ["identity", "copy-{topic}"])
def test_circles_of_mirrors_are_refused(naming: str) -> None:
    there, back = mirror("there", "a", "b", naming), mirror("back", "b", "a", naming)
    said = {"orders": ("", "topic orders would loop forever: there -> back -> there")}
    assert refused([there, back], there, ["orders"]) == said


def test_of_a_circle_the_mirrors_that_have_copied_the_topic_continue() -> None:
    there, back = mirror("there", "a", "b", "identity"), mirror("back", "b", "a", "identity")
    begun = {"there": {"orders": "orders"}, "back": {}}
    assert refused([there, back], there, ["orders"], lambda each: begun[each.name]) == {}
    assert list(refused([there, back], back, ["orders"], lambda each: begun[each.name])) == ["orders"]
    begun["back"] = {"orders": "orders"}
    assert refused([there, back], there, ["orders"], lambda each: begun[each.name])["orders"][0] == "loop"


def test_circles_over_three_clusters() -> None:
    ring = [mirror("1", "a", "b", "identity"), mirror("2", "b", "c", "identity"), mirror("3", "c", "a", "identity")]
    assert "1 -> 2 -> 3 -> 1" in refused(ring, ring[0], ["t"])["t"][1]


def test_prefix_both_ways_and_disjoint_topics_are_no_circle() -> None:
    there, back = mirror("there", "a", "b", "prefix"), mirror("back", "b", "a", "prefix")
    assert refused([there, back], there, ["orders", "x"]) == {}
    ring = [mirror("1", "a", "b", "prefix"), mirror("2", "b", "c", "prefix"), mirror("3", "c", "a", "prefix")]
    assert refused(ring, ring[0], ["t"]) == {}
    there, back = mirror("there", "a", "b", "identity", "orders"), mirror("back", "b", "a", "identity", "payments")
    assert refused([there, back], there, ["orders"]) == {}


@pytest.mark.parametrize("naming", ["{topic}.{source}", "{source}-{topic}", "x_{source}_{topic}", "prefix"])
def test_names_that_hold_their_source_make_no_circle(naming: str) -> None:
    there, back = mirror("there", "a", "b", naming), mirror("back", "b", "a", naming)
    copy = target_name(naming, "a", "orders")
    assert choose([there, back], there, ["orders", "x"], {"a", "b"})[0] == ["orders", "x"]
    chosen, excluded = choose([there, back], back, [copy, "mine"], {"a", "b"})
    assert chosen == ["mine"] and "copied it from cluster a" in why(excluded, copy).replace("it was copied from", "mirrors copied it from")


def test_a_ring_of_templates_goes_on_to_the_last_cluster_and_no_further() -> None:
    ways = (("1", "a", "b"), ("2", "b", "c"), ("3", "c", "a"))
    ring = [mirror(name, source, target, "{source}-{topic}") for name, source, target in ways]
    aliases = {"a", "b", "c"}
    assert choose(ring, ring[0], ["t"], aliases)[0] == ["t"]
    assert choose(ring, ring[1], ["a-t"], aliases)[0] == ["a-t"]
    assert choose(ring, ring[2], ["b-a-t", "b-t"], aliases)[0] == ["b-t"]


def test_a_name_that_looks_like_a_copy_is_copied_while_nothing_goes_round() -> None:
    there, back = mirror("there", "a", "b", "{source}-{topic}", "orders"), mirror("back", "b", "a", "{source}-{topic}")
    assert choose([there, back], back, ["a-orders", "a-x"], {"a", "b"})[0] == ["a-orders", "a-x"]
    assert choose([there], there, ["b-orders", "orders"], {"a", "b"})[0] == ["orders"]


def test_a_circle_over_a_name_that_does_not_tell_is_refused_still() -> None:
    there, back = mirror("there", "a", "b", "{source}-{topic}"), mirror("back", "b", "a", "identity")
    assert choose([there, back], back, ["a-orders"], {"a", "b"})[0] == []
    both = [mirror("there", "a", "b", "identity"), back]
    assert "would loop forever: back -> there -> back" in refused(both, back, ["orders"])["orders"][1]


def originals(name: str, source: str, target: str, naming: str = "prefix") -> MirrorConfig:
    return MirrorConfig(name, source, target, TopicSelection((".*",), originals_only=True), naming=naming)


def test_originals_only_leaves_out_every_copy_that_a_name_shows() -> None:
    joins = originals("joins", "a", "c")
    chosen, excluded = choose([joins], joins, ["orders", "b.orders", "c.b.orders", "x.orders", "a.orders"], {"a", "b", "c"})
    assert chosen == ["a.orders", "orders", "x.orders"], "x is no cluster, and a mirror does not write to its own source"
    assert why(excluded, "b.orders") == "by its name it was copied from cluster b: topics.originals_only leaves out copies"
    assert "from cluster c" in why(excluded, "c.b.orders")
    every = mirror("every", "a", "c", "prefix")
    assert choose([every], every, ["b.orders"], {"a", "b", "c"})[0] == ["b.orders"], "without the key it goes on"


def test_originals_only_knows_the_names_that_other_mirrors_of_the_file_give() -> None:
    joins, other = originals("joins", "a", "c", "identity"), mirror("other", "b", "d", "{topic}-from-{source}")
    assert choose([joins, other], joins, ["orders-from-b", "orders-from-x", "b.orders"], {"a", "b", "c", "d"})[0] == ["orders-from-x"]


def test_originals_only_leaves_out_what_the_ledgers_name_and_breaks_no_circle_by_them() -> None:
    joins = originals("joins", "a", "c", "identity")
    chosen, excluded = choose([joins], joins, ["orders", "own"], {"a", "b", "c"}, {"orders": "there"})
    assert chosen == ["own"] and why(excluded, "orders") == "mirror there wrote it: topics.originals_only leaves out copies"
    every = mirror("every", "a", "c", "identity")
    assert choose([every], every, ["orders"], {"a", "c"}, {"orders": "there"})[0] == ["orders"]
    there, back = mirror("there", "a", "b", "identity"), originals("back", "b", "a", "identity")
    assert "would loop forever: there -> back -> there" in refused([there, back], there, ["orders"])["orders"][1]


def test_a_ring_of_originals_ends_after_one_step() -> None:
    ring = [originals(name, source, target) for name, source, target in (("1", "a", "b"), ("2", "b", "c"), ("3", "c", "a"))]
    assert choose(ring, ring[1], ["a.t", "c.a.t", "t"], {"a", "b", "c"})[0] == ["t"]


def test_backslashes_that_were_doubled_in_single_quotes_get_a_hint() -> None:
    (line,) = unmatched(["east.pay", "orders"], [r"east\\.pay.*"])
    assert line.endswith(r"'east\.pay.*' in single quotes matches")
    assert unmatched(["orders"], [r"zzz\\(x)"]) == [r'include "zzz\\(x)" matches no topic']

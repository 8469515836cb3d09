"""Target names by map and by regex: named one way, and traced back to the topics that they can stem from."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mirror_pipeline.config import FrozenMap, MirrorConfig, TopicSelection
from mirror_pipeline.config.name_pattern import NameMatch
from mirror_pipeline.config.naming import NameMap, NamingRule, fill, sources
from mirror_pipeline.errors import UsageError
from mirror_pipeline.topics.naming import choose, name_topics, target_name, telling_sources

TOPICS = st.from_regex(r"[ab.-]{1,7}", fullmatch=True)
TEMPLATES = st.sampled_from(["prefix", "identity", "x-{topic}", "{topic}.{source}"])
MAPS = st.builds(NameMap, st.dictionaries(TOPICS, TOPICS, min_size=1, max_size=4).map(FrozenMap), TEMPLATES)
MATCHES = st.builds(
    lambda pair, otherwise: NameMatch(pair[0], pair[1], otherwise),
    st.sampled_from(
        [
            (r"a\.(.*)", r"\1"),
            (r"(.*)-(.*)", r"\2-\1"),
            (r"(.*)(.*)", r"\1.\2"),
            (r"(a|b)-(.+)", r"\2\1\2"),
            (r"(a*)b(.*)", r"x\1\2"),
            (r"([ab.]*)(-)?b".replace("(-)?", "(-*)"), r"\1\2"),
            (r"(.*)", r"\1"),
        ]
    ),
    TEMPLATES,
)
RULES = st.one_of(TEMPLATES, MAPS, MATCHES)


@given(RULES, TOPICS)
@example(NameMatch(r"eu\.(.*)", r"\1", "prefix"), "eu.orders")
def test_every_name_leads_back_to_its_topic(naming: NamingRule, topic: str) -> None:
    assert topic in set(sources(naming, "c", fill(naming, "c", topic)))


@given(RULES, TOPICS)
def test_a_name_leads_back_to_topics_of_that_name_only(naming: NamingRule, name: str) -> None:
    found = list(sources(naming, "c", name))
    assert len(found) == len(set(found))
    assert all(fill(naming, "c", topic) == name for topic in found)


@given(MATCHES, st.lists(TOPICS, unique=True, max_size=6))
def test_of_many_topics_precisely_those_of_a_name_are_found(naming: NameMatch, topics: list[str]) -> None:
    names = {topic: fill(naming, "c", topic) for topic in topics}
    for name in names.values():
        assert {t for t in topics if names[t] == name} == set(sources(naming, "c", name)) & set(topics)


@given(RULES, st.lists(TOPICS, unique=True, max_size=5))
def test_two_topics_of_one_name_are_refused_and_only_they(naming: NamingRule, topics: list[str]) -> None:
    names = {topic: fill(naming, "c", topic) for topic in topics}
    assume(not set(names.values()) & {"", ".", ".."})
    forms = [name.replace(".", "_") for name in names.values()]
    one = MirrorConfig("m", "c", "d", TopicSelection((".*",)), naming=naming)
    named = name_topics([one], one, topics, (), lambda _: {})
    assert named.names == {topic: name for topic, name in names.items() if forms.count(name.replace(".", "_")) == 1}
    assert all("would get the records of two topics: " in halt.message for halt in named.refused.values())


def test_what_map_and_regex_leave_is_named_by_otherwise() -> None:
    named = NameMap(FrozenMap({"orders": "eu.orders"}), "prefix")
    assert [target_name(named, "east", topic) for topic in ("orders", "orders2")] == ["eu.orders", "east.orders2"]
    matched = NameMatch(r"eu\.(.*)", r"\1", "x-{topic}")
    assert [target_name(matched, "east", topic) for topic in ("eu.orders", "xeu.a", "eu.")[:2]] == ["orders", "x-xeu.a"]
    with pytest.raises(UsageError, match='topic eu. would be named "" on the target, which is empty'):
        target_name(matched, "east", "eu.")
    with pytest.raises(UsageError, match='topic eu.__x would be named "__x" on the target, which is the name of an internal topic'):
        target_name(matched, "east", "eu.__x")


def test_a_group_keeps_its_own_regex_and_escapes() -> None:
    naming = NameMatch(r"(a\)|[)(]|b)\-(.*)", r"\2.\1", "identity")
    assert re.fullmatch(naming.match, "b-x") and naming.named("b-x") == "x.b"
    assert list(naming.sources("x.b")) == ["b-x"] and list(naming.sources("x.c")) == []


def mirror(name: str, source: str, target: str, naming: NamingRule, include: str = ".*") -> MirrorConfig:
    return MirrorConfig(name, source, target, TopicSelection((include,)), naming=naming)


def test_a_mapped_name_is_chosen_although_it_begins_with_the_target() -> None:
    there = mirror("there", "east", "west", NameMap(FrozenMap({"west.orders": "orders"}), "prefix"))
    chosen, excluded = choose([there], there, ["west.orders", "west.other", "own"], {"east", "west"})
    assert chosen == ["own", "west.orders"] and [each.topic for each in excluded] == ["west.other"]


def test_a_regex_that_takes_the_prefix_off_does_not_bring_copies_home() -> None:
    there = mirror("there", "a", "b", "prefix")
    back = mirror("back", "b", "a", NameMatch(r"a\.(.*)", r"\1", "prefix"))
    chosen, excluded = choose([there, back], back, ["a.orders", "own"], {"a", "b"})
    assert chosen == ["own"] and "would loop" in excluded[0].why


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (NameMap(FrozenMap({"orders": "copies"})), NameMap(FrozenMap({"copies": "orders"}))),
        (NameMatch("(.*)", r"copy-\1", "prefix"), NameMatch(r"copy-(.*)", r"\1", "prefix")),
    ],
)
def test_maps_and_regexes_that_undo_each_other_are_refused_as_a_circle(there: NamingRule, back: NamingRule) -> None:
    both = [mirror("there", "a", "b", there), mirror("back", "b", "a", back)]
    (halt,) = name_topics(both, both[0], ["orders"], (), lambda _: {}).refused.values()
    assert halt.message == "topic orders would loop forever: there -> back -> there"


def test_only_what_the_template_names_shows_its_cluster() -> None:
    naming = NameMap(FrozenMap({"orders": "east.mapped"}), "prefix")
    assert telling_sources(naming, "east", "east.other") == ["other"]
    assert telling_sources(naming, "east", "east.mapped") == ["mapped"], "a topic named mapped would get this name too"
    assert telling_sources(naming, "east", "east.orders") == [], "orders has another name"

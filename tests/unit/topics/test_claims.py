"""Of two mirrors that would write one target topic one is refused: by ledgers, by what they select, by what is saved of them."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lock import buffer_lock, lane_lock
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.config import BufferConfig, ClusterSettings, Config, MirrorConfig, TopicSelection
from mirror_pipeline.errors import ClusterUnreachable, LaneBusy
from mirror_pipeline.model import Incarnation
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic, save_catalogue
from mirror_pipeline.topics.claims import Claims, of_claims


def mirror(name: str, source: str, target: str = "west", include: str = ".*") -> MirrorConfig:
    return MirrorConfig(name, source, target, TopicSelection((include,)), naming="{topic}")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Three mirrors onto one cluster, which has two aliases, and one onto another."""
    addresses = {"a": "a:1", "b": "b:1", "c": "c:1", "west": "w:1", "also-west": "w:1", "north": "n:1"}
    clusters = {alias: ClusterSettings(alias, (address,)) for alias, address in addresses.items()}
    mirrors = [mirror("first", "a"), mirror("second", "b"), mirror("third", "c", "also-west"), mirror("other", "b", "north")]
    return Config(clusters, mirrors, BufferConfig(str(tmp_path / "buffer"), durable=False), tmp_path / "mirror.yaml")


def claims(config: Config, name: str, topics: dict[str, Collection[str]]) -> Claims:
    def list_topics(alias: str) -> Collection[str]:
        if alias not in topics:
            raise ClusterUnreachable(alias, "silent")
        return topics[alias]

    made = Claims(config, config.mirror(name), list_topics)
    made.look()
    return made


def begin(config: Config, name: str, topic: str) -> None:
    ledger = Ledger(open_lane(config.buffer, name, "lane-0"), durable=False)
    ledger.ensure()
    ledger.add_incarnations([Incarnation(topic, "id", "c1", "c2", topic, "target", {0: 0}, {0: 0}, 1)])


def test_the_first_mirror_of_the_file_goes_ahead(config: Config) -> None:
    there: dict[str, Collection[str]] = {"a": ["orders"], "b": ["orders", "mine"], "c": []}
    assert claims(config, "first", there).refused({"orders": "orders"}) == {}
    refused = claims(config, "second", there).refused({"orders": "orders", "mine": "mine"})
    assert {topic: halt.code for topic, halt in refused.items()} == {"orders": "target_claimed"}
    assert "target topic orders on cluster west would get the records of two mirrors: orders of second, and orders of first" in str(
        refused["orders"]
    )


def test_who_has_begun_goes_on(config: Config) -> None:
    begin(config, "second", "orders")
    there: dict[str, Collection[str]] = {"a": ["orders"], "b": ["orders"], "c": []}
    (halt,) = claims(config, "first", there).refused({"orders": "orders"}).values()
    assert "orders of second, which has started it" in halt.message


def test_dots_and_underscores_are_one_to_kafka_and_an_alias_is_not_a_cluster(config: Config) -> None:
    (halt,) = claims(config, "third", {"a": ["the.orders"], "b": []}).refused({"t": "the_orders"}).values()
    assert "the.orders of first" in halt.message
    assert claims(config, "other", {"a": ["orders"], "c": []}).rivals == []


def test_a_mirror_whose_source_is_silent_is_known_by_what_is_saved(config: Config) -> None:
    assert claims(config, "second", {"c": []}).refused({"orders": "orders", "old": "old"}) == {}  # nothing is known of the first
    save_catalogue(config, Catalogue("first", 1, "c", (CatalogueTopic("orders", "orders", 1, "id"),), ()))
    begin(config, "first", "old")
    refused = claims(config, "second", {"c": []}).refused({"orders": "orders", "old": "old"})
    assert sorted(refused) == ["old", "orders"] and "has started" in str(refused["old"]) and "has started" not in str(refused["orders"])


def test_a_backfill_gives_way_to_every_claim(config: Config) -> None:
    there: dict[str, Collection[str]] = {"a": [], "b": ["orders"], "c": []}
    made = claims(config, "first", there)
    assert made.refused({"old": "orders"}) == {}
    assert list(made.refused({"old": "orders"}, any_claim=["old"])) == ["old"]


def test_what_plan_says_on_both_sides(config: Config) -> None:
    there: dict[str, Collection[str]] = {"a": ["orders"], "b": ["orders"], "c": []}

    def told(name: str, begun: Collection[str] = ()) -> tuple[bool, bool]:
        said = of_claims(claims(config, name, there), {"orders": "orders"}, begun)
        return "orders" in said.blockers, "orders" in said.warnings

    assert (told("first"), told("second")) == ((False, True), (True, False))
    begin(config, "second", "orders")
    assert (told("first"), told("second", ["orders"])) == ((True, False), (False, True))
    begin(config, "first", "orders")  # both, by an older version: neither may go on
    assert (told("first", ["orders"]), told("second", ["orders"])) == ((True, False), (True, False))


def test_one_mirror_begins_topics_at_a_time(config: Config) -> None:
    mine, other = (open_lane(config.buffer, name, "lane-0") for name in ("first", "second"))
    second = claims(config, "second", {"a": [], "c": []})
    with lane_lock(mine), lane_lock(other), buffer_lock(mine, patience=0.0), pytest.raises(LaneBusy), second.held(other):
        raise AssertionError("held twice")
    with claims(config, "other", {}).held(other), buffer_lock(mine, patience=0.0):
        assert threading.active_count()  # a mirror without a rival takes no lock


def test_two_mirrors_share_a_topic_if_both_say_so(config: Config) -> None:
    there: dict[str, Collection[str]] = {"a": ["orders"], "b": ["orders"], "c": ["orders"]}
    shared = [replace(each, writers="shared") if each.name != "third" else each for each in config.mirrors]
    config = replace(config, mirrors=shared)
    begin(config, "first", "orders")
    second = claims(config, "second", there)
    assert [rival.name for rival in second.rivals] == ["third"]
    assert [neighbour.name for neighbour in second.neighbours] == ["first", "third"], "they still begin topics one at a time"
    assert second.refused({"orders": "orders"}) == {}
    (halt,) = claims(config, "third", there).refused({"orders": "orders"}).values()
    assert "orders of first, which has started it" in halt.message and "`writers: shared` in both" in halt.hint

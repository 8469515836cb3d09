"""Which topics of a cluster are copies by the ledgers of the mirrors that wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.promotions import FAILOVER_LANE, Promotion, Promotions, PromotionState
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.config import BufferConfig, ClusterSettings, Config, MirrorConfig, TopicSelection
from mirror_pipeline.model import Incarnation
from mirror_pipeline.topics.lanes import select_topics, written_on_source


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """East is copied to west under the same names, and a third cluster joins."""
    clusters = {alias: ClusterSettings(alias, (f"{alias}:1",)) for alias in ("east", "west", "north")}
    every = TopicSelection((".*",), originals_only=True)
    mirrors = [
        MirrorConfig("forth", "east", "west", TopicSelection((".*",)), naming="identity"),
        MirrorConfig("back", "west", "east", every, naming="identity", reverse_of="forth"),
        MirrorConfig("joins", "west", "north", every),
    ]
    return Config(clusters, mirrors, BufferConfig(str(tmp_path / "buffer"), durable=False), tmp_path / "mirror.yaml")


def wrote(config: Config, *topics: str) -> None:
    ledger = Ledger(open_lane(config.buffer, "forth", "lane-0"), durable=False)
    ledger.ensure()
    ledger.add_incarnations([Incarnation(topic, "id", "c1", "c2", topic, "target", {0: 0}, {0: 0}, 1) for topic in topics])


def test_what_a_mirror_has_written_is_no_original(config: Config) -> None:
    names = ["orders", "own", "payments"]
    assert sorted(select_topics(config, config.mirror("joins"), names).topics) == names, "nothing was written yet"
    wrote(config, "orders", "payments")
    chosen = select_topics(config, config.mirror("joins"), names)
    assert sorted(chosen.topics) == ["own"]
    assert {(each.topic, each.why) for each in chosen.excluded} == {
        (name, "mirror forth wrote it: topics.originals_only leaves out copies") for name in ("orders", "payments")
    }


def test_what_was_promoted_is_an_original_and_a_reverse_mirror_may_copy_its_partners_topics_back(config: Config) -> None:
    wrote(config, "orders", "payments")
    assert written_on_source(config, config.mirror("back")) == {}
    store = open_lane(config.buffer, "forth", FAILOVER_LANE)
    row = Promotion("orders", 0, "id", PromotionState.PROMOTED, 5, 5, "orders", "me", 1)
    Promotions(store, durable=False).add([row])
    assert written_on_source(config, config.mirror("joins")) == {"payments": "forth"}

"""Which of a mirror and its reverse may begin a topic, by what the buffer says of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.promotions import FAILOVER_LANE, Promotion, Promotions, PromotionState
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.config import BufferConfig, ClusterSettings, Config, MirrorConfig, TopicSelection
from mirror_pipeline.model import Incarnation
from mirror_pipeline.topics.directions import Directions

OPEN, PROMOTED = PromotionState.OPEN, PromotionState.PROMOTED


class Pair:
    """Mirror ``m`` and its reverse ``back`` over one buffer."""

    def __init__(self, folder: Path, naming: str) -> None:
        clusters = {alias: ClusterSettings(alias, (f"{alias}:1",)) for alias in ("east", "west")}
        chosen = TopicSelection((".*",))
        mirrors = [MirrorConfig("m", "east", "west", chosen, naming=naming)]
        mirrors.append(MirrorConfig("back", "west", "east", chosen, naming=naming, reverse_of="m"))
        self.naming = naming
        self.config = Config(clusters, mirrors, BufferConfig(str(folder / "buffer"), durable=False), folder / "mirror.yaml")

    def begin(self, name: str, topic: str) -> None:
        target = topic if self.naming == "{topic}" else f"{self.config.mirror(name).source}.{topic}"
        ledger = Ledger(open_lane(self.config.buffer, name, "lane-0"), durable=False)
        ledger.ensure()
        ledger.add_incarnations([Incarnation(topic, "id", "c1", "c2", target, "target", {0: 0}, {0: 0}, 1)])

    def hand(self, name: str, topic: str, state: PromotionState) -> None:
        table = Promotions(open_lane(self.config.buffer, name, FAILOVER_LANE), durable=False)
        table.add([Promotion(topic, 0 if state is PROMOTED else -1, "id", state, 5, 5, topic, "me", 1)])

    def copying(self, topic: str) -> list[str]:
        """The mirrors that may copy a topic."""
        return [m.name for m in self.config.mirrors if not Directions(self.config, m).look().refused([topic])]

    def turn(self, forward: str, reverse: str, *topics: str) -> None:
        """A failover and a failback."""
        for topic in topics:
            self.hand(forward, topic, PROMOTED)
            self.hand(reverse, topic, OPEN)


@pytest.fixture(params=["{topic}", "{source}.{topic}"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return Pair(tmp_path, request.param)


def test_a_topic_that_nobody_knows_is_the_open_directions(pair: Pair) -> None:
    assert pair.copying("new") == ["m"]
    pair.begin("m", "a")
    pair.begin("m", "b")
    pair.turn("m", "back", "a")
    assert (pair.copying("a"), pair.copying("b"), pair.copying("new")) == (["back"], ["m"], ["m"]), "b still goes the other way"
    pair.turn("m", "back", "b")
    assert (pair.copying("b"), pair.copying("new")) == (["back"], ["back"])
    pair.turn("back", "m", "a", "b")
    assert (pair.copying("a"), pair.copying("new")) == (["m"], ["m"])


def test_between_a_failover_and_its_failback_it_is_the_forward_ones(pair: Pair) -> None:
    pair.begin("m", "a")
    pair.hand("m", "a", PROMOTED)
    assert (pair.copying("a"), pair.copying("new")) == ([], ["m"])


def test_whoever_has_begun_it_goes_on_until_it_is_handed_over(pair: Pair) -> None:
    pair.begin("m", "a")
    pair.turn("m", "back", "a")
    pair.begin("back", "new")
    assert pair.copying("new") == ["back"]
    pair.turn("back", "m", "a")
    assert pair.copying("new") == ["back"], "the other direction is open for other topics"
    pair.begin("m", "newer")
    pair.hand("m", "a", PROMOTED)
    assert pair.copying("newer") == ["m"]
    pair.turn("back", "m", "new")
    assert pair.copying("new") == ["m"]


def test_a_topic_that_is_begun_meanwhile_is_seen_by_the_next_look(pair: Pair) -> None:
    pair.begin("m", "a")
    pair.turn("m", "back", "a")
    directions = {m.name: Directions(pair.config, m).look() for m in pair.config.mirrors}
    assert directions["back"].refused(["new"]) == {}
    pair.begin("back", "new")
    pair.hand("back", "a", PROMOTED)
    pair.hand("m", "a", OPEN)
    assert directions["m"].look().refused(["new"]).keys() == {"new"}
    assert directions["back"].look().refused(["new"]) == {}

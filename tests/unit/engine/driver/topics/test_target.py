"""Target topics that have just been made: not every broker has heard of them yet."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from mirror_pipeline.engine.driver.topics import target
from mirror_pipeline.kafka.answers import PartitionMetadata, TopicMetadata

UNKNOWN = 3


class Brokers:
    """Asked in turn; the first ``late`` of them do not know the topic ``new`` yet."""

    def __init__(self, late: int) -> None:
        self.late = late
        self.asked: list[list[str]] = []

    def metadata(self, names: Sequence[str]) -> SimpleNamespace:
        self.asked.append(list(names))
        early = len(self.asked) <= self.late
        part = PartitionMetadata(1, 0, (1,), (1,), 0)
        known = TopicMetadata("", "id", 0, False, {0: part})
        unknown = TopicMetadata("", "", UNKNOWN, False, {})
        return SimpleNamespace(topics={name: unknown if name == "new" and early else known for name in names})


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds slept; the clock shows their sum."""
    slept: list[float] = []
    monkeypatch.setattr(target, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    return slept


def test_a_broker_that_has_not_heard_of_a_new_topic_is_asked_again() -> None:
    brokers = Brokers(late=2)
    found = target.known_topics(brokers, ["old", "new"])  # type: ignore[arg-type]
    assert {name: topic.error for name, topic in found.items()} == {"old": 0, "new": 0}
    assert brokers.asked == [["old", "new"], ["new"], ["new"]]


def test_a_topic_that_nobody_ever_hears_of_is_unknown(seconds: list[float]) -> None:
    found = target.known_topics(Brokers(late=10**6), ["new", "old"])  # type: ignore[arg-type]
    assert {name: topic.error for name, topic in found.items()} == {"old": 0, "new": UNKNOWN}
    assert sum(seconds) == pytest.approx(target.SETTLE_SECONDS, abs=0.1)


def test_no_topics_are_no_question() -> None:
    brokers = Brokers(late=0)
    assert (target.known_topics(brokers, []), brokers.asked) == ({}, [])  # type: ignore[arg-type]

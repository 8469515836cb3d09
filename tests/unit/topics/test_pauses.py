"""Of a topic's decisions and its mirror's the last one counts."""

from __future__ import annotations

import pytest

from mirror_pipeline.model import Decision, DecisionKind
from mirror_pipeline.topics.pauses import paused_topics


def decided(*rows: tuple[str, str]) -> list[Decision]:
    return [
        Decision(topic, -1, "", DecisionKind(kind), 0, 0, "", f"user {number}", 1000 * number, revision=number)
        for number, (topic, kind) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("rows", "paused"),
    [
        ([], set()),
        ([("a", "paused")], {"a"}),
        ([("", "paused")], {"a", "b"}),
        ([("a", "paused"), ("a", "resumed")], set()),
        ([("", "paused"), ("a", "resumed")], {"b"}),
        ([("a", "paused"), ("", "resumed")], set()),
        ([("a", "resumed"), ("", "paused")], {"a", "b"}),
    ],
)
def test_the_last_decision_counts(rows: list[tuple[str, str]], paused: set[str]) -> None:
    found = paused_topics(reversed(decided(*rows)), ["a", "b"])
    assert found.keys() == paused
    assert {halt.state for halt in found.values()} <= {"paused"}


def test_who_did_it_and_when_is_said() -> None:
    (halt,) = paused_topics(decided(("x", "paused"), ("a", "paused")), ["a"]).values()
    assert halt.message == "a was paused at 1970-01-01T00:00:01Z by user 1" and "mirror resume" in halt.hint

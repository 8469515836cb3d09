"""Questions about offsets that have no answer, and what is said instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.errors import UsageError
from tests.support.buffer_samples import life, send
from tests.support.mirrors import make_mirror


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """A mirror of ``orders`` with two partitions, whose clusters do not answer."""
    made = make_mirror(tmp_path, "127.0.0.1:1", "127.0.0.1:1", ["orders"])
    ledger = Ledger(open_lane(made.flow.config.buffer, "m", "lane-0"), durable=False)
    ledger.ensure()
    ledger.add_incarnation(life({0: 0, 1: 0}))
    ledger.record(0, [send(0, 100), send(0, 50, partition=1)])
    return made


def test_an_offset_is_answered_without_any_cluster(mirror: Mirror) -> None:
    (answer,) = mirror.translate("orders", offset=40, partition=0)
    assert (answer.target_offset, answer.state) == (40, "record")
    assert answer.note == "cluster west does not answer: its log may start later"
    (back,) = mirror.translate("east.orders", offset=50, partition=1, reverse=True)
    assert (back.topic, back.source_offset, back.state) == ("orders", 50, "end")
    assert [(row.partition, row.source_end, row.records, row.runs) for row in mirror.offset_map()] == [(0, 100, 100, 1), (1, 50, 50, 1)]


@pytest.mark.parametrize(
    ("question", "message", "hint"),
    [
        ({"topic": "order", "offset": 1}, "mirror m has not copied a topic 'order'", "it has copied orders"),
        ({"topic": "east.orders", "offset": 1}, "mirror m has not copied a topic 'east.orders'", "it has copied orders"),
        ({"topic": "orders"}, "name an offset or a time", "one of --offset N and --time T"),
        ({"topic": "orders", "offset": 1, "at": 5}, "name an offset or a time", "one of --offset N and --time T"),
        ({"topic": "orders", "offset": -1, "partition": 0}, "offset -1 is negative", "offsets count from 0"),
        ({"topic": "orders", "offset": 1}, "an offset of which partition? orders has 2", "name one with --partition"),
        ({"topic": "orders", "offset": 1, "partition": 2}, "orders has no partition 2 that was copied", "it has 0 to 1"),
        (
            {"topic": "orders", "offset": 1, "partition": 0, "generation": 2},
            "orders has no generation 2",
            "it has 1 to 1; see `mirror offsets show`",
        ),
    ],
)
def test_a_question_without_an_answer_says_what_is_wrong(mirror: Mirror, question: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        mirror.translate(**question)  # type: ignore[arg-type]
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_topic_that_was_never_copied_has_no_map(mirror: Mirror) -> None:
    with pytest.raises(UsageError, match="has not copied a topic 'x'"):
        mirror.offset_map("x")

"""Accepting a halt looks at the log again: what is not so any more is refused, and nothing is written down."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Self

import pytest

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.place.lane_file import LaneFile, write_lane_file
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics.policies import SourcePolicy
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, UsageError
from mirror_pipeline.halts import Halt
from mirror_pipeline.kafka.answers import EARLIEST_TIME, ClusterMetadata, OffsetAnswer, TopicMetadata
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations import resolve as resolving
from mirror_pipeline.reports import Progress, TopicProgress
from tests.support.lane_context import context, stage

__all__ = ["context"]

NEXT = 30


class Source:
    """A source whose topic ``t`` ends somewhere, or does not tell."""

    round_trip = 0.0

    def __init__(self, end: int, topic_id: str = "now", error: int = 0) -> None:
        self.end, self.topic_id, self.error = end, topic_id, error

    def list_offsets(self, at: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        return {tp: OffsetAnswer(-1 if self.error else 0 if when == EARLIEST_TIME else self.end, -1, self.error) for tp, when in at.items()}

    def metadata(self, names: list[str]) -> ClusterMetadata:
        return ClusterMetadata("east-id", 1, {}, {name: TopicMetadata(name, self.topic_id, 0, False, {}) for name in names})

    def forget(self, tp: TopicPartition) -> None:
        """Nothing is remembered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


class NoTarget(Source):
    """A target that does not answer: what runs reported of it stands."""

    def metadata(self, names: list[str]) -> ClusterMetadata:
        raise ClusterUnreachable("west", "west is down")


def accept(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, source: Source, code: str, span: tuple[int, int] | None = None,
    diverged: bool = False, reported: str = "halted",
) -> dict[int, tuple[int, int]]:  # fmt: skip
    """What ``mirror resolve`` decides about a topic whose last run halted; all up to offset ``NEXT`` has been read."""
    stage(context, 1, 10, NEXT, "now")
    said = TopicProgress(
        "east.t", state=reported, reason="r", code=code if reported == "halted" else "", halted_partition=0, halted_span=span,
        incarnation="now", marks={0: (20, 7, 0)},
    )  # fmt: skip
    write_lane_file(context.store, LaneFile(Progress("m", "lane-0", topics={"t": said}), "finished", heartbeat=time.time()))
    halt = Halt("t", "another log") if diverged else None
    monkeypatch.setattr(resolving, "find_lanes", lambda *_: [context.store])
    monkeypatch.setattr(resolving, "diverged", lambda *_, **__: halt)
    monkeypatch.setattr(resolving, "source_policies", lambda names, _: {name: SourcePolicy(compacted=False) for name in names})
    clusters = {"east": context.source, "west": context.target}
    flow = SimpleNamespace(
        name="m", source_client=lambda: source, source_admin=nullcontext, target_client=lambda: NoTarget(0), target_admin=nullcontext,
        settings=context.mirror,
        config=SimpleNamespace(buffer=context.buffer, mirrors=[context.mirror], clusters=clusters), lane_stores=lambda: [context.store],
        directions=lambda: SimpleNamespace(look=lambda: SimpleNamespace(refused=lambda _: {})),
    )  # fmt: skip
    return resolving.resolve(flow, "t", code).spans  # type: ignore[arg-type]


@pytest.mark.parametrize(("source", "code"), [(Source(NEXT), "truncated"), (Source(NEXT + 9), "truncated"), (Source(NEXT), "recreated")])
def test_what_is_not_so_any_more_is_not_accepted(context: LaneContext, monkeypatch: pytest.MonkeyPatch, source: Source, code: str) -> None:
    with pytest.raises(UsageError, match="no longer applies, and nothing was changed") as caught:
        accept(context, monkeypatch, source, code, (21, NEXT))
    assert "the next run resumes" in caught.value.hint
    assert Decisions(context.store, durable=False).all() == ()


@pytest.mark.parametrize(
    ("end", "span", "diverged", "decided"),
    [(21, None, False, (21, NEXT)), (25, (21, NEXT), False, (21, NEXT)), (NEXT + 9, (21, NEXT), True, (21, NEXT))],
    ids=["cut off", "cut off and written again in part", "written again beyond the position"],
)
def test_what_is_still_so_is_accepted(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, end: int, span: tuple[int, int] | None, diverged: bool, decided: tuple[int, int]
) -> None:
    assert accept(context, monkeypatch, Source(end), "truncated", span, diverged) == {0: decided}
    assert len(Decisions(context.store, durable=False).all()) == 1


def test_a_recreated_topic_is_accepted_under_its_new_id(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    accept(context, monkeypatch, Source(5, "another"), "recreated")
    (decision,) = Decisions(context.store, durable=False).all()
    assert decision.subject == "another"


def test_a_halt_that_a_run_saw_in_another_topics_log_is_not_accepted(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lag` shows it as recreated, so that is what can be accepted."""
    with pytest.raises(UsageError, match="not halted for 'truncated'") as caught:
        accept(context, monkeypatch, Source(5, "another"), "truncated", (5, NEXT))
    assert "halted for recreated" in caught.value.hint
    assert "mirror resolve --mirror m --topic t --accept recreated" in caught.value.hint
    assert Decisions(context.store, durable=False).all() == ()


def test_what_only_a_look_shows_is_accepted_as_lag_prints_it(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    accept(context, monkeypatch, Source(5, "another"), "recreated", reported="ok")
    (decision,) = Decisions(context.store, durable=False).all()
    assert (decision.kind, decision.subject) == ("recreated", "another")


def test_a_source_that_does_not_tell_decides_nothing(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerError):
        accept(context, monkeypatch, Source(5, error=5), "truncated", (21, NEXT))
    assert Decisions(context.store, durable=False).all() == ()

"""What a lane's status file says of a halted topic: other versions read it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mirror_pipeline.buffer.place.lane_file import STATUS, LaneFile, write_lane_file
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.progress import progress_of
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.halts import Halt, internal, recreated, renamed, source_gone, trimmed, truncated
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context

__all__ = ["context"]

FIELDS = ("state", "reason", "hint", "code", "halted_partition", "halted_span")


def test_the_status_names_a_halt_in_plain_fields(context: LaneContext) -> None:
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    context.state.halt("t", trimmed(TopicPartition("t", 0), 5, 9))
    context.state.halt("new", internal(TopicPartition("new", 1), IndexError("out of range")))
    write_lane_file(context.store, LaneFile(progress_of(context, seconds=1.0)))
    topics = json.loads(context.store.read_file(STATUS) or b"")["topics"]
    known, refused = topics["t"], topics["new"]
    assert list(known) == [
        "target_topic", "records", "bytes", "lag_records", "position", "end", "state", "reason", "hint", "code", "halted_partition",
        "halted_span", "incarnation", "max_batch_bytes", "marks", "ends_known", "behind_seconds",
    ]  # fmt: skip
    hint = (
        "with `on_loss: record_gap` the run records the gap and continues;"
        " to leave out what the source has deleted, and record it as a gap:"
        f" mirror resolve --mirror {context.mirror.name} --topic t --accept trimmed"
    )
    reason = "the source deleted offsets [5, 9) of t[0] before they were copied"
    assert {name: known[name] for name in FIELDS} == dict(zip(FIELDS, ("halted", reason, hint, "trimmed", 0, [5, 9]), strict=True))
    assert (refused["state"], refused["code"], refused["halted_partition"], refused["halted_span"]) == ("halted", "internal", 1, None)
    assert "Traceback" not in refused["reason"] + refused["hint"]


@pytest.mark.parametrize(("end", "state"), [(30, "ok"), (31, "behind")])
def test_only_a_partition_with_something_to_copy_waits_for_its_leader(context: LaneContext, end: int, state: str) -> None:
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    part = context.state.topics["t"].partitions[0]
    part.writing.position = replace(part.writing.position, source_next=30)
    part.staged, part.reading.end, part.reading.end_known = 30, end, True
    part.writing.failed("its leader does not respond", delay=1.0)
    assert progress_of(context, seconds=1.0).topics["t"].state == state


def test_what_waits_says_for_how_long_and_what_to_do(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("mirror_pipeline.engine.driver.progress.time.monotonic", lambda: now)
    context.state.unready = {"a": "t has no leader", "b": "t has no leader"}
    assert {topic.behind_seconds for topic in progress_of(context, seconds=1.0).topics.values()} == {0.0}
    now = 107.0
    del context.state.unready["b"]
    progress_of(context, seconds=1.0)
    context.state.unready["b"] = "t has no leader"
    now = 110.0
    context.state.target_down = "no broker answers"
    topics = progress_of(context, seconds=1.0).topics
    assert {name: topic.behind_seconds for name, topic in topics.items()} == {"a": 10.0, "b": 0.0}
    assert "`mirror check` says what the target lacks" in topics["a"].hint


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (recreated("t", "now", "another"), "recreated"),
        (source_gone("t", "east"), "source_gone"),
        (trimmed(TopicPartition("t", 0), 1, 2), "truncated"),
        (renamed("t", "east.t", "t"), "truncated"),
    ],
)
def test_what_was_found_in_the_log_of_another_topic_is_not_the_cause(context: LaneContext, second: Halt, code: str) -> None:
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    context.state.halt("t", truncated(TopicPartition("t", 0), 5, 9))
    context.state.halt("t", second)
    halt = context.state.topics["t"].halted
    assert halt is not None and halt.code == code

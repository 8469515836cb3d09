"""How much of what is staged is sent at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from mirror_pipeline.engine.driver.context import LaneContext, Losses
from mirror_pipeline.engine.driver.state import PartitionState
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.driver.write.sender import LEASE_SHARE, Sender
from mirror_pipeline.execution.placement import SPARK_REACH
from mirror_pipeline.model import SpanRef
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context

__all__ = ["context"]

MB = 1_000_000
SPAN = SpanRef("t", 0, "id", 0, 0, 1, 1, 1, 8 * MB, 0, 0, (), "p", 0)


def chosen(context: LaneContext, spans: list[int], *, rate: float) -> int:
    """Bytes sent next by a lane with one partition whose target took ``rate`` bytes a second before; Spark runs every task."""
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    part: PartitionState = context.state.topics["t"].partitions[0]
    part.writing.outcome_unknown = False
    part.pending.extend(replace(SPAN, bytes=size) for size in spans)
    sender = Sender(context, cast("Any", None), cast("Any", None), Losses())
    sender._rate = rate
    (work,) = sender.choose([part])
    return sum(span.bytes for span in work.spans)


def test_a_fast_target_gets_as_much_as_a_spark_job_is_worth(context: LaneContext) -> None:
    assert chosen(context, [8 * MB] * 200, rate=300 * MB) == SPARK_REACH * context.mirror.engine.micro_batch_bytes


@pytest.mark.parametrize("rate", [0.0, 1 * MB])
def test_a_slow_or_unknown_target_gets_the_usual_size(context: LaneContext, rate: float) -> None:
    assert chosen(context, [8 * MB] * 200, rate=rate) == context.mirror.engine.micro_batch_bytes


def test_a_job_takes_a_small_part_of_its_lease(context: LaneContext) -> None:
    rate = 20 * MB
    assert chosen(context, [8 * MB] * 200, rate=rate) <= rate * context.mirror.engine.lease * LEASE_SHARE + 4 * MB


def test_the_rest_of_a_micro_batch_is_not_left_for_a_job_of_its_own(context: LaneContext) -> None:
    usual = context.mirror.engine.micro_batch_bytes
    assert chosen(context, [60 * MB, 60 * MB, 10 * MB], rate=0.0) == 130 * MB > usual
    assert usual == 128 * MB

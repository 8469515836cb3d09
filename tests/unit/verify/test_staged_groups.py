"""Which spans are compared as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.offset_runs import Runs
from mirror_pipeline.model import SpanRef, TopicPartition
from mirror_pipeline.verify.staged import GROUP_BYTES, _groups


def spans_of(sizes: list[int]) -> list[SpanRef]:
    return [SpanRef("t", 0, "id", n, n * 10, n * 10 + 10, 10 if size else 0, 1, size, 0, 0, (), "p", n) for n, size in enumerate(sizes)]


@given(st.lists(st.sampled_from([0, 1, 1000, GROUP_BYTES // 2, GROUP_BYTES, 2 * GROUP_BYTES]), min_size=1, max_size=12))
def test_every_span_is_in_one_group_and_groups_are_small(sizes: list[int]) -> None:
    """A span of nothing but markers has no bytes, also as the first one."""
    spans = spans_of(sizes)
    groups = _groups(("t", 0, "id"), spans, TopicPartition("east.t", 0), Runs(), 0)
    assert [span for group in groups for span in group.spans] == spans
    assert all(len(group.spans) == 1 or sum(span.bytes for span in group.spans) <= GROUP_BYTES for group in groups)

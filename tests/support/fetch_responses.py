"""Fetch responses as a broker writes them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

int64 = st.integers(-1, 2**63 - 1)
aborted = st.none() | st.lists(st.tuples(int64, int64), max_size=3)


def fetch_response(answers: Any, throttle: int = 0, error: int = 0) -> Any:
    topic_kind = FetchResponse.FetchableTopicResponse
    part_kind = topic_kind.PartitionData
    topics = []
    for tp, (code_, high, stable, start, aborted, records) in answers.items():
        gone = None if aborted is None else [part_kind.AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted]
        part = part_kind(
            partition_index=tp.partition,
            error_code=code_,
            high_watermark=high,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=gone,
            preferred_read_replica=-1,
            records=records,
        )
        topics.append(topic_kind(topic=tp.topic, partitions=[part]))
    return FetchResponse(throttle_time_ms=throttle, error_code=error, session_id=0, responses=topics)

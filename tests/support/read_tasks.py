"""A read task over segments that are already fetched, and what it writes."""

from __future__ import annotations

from typing import Any

from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.model import TopicPartition

SOURCE = TopicPartition("t", 0)


class Written:
    """Stands in for the part file."""

    def __init__(self) -> None:
        self.spans: list[SpanDraft] = []

    def add(self, span: SpanDraft, pieces: Any) -> None:
        self.spans.append(span)

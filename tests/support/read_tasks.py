"""A read task over segments that are already fetched, and what it writes."""

from __future__ import annotations

from typing import Any

from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.engine.tasks.read.answer_handler import AnswerHandler
from mirror_pipeline.engine.tasks.read.messages import ReadTask
from mirror_pipeline.engine.tasks.read.range_outcomes import RangeOutcomes
from mirror_pipeline.model import TopicPartition

SOURCE = TopicPartition("t", 0)


class Written:
    """Stands in for the part file."""

    def __init__(self) -> None:
        self.spans: list[SpanDraft] = []

    def add(self, span: SpanDraft, pieces: Any) -> None:
        self.spans.append(span)


def handler_of(task: ReadTask, written: Any, client: object = None) -> tuple[AnswerHandler, RangeOutcomes]:
    """What both transports hand their answers to."""
    outcomes = RangeOutcomes(task.rules, written.add)
    return AnswerHandler(task, client, outcomes), outcomes  # type: ignore[arg-type]

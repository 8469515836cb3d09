"""Where a topic joins a run: at its first offsets, or at the position in ledger and buffer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.state import PartitionState, ReadSide, TopicRun, WriteSide
from mirror_pipeline.engine.driver.topics.waits import patience
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.model import NO_TIMESTAMP, BatchMark, Incarnation, Position, SpanRef, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic

Ranges = dict[int, tuple[int, int]] | None


def resumed_runs(context: LaneContext, known: Mapping[str, Incarnation], wanted: Mapping[str, LaneTopic]) -> dict[str, TopicRun]:
    """Known topics as ledger and buffer describe them. Raises BufferUnusable."""
    if not known:
        return {}
    positions = context.ledger.positions()
    runs = {name: run_of(generation, positions, wanted[name].ranges, exact=context.exact) for name, generation in known.items()}
    floors = {p.source: p.writing.position.source_next for run in runs.values() for p in run.partitions.values()}
    for span in context.spans.pending(floors):
        run = runs.get(span.topic)
        if run is None or span.incarnation != run.incarnation or span.partition not in run.partitions:
            continue
        part = run.partitions[span.partition]
        part.pending.append(span)
        part.writing.resumed = part.writing.resumed or span.records > 0
        part.staged = max(part.staged, span.end)
        part.reading.learned(span)
    _remember(context, runs)
    return runs


def _remember(context: LaneContext, runs: Mapping[str, TopicRun]) -> None:
    """Take over from the last run's status the batches read last, which reveal a truncated log, the largest batch that
    the target takes, which is not available while the target is unreachable, and the ends of the source's logs."""
    file = read_lane_file(context.store)
    for name, run in runs.items():
        saved = file.topic(name, run.incarnation)
        run.max_batch_bytes = saved.max_batch_bytes or run.max_batch_bytes
        for number, part in run.partitions.items():
            if number in saved.end:
                part.reading.last_end, part.reading.end_was_known = saved.end[number], saved.ends_known
            mark = saved.marks.get(number)
            if mark is not None and mark[0] < part.staged:
                part.reading.mark = BatchMark(*mark)


def run_of(generation: Incarnation, positions: Mapping[TopicPartition, Position], ranges: Ranges, *, exact: bool) -> TopicRun:
    """A topic's run at its positions, without staged spans; ``exact``: what lies below the copy is filled first."""
    run = TopicRun(generation.topic, generation.target_topic, generation.incarnation)
    for number, start in generation.starts.items():
        source = TopicPartition(generation.topic, number)
        position = positions.get(source) or Position(start, generation.target_starts[number], generation.ordinals.get(number, 0))
        run.partitions[number] = PartitionState(
            source, TopicPartition(generation.target_topic, number), generation.incarnation, position.source_next,
            WriteSide(position, generation.producer_epoch), ReadSide(hard_end=ranges[number][1] if ranges else None),
        )  # fmt: skip
        if exact and position.target_next < position.source_next:
            run.partitions[number].pending.append(_nothing(source, generation.incarnation, position.source_next))
    return run


def _nothing(source: TopicPartition, incarnation: str, at: int) -> SpanRef:
    """A span without offsets: the target's log must reach this far before anything is sent, also if nothing ever is."""
    return SpanRef(*source, incarnation, -1, at, at, 0, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP, (), "", -1)


def first_offsets(client: WireClient, topic: LaneTopic, partitions: list[int], start: str | datetime) -> dict[int, int]:
    """First source offset to copy of some partitions. Their leaders are asked once.

    Args:
        client: the source.
        topic: the topic; the ranges of a backfill take precedence.
        partitions: their numbers.
        start: ``earliest``, ``latest`` or a time.

    Raises:
        BrokerError: the source refuses the request.
    """
    if topic.ranges is not None:
        return {number: topic.ranges[number][0] for number in partitions}
    at = begins_at(start)
    wanted = [TopicPartition(topic.topic, number) for number in partitions]
    within = patience(client)
    found = offsets_at(client, wanted, at, within=within)
    found |= offsets_at(client, [tp for tp, offset in found.items() if offset < 0], LATEST_TIME, within=within)  # no record is that recent
    return {tp.partition: offset for tp, offset in found.items()}


def begins_at(start: str | datetime) -> int:
    """The mirror's ``start`` as a ListOffsets timestamp: a special value, or milliseconds since the epoch."""
    if isinstance(start, datetime):
        return int(start.timestamp() * 1000)
    return {"earliest": EARLIEST_TIME, "latest": LATEST_TIME}[start]

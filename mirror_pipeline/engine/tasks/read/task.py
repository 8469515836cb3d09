"""The read task: its offset ranges of the source into one part file. Runs in the lane's process or in a Spark worker."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.tasks.longlink.admission import room_of
from mirror_pipeline.engine.tasks.longlink.connection_count import ConnectionCount
from mirror_pipeline.engine.tasks.longlink.link import Link, worker_connections
from mirror_pipeline.engine.tasks.longlink.read_ahead import ReadAhead
from mirror_pipeline.engine.tasks.longlink.several import Holding, SeveralSources
from mirror_pipeline.engine.tasks.read.answer_handler import AnswerHandler, Unwritten
from mirror_pipeline.engine.tasks.read.messages import ReadResult, ReadTask
from mirror_pipeline.engine.tasks.read.parallel_read import read_parallel
from mirror_pipeline.engine.tasks.read.range_outcomes import RangeOutcomes
from mirror_pipeline.engine.tasks.read.short_fetch import ShortFetch, Throttle, patience
from mirror_pipeline.errors import ClusterUnreachable, ConnectionLost, WireError
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.model import TopicPartition

# A copy that has gone away keeps the reader no longer than that; the source goes on alone.
COPY_TIMEOUT = 3.0


def run_read(task: ReadTask, link: Link | None = None) -> ReadResult:
    """Read all ranges of ``task`` and write them as spans.

    A broken connection, a moved leader or a silent broker ends its own ranges where they are; the next micro-batch
    continues there. A range that cannot be read at all halts its topic alone.

    Args:
        task: the ranges.
        link: of the read loop whose thread runs this task; a long link is then read ahead for the next one. None in a Spark worker.

    Raises:
        BufferUnusable: the part file cannot be written.
    """
    began = time.monotonic()
    writer = PartFileWriter(task.store, task.micro_batch, task.index, durable=task.durable)
    outcomes = RangeOutcomes(task.rules, writer.add)
    try:
        crash_point("stage.before_fetch")
        _read(task, outcomes, link, deadline=began + task.seconds)
        crash_point("stage.before_close")
        part = writer.close()
    except Unwritten as fault:
        writer.abort()
        return ReadResult(None, outcomes.discarded(fault.source, fault.error), time.monotonic() - began)
    except BaseException:
        writer.abort()
        raise
    return ReadResult(
        part, outcomes.results(), time.monotonic() - began, outcomes.silent, outcomes.heard, outcomes.resumed, outcomes.copied,
        outcomes.left_out, outcomes.lost_copies,
    )  # fmt: skip


def _read(task: ReadTask, outcomes: RangeOutcomes, link: Link | None, *, deadline: float) -> None:
    client = worker_cache.client_of(task.cluster, timeout=task.timeout)
    handler = AnswerHandler(task, client, outcomes)
    try:
        client.avoid(task.avoid)
        _fetch(task, client, handler, outcomes, link, deadline)
    except (ConnectionLost, ClusterUnreachable) as error:
        if link is not None:
            link.end()
        worker_cache.forget(task.cluster)
        outcomes.fail_open(error.message)
    handler.flush()


def _fetch(
    task: ReadTask, client: WireClient, handler: AnswerHandler, outcomes: RangeOutcomes, link: Link | None, deadline: float
) -> None:
    """Read over a few connections or over many, by the round trip; from the source's copies, too, what they hold."""
    task = replace(task, holdings=_usable(task, outcomes, link))
    if task.holdings:
        _fetch_from_several(task, client, handler, outcomes, link, deadline)
        return
    by_leader = _leaders(task, client, handler, outcomes)
    read_ahead = link.resume([outcomes.ranges[source].builder.rules.range for source in outcomes.open()]) if link else None
    if isinstance(read_ahead, SeveralSources):  # what is left is not worth asking several
        read_ahead.end()
        read_ahead = None
    outcomes.resumed = read_ahead is not None
    throttle = Throttle(task.bytes_per_second)
    short = ShortFetch(task, client, handler, outcomes, throttle)
    round_trip = short.open(by_leader) if read_ahead is None else read_ahead.round_trip
    learnt = link.connections if link else worker_connections(task.cluster)
    count = learnt.now(round_trip, task.connections, tasks=task.tasks)
    if not count:
        short.run(deadline)
        return
    read_ahead = read_ahead or ReadAhead(client, round_trip, room_of(task.tasks))
    try:
        read_parallel(
            read_ahead, handler, outcomes, count=count, ahead=link is not None, pause=throttle.pause,
            patience=partial(patience, task, client), deadline=deadline,
        )  # fmt: skip
        learnt.brought(*read_ahead.brought())
    except BaseException:
        read_ahead.end()
        raise
    if link is not None and read_ahead.unfinished and outcomes.clean:
        link.keep(read_ahead)
    else:
        read_ahead.end()


def _usable(task: ReadTask, outcomes: RangeOutcomes, link: Link | None) -> tuple[Holding, ...]:
    """What copies hold. What they only offer is taken by a later task: that needs a link to keep it, and sizes to deal it by."""
    if link is None:
        return tuple(replace(each, offered={}) for each in task.holdings if each.offsets)
    trusted = any(each.offsets for each in task.holdings)
    sized = trusted or all(outcomes.ranges[source].builder.rules.range.bytes_per_batch for source in outcomes.open())
    return task.holdings if sized else ()


def _fetch_from_several(
    task: ReadTask, client: WireClient, handler: AnswerHandler, outcomes: RangeOutcomes, link: Link | None, deadline: float
) -> None:
    kept = link.resume([outcomes.ranges[source].builder.rules.range for source in outcomes.open()]) if link else None
    outcomes.resumed = isinstance(kept, SeveralSources)
    if isinstance(kept, SeveralSources):
        several = kept
    else:
        if kept is not None:
            kept.end()
        counts = link.count_of if link else lambda alias: ConnectionCount()
        open_copy = partial(worker_cache.client_of, timeout=COPY_TIMEOUT)
        several = SeveralSources(client, counts, open_copy, asked=task.connections)
    try:
        several.hold(_answering(task, client, outcomes), task.holdings, lambda: Throttle(task.bytes_per_second).pause)
        read_parallel(
            several, handler, outcomes, count=0, ahead=link is not None, pause=lambda size: None, patience=partial(patience, task, client),
            deadline=deadline,
        )  # fmt: skip
    except BaseException:
        several.end()
        raise
    outcomes.left_out.update(several.left_out)
    outcomes.lost_copies = frozenset(several.lost - {""})
    several.lost.clear()
    if link is not None and several.unfinished and outcomes.clean:
        link.keep(several)
    else:
        several.end()


def _answering(task: ReadTask, client: WireClient, outcomes: RangeOutcomes) -> dict[TopicPartition, int]:
    """Leaders of the source that take connections now; what they cannot give may come from its copies."""
    if task.source_down:
        return {}
    try:
        leaders, _ = client.leaders(list(outcomes.ranges), patience=0)
    except (ConnectionLost, ClusterUnreachable):
        return {}
    lost = set(task.avoid)
    for node in set(leaders.values()) - lost:
        try:
            client.connection(node, within=patience(task, client, node))
        except WireError:
            lost.add(node)
    return {source: node for source, node in leaders.items() if node not in lost}


def _leaders(task: ReadTask, client: WireClient, handler: AnswerHandler, outcomes: RangeOutcomes) -> dict[int, list[TopicPartition]]:
    """Partitions by leader; those without one, or with a silent one, fail until a later micro-batch."""
    leaders, errors = client.leaders(list(outcomes.ranges), patience=0)
    for source, error in errors.items():
        handler.refused(source, error)
    by_leader: dict[int, list[TopicPartition]] = {}
    for source, node in leaders.items():
        if node in task.avoid:
            outcomes.ranges[source].error = f"broker {node} does not respond"
        else:
            by_leader.setdefault(node, []).append(source)
    return by_leader

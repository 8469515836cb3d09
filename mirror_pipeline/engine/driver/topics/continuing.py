"""Where partitions that join a generation continue on the target: after everything that earlier generations put there.

A broker remembers our last sequence in a partition as long as the topic's id and our epoch stay the same, whichever generation sent it.
So every earlier generation with both counts, not only the last one: a topic may be recreated with fewer partitions and grow again. What
they put there is known by the ledger's totals; what a killed run may have put there beyond them, by the tail of the target's log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.write.recovery import Tail, read_tails
from mirror_pipeline.engine.tasks.write.filling import MAX_FILL
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.halts import Halt, fill_too_large, target_ahead
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import LEADER_NOT_AVAILABLE, broker_error
from mirror_pipeline.model import Incarnation, Position, TopicPartition


def continued(
    context: LaneContext, client: WireClient, generation: Incarnation, ends: Mapping[int, int], earlier: Iterable[Incarnation],
    *, recorded: Collection[int] = (),
) -> Incarnation:  # fmt: skip
    """The generation with the target offsets and ordinals at which its partitions begin, where it does not know them yet.

    Args:
        context: the lane.
        client: the target.
        generation: its starts name the partitions; those without a target offset join it.
        ends: the target's end offsets.
        earlier: every generation that the lane's ledger knows.
        recorded: joining partitions of which the ledger is known to name all that was sent.

    Raises:
        TopicHalted: somebody else has written into a partition, or records are missing there.
        BrokerError: a partition's leader cannot be asked now.
        ClusterUnreachable: no broker of the target answers.
    """
    same = (generation.target_topic_id, generation.producer_epoch)
    known = context.ledger.put_there(each for each in earlier if (each.target_topic_id, each.producer_epoch) == same)
    joining = generation.starts.keys() - generation.target_starts.keys()
    begins = {number: known.get(number, Position(0, ends[number], 0)) for number in joining}
    longer = {number: at for number, at in begins.items() if number not in recorded and ends[number] > at.target_next}
    begins |= _after_tails(context, client, generation, longer)
    if context.exact:
        _refuse_ahead(generation, begins)
    return replace(
        generation,
        target_starts=generation.target_starts | {number: at.target_next for number, at in begins.items()},
        ordinals=generation.ordinals | {number: at.ordinal for number, at in begins.items()},
    )


def _refuse_ahead(generation: Incarnation, begins: Mapping[int, Position]) -> None:
    """Raise TopicHalted where the target's log is beyond the first offset to copy, or so far before it that it cannot be filled."""
    for number, at in begins.items():
        target, start = TopicPartition(generation.target_topic, number), generation.starts[number]
        if at.target_next > start:
            raise target_ahead(generation.topic, target, at.target_next, start).error()
        if start - at.target_next > MAX_FILL:
            raise replace(fill_too_large(target, start - at.target_next, MAX_FILL), topic=generation.topic).error()


def _after_tails(
    context: LaneContext, client: WireClient, generation: Incarnation, begins: Mapping[int, Position]
) -> dict[int, Position]:
    """These positions, moved over what of ours lies beyond them."""
    targets = {TopicPartition(generation.target_topic, number): at for number, at in begins.items()}
    if not targets:
        return {}
    tails = read_tails(
        client, targets, context.state.stamp, timeout=0.0, fillers=context.state.markers.producer_id if context.state.markers else -1,
        epochs=dict.fromkeys(targets, generation.producer_epoch), shared=dict.fromkeys(targets, True) if context.shared else {},
    )  # fmt: skip
    found = {}
    for target, tail in tails.items():
        if isinstance(tail, Halt):
            raise replace(tail, topic=generation.topic).error()
        if isinstance(tail, ConnectionLost):
            raise broker_error(LEADER_NOT_AVAILABLE, str(target), tail.message) from tail
        if not isinstance(tail, Tail):
            raise tail
        found[target.partition] = Position(0, tail.end, targets[target].ordinal + tail.records)
    return found

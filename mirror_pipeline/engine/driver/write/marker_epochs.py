"""The coordinator epochs of a lane's control markers (``offsets: exact``): each attempt has a higher one than all before it.

A broker refuses a marker whose epoch is lower than that of the lane's last marker in the partition. So an attempt that was given up, or a
run that was stopped and goes on later, can shift no offset once the next one has written a marker.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.tasks.write.filling import refusal
from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.halts import Halt
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.markers import write_markers
from mirror_pipeline.model import MarkerStamp, Stamp, TopicPartition

# Epochs that a run takes from the ledger at a time.
EPOCHS_TOGETHER = 1000
# In the ledger's table of producers: beside the cluster's id, whose producer id is that of the records.
MARKERS = "#markers"


class MarkerEpochs:
    """Hands out epochs; used by the write loop alone."""

    def __init__(self, context: LaneContext, client: WireClient) -> None:
        self._context = context
        self._client = client
        self._end = 0

    def renew(self) -> MarkerStamp:
        """The stamp of the next attempt, which is also ``state.markers``.

        Raises:
            BufferUnusable: the ledger cannot be read or written.
            ConnectionLost, ClusterUnreachable: the target gives no producer id.
        """
        now = self._context.state.markers
        if now is None or now.epoch + 1 >= self._end:
            now = self._reserve()
        self._context.state.markers = MarkerStamp(now.producer_id, now.epoch + 1)
        return self._context.state.markers

    def write_one(self, targets: Sequence[TopicPartition]) -> dict[TopicPartition, Halt | BrokerError | ConnectionLost]:
        """Append a marker of the present attempt to each partition; returns why there may be none, where it failed.

        Raises:
            ClusterUnreachable: no broker of the target answers.
        """
        stamp = self._context.state.markers
        assert stamp is not None  # noqa: S101 - renewed before
        leaders, failed = self._client.leaders(list(targets), patience=0.0)
        errors: dict[TopicPartition, Halt | BrokerError | ConnectionLost] = dict(failed)
        by_leader: dict[int, list[TopicPartition]] = {}
        for target, leader in leaders.items():
            by_leader.setdefault(leader, []).append(target)
        for leader, led in by_leader.items():
            try:
                answers = write_markers(self._client.connection(leader), dict.fromkeys(led, 1), stamp)
            except ConnectionLost as error:
                errors |= dict.fromkeys(led, error)
                continue
            errors |= {target: refusal(target, code) for target, code in answers.items() if code}
        for target in errors:
            self._client.forget(target)
        return errors

    def _reserve(self) -> MarkerStamp:
        try:
            known = marker_producer(self._context, self._client)
        except BrokerError as error:
            raise ConnectionLost(error.message, hint=error.hint) from error
        self._end = known.producer_epoch + EPOCHS_TOGETHER
        self._context.hold.check()
        self._context.ledger.save_producer(Stamp(known.producer_id, self._end), _name(self._context))
        return MarkerStamp(known.producer_id, known.producer_epoch)


def marker_producer(context: LaneContext, client: WireClient) -> Stamp:
    """The producer of the lane's markers, requested once; its epoch here is the next coordinator epoch that no attempt has taken.

    Raises:
        BufferUnusable: the ledger cannot be read or written.
        BrokerError, ConnectionLost, ClusterUnreachable: the target gives no producer id.
    """
    known = context.ledger.producer(_name(context))
    if known is None:
        known = Stamp(client.init_producer_id().producer_id, 0)
        context.hold.check()
        context.ledger.save_producer(known, _name(context))
    return known


def _name(context: LaneContext) -> str:
    return f"{context.target.cluster_id}{MARKERS}"

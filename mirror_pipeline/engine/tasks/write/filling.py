"""Fills offsets without a record (``offsets: exact``), so that the next batch gets the offset it has on the source.

A marker cannot say where it must land. So nothing else of a partition is under way while it is filled, and the end of the log is read
wherever the answer alone does not tell it: after several markers, and after the first ones of a task, by which the broker learns our
epoch and refuses those of a task that was stopped and goes on later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.halts import Halt, displaced, fill_too_large, markers_refused
from mirror_pipeline.kafka.client import Connection, WireClient
from mirror_pipeline.kafka.codes import CLUSTER_AUTHORIZATION_FAILED, broker_error
from mirror_pipeline.kafka.markers import write_markers
from mirror_pipeline.model import MarkerStamp, TopicPartition

# Markers of one request: the broker appends each by itself.
MARKERS_A_REQUEST = 500
# A hole that takes longer than minutes to fill is not filled: 33,000 markers a second were measured.
MAX_FILL = 10_000_000


class Fillable(Protocol):
    """A partition while it is sent."""

    end: int
    fill_to: int
    fenced: bool
    stopped: bool

    @property
    def target(self) -> TopicPartition:
        """The partition."""

    def stop(self, *, error: str = "", halt: Halt | None = None, outcome_unknown: bool = True, answered: bool = False) -> None:
        """Send nothing more."""

    def refuse(self, error: BrokerError) -> None:
        """The broker has refused it."""


def fill_holes(
    client: WireClient, connection: Connection, slots: Sequence[Fillable], stamp: MarkerStamp, *, deadline: float, within: float
) -> None:
    """Fill each partition up to its ``fill_to``; one that cannot be filled is stopped.

    Args:
        client: the target.
        connection: to the leader of all of them, with no request under way.
        slots: the partitions.
        stamp: whose markers they are.
        deadline: nothing is sent from then on (monotonic seconds).
        within: seconds for each answer about ends of logs.

    Raises:
        ConnectionLost: the broker broke off.
    """
    for slot in slots:
        if slot.fill_to - slot.end > MAX_FILL:
            slot.stop(halt=fill_too_large(slot.target, slot.fill_to - slot.end, MAX_FILL), outcome_unknown=False)
    while open_ := [slot for slot in slots if not slot.stopped and slot.end < slot.fill_to]:
        connection.wait_out_throttle()
        # As close to the send as it can be.
        if time.monotonic() >= deadline:
            for slot in open_:
                slot.stop(error="the lease of the produce task ended", outcome_unknown=False)
            return
        most = max(1, MARKERS_A_REQUEST // len(open_))
        counts = {slot.target: min(slot.fill_to - slot.end, most) for slot in open_}
        crash_point("fill.before_send")
        errors = write_markers(connection, counts, stamp)
        crash_point("fill.after_send")
        _account(client, open_, counts, errors, within)


def refusal(target: TopicPartition, code: int) -> Halt | BrokerError:
    """What the broker says of markers: without the right to write them the topic halts."""
    return markers_refused(target) if code == CLUSTER_AUTHORIZATION_FAILED else broker_error(code, str(target))


def _account(
    client: WireClient, slots: Sequence[Fillable], counts: Mapping[TopicPartition, int], errors: Mapping[TopicPartition, int], within: float
) -> None:
    unsure = []
    for slot in slots:
        if errors[slot.target]:
            refused = refusal(slot.target, errors[slot.target])
            if isinstance(refused, Halt):
                slot.stop(halt=refused, outcome_unknown=False)
            else:
                slot.refuse(refused)
        elif slot.fenced and counts[slot.target] == 1:
            slot.end += 1
        else:
            unsure.append(slot)
    ends = client.log_ends([slot.target for slot in unsure], within=within) if unsure else {}
    for slot in unsure:
        found = ends[slot.target]
        if found.error:
            slot.stop(error=broker_error(found.error, str(slot.target)).message)
        elif not slot.end < found.offset <= slot.fill_to:
            slot.stop(halt=displaced(slot.target, found.offset, slot.fill_to))
        else:
            slot.end, slot.fenced = found.offset, True

"""What became of the records that were sent: from answers of the target, and from the tails of its logs where there was none.

A partition's position moves in one place, ``_account``: by records that the target acknowledged or that its log holds. While its
outcome is unknown nothing more is sent to it, and only a tail ends that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.context import LaneContext, Losses, backoff
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.state import PartitionState
from mirror_pipeline.engine.driver.write.ledger_writer import LedgerWriter
from mirror_pipeline.engine.driver.write.marker_epochs import MarkerEpochs
from mirror_pipeline.engine.driver.write.recovery import TAIL_ANSWER_SECONDS, NoTailYet, Tail, read_tails
from mirror_pipeline.engine.driver.write.target_health import TargetHealth
from mirror_pipeline.engine.tasks.write.messages import PartitionOutcome, PartitionWork, WriteResult
from mirror_pipeline.engine.tasks.write.offset_map import Landed, advance_over, advance_to, trailing_holes_only, with_delays
from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.halts import Halt, buffer_gap, internal, log_internal, refused_topic
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNREACHED, Action, lookup
from mirror_pipeline.model import Send

log = logging.getLogger(__name__)

# How long partitions may hold up the others until the ends of their logs are replicated; then they are tried again, with a back-off.
REPLICATION_SECONDS = 0.2
# Partitions due within this time are recovered together: separate requests would hold up healthy partitions.
TAILS_TOGETHER_SECONDS = 1.0
# Halts of a produce task that the target's log must confirm.
LOOKED_AT_AGAIN = {"foreign_writer"}


class SendOutcomes:
    """Moves the positions of a lane's partitions, halts topics, and hands sends to the ledger writer."""

    def __init__(
        self, context: LaneContext, client: WireClient, health: TargetHealth, ledger_writer: LedgerWriter, losses: Losses
    ) -> None:
        self._context = context
        self._state = context.state
        self._client = client
        self._health = health
        self._ledger_writer = ledger_writer
        self._losses = losses
        self._epochs = MarkerEpochs(context, client)

    def recover(self) -> None:
        """Read the tail of every partition whose outcome is unknown, and account for what lies there.

        Raises:
            ConnectionLost, ClusterUnreachable: the target cannot be asked now.
        """
        now = time.monotonic()
        with self._state.lock:
            unknown = [p for p in self._state.checked() if p.writing.outcome_unknown]
        if not any(p.writing.retry_at <= now for p in unknown):
            return
        unknown = [p for p in unknown if p.writing.retry_at <= (now if p.writing.suspect else now + TAILS_TOGETHER_SECONDS)]
        crash_point("recover.before")
        if self._context.exact:
            self._epochs.renew()
        self._recover(unknown)
        if self._context.exact:
            self._fence(unknown)

    def _recover(self, unknown: Sequence[PartitionState]) -> None:
        markers = self._state.markers
        self._health.avoid_silent()
        leaders, _ = self._client.leaders([p.target for p in unknown], patience=0.0)
        tails = read_tails(
            self._client,
            {p.target: p.writing.position for p in unknown},
            self._context.state.stamp,
            timeout=REPLICATION_SECONDS,
            patience=max(TAIL_ANSWER_SECONDS, self._health.silent.longest()),
            epochs={p.target: p.writing.producer_epoch for p in unknown if p.writing.producer_epoch},
            shared={p.target: p.writing.tail_read or p.writing.resumed for p in unknown} if self._context.shared else {},
            fillers=markers.producer_id if markers is not None else -1,
        )
        self._health.avoid_silent()
        sends: list[Send] = []
        with self._state.lock:
            for part in unknown:
                try:
                    sends += self._apply_tail(part, tails[part.target])
                except Exception as error:  # noqa: BLE001 - an internal error over one partition: the others continue
                    self._suspect(part, internal(part.target, error))
        self._ledger_writer.add(sends)
        silent = [tail for tail in tails.values() if isinstance(tail, BrokerError | ConnectionLost) and not _answered(tail)]
        if len(silent) < len(tails):
            self._health.answered()
        elif not self._health.others_well({leaders.get(target) for target in tails}):
            raise ConnectionLost(silent[0].message, hint=silent[0].hint)

    def _fence(self, parts: Sequence[PartitionState]) -> None:
        """Write one marker of this attempt where a hole comes next, and look again: markers of earlier attempts are refused from then on.

        An earlier attempt may have markers on their way only where the log ends in a hole: it sends them once all before it is there.
        """
        with self._state.lock:
            parts = [part for part in parts if not part.writing.outcome_unknown and part.hole_next]
            for part in parts:
                part.writing.outcome_unknown = True
        if not parts:
            return
        errors = self._epochs.write_one([part.target for part in parts])
        with self._state.lock:
            for part in parts:
                error = errors.get(part.target)
                if isinstance(error, Halt):
                    self._state.halt(part.source.topic, error.at(part.source))
                elif error is not None:
                    part.writing.failed(error.message, delay=backoff(part.writing.failures), reached=_answered(error))
            again = [part for part in parts if part.target not in errors]
        if again:
            self._recover(again)

    def _apply_tail(self, part: PartitionState, tail: Tail | Halt | BrokerError | ConnectionLost) -> list[Send]:
        topic = part.source.topic
        if isinstance(tail, Halt):
            self._suspect(part, tail)
            return []
        if isinstance(tail, ConnectionLost):
            part.writing.failed(tail.message, delay=backoff(part.writing.failures), reached=_answered(tail))
            return []
        if isinstance(tail, BrokerError):
            if lookup(tail.code).action in (Action.HALT, Action.FATAL):
                self._state.halt(topic, refused_topic(topic, tail))
            else:
                part.writing.failed(tail.message, delay=backoff(part.writing.failures), reached=_answered(tail))
            return []
        if part.writing.suspect is not None and not tail.read:
            self._suspect(part, part.writing.suspect)  # retention has deleted the records that could clear it
            return []
        try:
            before = part.writing.position.ordinal
            sends = self._account(part, tail.records if tail.read or not self._context.exact else -1, tail.landed, tail.end)
            self._count(part, part.writing.position.ordinal - before)
        except ValueError as error:
            self._state.halt(topic, buffer_gap(topic, part.target, error))
            return []
        part.writing.outcome_unknown, part.writing.tail_read, part.writing.suspect, part.writing.retry_at = False, True, None, 0.0
        if not part.pending:
            part.writing.worked()
        return sends

    def _suspect(self, part: PartitionState, found: Halt) -> None:
        """Halt by the second answer that asks for it: the first may come from a broker that has lost its leadership, or lags."""
        halt = found.at(part.source)
        if part.writing.suspect is not None or found.code == "internal":
            log_internal(halt)
            self._state.halt(halt.topic, halt)
            return
        log.info("%s: checked again before it halts: %s", part.target, found.message)
        part.writing.suspect = halt
        part.writing.failed(found.message, delay=divergence.SECOND_LOOK_SECONDS)

    def _count(self, part: PartitionState, found: int) -> None:
        """Count records that this run sent without an answer; those found by its first tail are an earlier run's."""
        if part.writing.tail_read and found:
            self._losses.done()
            self._state.topics[part.source.topic].records += found
            self._state.records += found

    def _account(self, part: PartitionState, records: int, landed: Landed = (), end: int = -1) -> list[Send]:
        """Move the partition's position over ``records`` records that are known to be on the target; ``landed``: not in one run.

        With exact offsets the target's ``end`` is the position; ``records`` below 0 are unknown.
        Raises ValueError where the buffer does not hold what the target has.
        """
        before = part.writing.position
        if self._context.exact:
            sends, position = advance_to(part.pending, before, end, target_topic=part.target.topic)
            if records >= 0 and position.ordinal != before.ordinal + records:
                found = position.ordinal - before.ordinal
                raise ValueError(f"{part.target}: {records} records lie below offset {end}, by the buffer {found}")
            part.writing.position = position
        else:
            runs = landed or ((before.target_next, records),)
            sends, part.writing.position = advance_over(part.pending, before, runs, target_topic=part.target.topic)
        if part.writing.position != before:
            part.writing.worked()
        now = time.time()
        sends = with_delays(sends, part.pending, now)
        position = part.writing.position
        filled = not self._context.exact or position.target_next >= position.source_next
        while filled and part.pending and part.pending[0].end <= position.source_next:
            sent = part.pending.popleft()
            if sent.records and sent.min_timestamp > 0:
                self._state.latency.add(max(0.0, now - sent.min_timestamp / 1000), sent.records)
        part.staged = max(part.staged, part.writing.position.source_next)
        return sends

    def pass_holes(self, parts: Sequence[PartitionState]) -> list[Send]:
        """Move positions over spans without records, which need no request unless offsets are exact; with the state locked."""
        sends: list[Send] = []
        for part in () if self._context.exact else parts:
            if part.pending and not part.writing.outcome_unknown and trailing_holes_only(part.pending, part.writing.position):
                sends += self._account(part, 0)
        return sends

    def apply_results(self, work: Sequence[PartitionWork], results: Sequence[WriteResult], began: float) -> None:
        """Account for what produce tasks have sent. Raises ConnectionLost when no broker answered."""
        for node, why in (item for result in results for item in result.silent.items()):
            self._health.silent.lost(node, why)
        by_target = {w.target: w.spans[0].source for w in work}
        sends: list[Send] = []
        errors: list[str] = []
        acked, failed, answered = 0, set(), False
        with self._state.lock:
            for outcome in (o for result in results for o in result.outcomes):
                source = by_target[outcome.target]
                run = self._state.topics[source.topic]
                part = run.partitions[source.partition]
                try:
                    sends += self._account(part, outcome.records, outcome.landed, outcome.end)
                except Exception as error:  # noqa: BLE001 - an internal error over one partition: the others continue
                    self._suspect(part, internal(part.target, error))
                    continue
                acked += outcome.records
                run.records += outcome.records
                run.bytes += outcome.bytes
                self._state.records += outcome.records
                self._state.bytes += outcome.bytes
                self._apply_outcome(part, outcome, errors)
                failed |= {outcome.target} if outcome.error else set()
                answered = answered or outcome.answered
            self._state.seconds_producing += time.monotonic() - began
            self._state.micro_batches += 1
            if acked:
                self._state.confirmed_at = time.time()
            self._state.active()
        self._ledger_writer.add(sends)
        if acked:
            self._health.acknowledged()
        elif answered:
            self._health.answered()
        elif errors and not self._health.others_well({self._client.known_leader(target) for target in failed}):
            raise ConnectionLost(errors[0])

    def _apply_outcome(self, part: PartitionState, outcome: PartitionOutcome, errors: list[str]) -> None:
        if outcome.halt is not None and outcome.halt.code in LOOKED_AT_AGAIN:
            part.writing.outcome_unknown = True
            self._suspect(part, outcome.halt)
        elif outcome.halt is not None:
            halt = outcome.halt.at(part.source)
            log_internal(halt)
            self._state.halt(halt.topic, halt)
        elif outcome.error:
            log.info("producing to %s: %s", outcome.target, outcome.error)
            errors.append(outcome.error)
            part.writing.failed(outcome.error, delay=backoff(part.writing.failures), reached=outcome.answered)
        else:
            part.writing.worked()


def _answered(error: BrokerError | ConnectionLost) -> bool:
    """Whether the partition's leader has answered, if only by refusing."""
    return error.code not in UNREACHED if isinstance(error, BrokerError) else isinstance(error, NoTailYet)

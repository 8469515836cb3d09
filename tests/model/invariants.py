"""What must hold after every step. The numbers are those of the protocol's invariants I1 to I9."""

from __future__ import annotations

from mirror_pipeline.kafka.records.batch import open_batch
from mirror_pipeline.model import Position, SpanRef, TopicPartition
from tests.model.broker import Stored
from tests.model.runs import ModelRun
from tests.model.tables import ModelLog
from tests.model.world import PARTITIONS, TARGET_TOPIC, TOPIC, World


class Violation(AssertionError):
    """The model found what must not be."""


def need(holds: bool, invariant: str, message: str) -> None:
    if not holds:
        raise Violation(f"{invariant}: {message}")


class Watch:
    """Looks at the world from outside; knows which source record belongs at which place of the target."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._compared: dict[int, list[Stored]] = {n: [] for n in range(PARTITIONS)}
        self._positions: dict[int, Position] = {}
        self._versions: dict[str, int] = {}
        self._read: tuple[int, dict[int, Position]] | None = None

    def positions(self) -> dict[int, Position]:
        """What the ledger says, read again only after it changed."""
        version = ModelLog.tables[self._world.store.table("sends")].version
        if self._read is None or self._read[0] != version:
            self._read = version, {tp.partition: position for tp, position in self._world.ledger.positions().items()}
        return self._read[1]

    def look(self, run: ModelRun | None) -> None:
        self.target()
        if run is not None and run.alive:
            self._live_positions(run)
        if self._changed("sends", "spans"):
            self._tables()

    def target(self) -> None:
        """I1 to I4 alone."""
        for partition in range(PARTITIONS):
            self._target(partition)

    def _changed(self, *names: str) -> bool:
        now = {name: ModelLog.tables[self._world.store.table(name)].version for name in names}
        before, self._versions = self._versions, now
        return now != before

    def _target(self, partition: int) -> None:
        """I1, I2, I3, I4: the target is a prefix of the source's records, in order, byte for byte."""
        log = self._world.target.logs[TopicPartition(TARGET_TOPIC, partition)].log
        known = self._compared[partition]
        while known and (len(known) > len(log) or known[-1] is not log[len(known) - 1]):
            known.pop()
        expected = self._world.source.expected[partition]
        for stored in log[len(known) :]:
            for index, record in enumerate(open_batch(stored.raw), stored.base):
                need(record.offset == index, "I4", f"a record of partition {partition} is numbered {record.offset} at {index}")
                need(index < len(expected), "I4", f"partition {partition} of the target has more records than the source")
                found, wanted = (record.timestamp, record.tail), (expected[index].timestamp, expected[index].tail)
                need(found == wanted, "I1-I3", f"partition {partition} at target offset {index} holds {found}, not {wanted}")
            known.append(stored)

    def safe(self, partition: int) -> int:
        """Records that lie on the target for ever."""
        return self._world.target.logs[TopicPartition(TARGET_TOPIC, partition)].replicated

    def records_below(self, partition: int, offset: int) -> int:
        return sum(record.offset < offset for record in self._world.source.expected[partition])

    def _right(self, partition: int, position: Position, whose: str) -> None:
        """I5, I8: no position passes what is there, and source and target offset belong together."""
        need(position.ordinal <= self.safe(partition), "I5", f"{whose} position of {partition} is past the target: {position}")
        below = self.records_below(partition, position.source_next)
        right = below == position.ordinal == position.target_next
        need(right, "I8", f"{whose} {position} of {partition} skips or repeats: {below} expected")

    def _live_positions(self, run: ModelRun) -> None:
        for part in run.partitions():
            number = part.source.partition
            before = run.seen.get(number, part.writing.position)
            now = part.writing.position
            need(now.source_next >= before.source_next, "I5", f"position of {number} went back: {before}, {now}")
            run.seen[number] = now
            self._right(number, now, "live")

    def _tables(self) -> None:
        """I5, I6: the ledger never goes back, and from its position on the buffer has no hole."""
        spans = self._world.spans.spans()
        for partition, position in self.positions().items():
            before = self._positions.get(partition, position)
            need(position.source_next >= before.source_next, "I5", f"the ledger went back: {before}, {position}")
            self._right(partition, position, "ledger")
            self._whole(partition, position.source_next, [s for s in spans if s.partition == partition])
        self._positions = self.positions()

    @staticmethod
    def _whole(partition: int, at: int, spans: list[SpanRef]) -> None:
        for span in spans:
            if span.end > at:
                need(span.start <= at, "I6", f"the buffer lacks [{at}, {span.start}) of partition {partition}")
                at = span.end

    def evicted(self, gone: list[SpanRef], verified: dict[int, int]) -> None:
        """I7: what left the buffer is on the target, and verified."""
        for span in gone:
            there = self.records_below(span.partition, span.end) <= self.safe(span.partition)
            checked = span.end <= verified.get(span.partition, -1)
            need(there and checked, "I7", f"evicted too early: {span.source} [{span.start}, {span.end})")

    def at_rest(self, run: ModelRun) -> None:
        """I1, I8, I9: faults have stopped and the last run is over, so nothing may be missing anywhere."""
        need(run.failure is None, "I9", f"the last run ended with {run.failure!r}")
        halts = {name: topic.halted.message for name, topic in run.context.state.topics.items() if topic.halted is not None}
        need(not halts, "I9", f"the last run halted: {halts}")
        for partition in range(PARTITIONS):
            wanted = len(self._world.source.expected[partition])
            need(self.safe(partition) == wanted, "I9", f"partition {partition}: {self.safe(partition)} of {wanted} records arrived")
            position = self.positions()[partition]
            end = self._world.source.logs[TopicPartition(TOPIC, partition)].end
            need(position.source_next == end, "I9", f"the ledger stands at {position}, the source at {end}")
        self._world.ledger.audit()
        self._offset_map()

    def _offset_map(self) -> None:
        """I8: every send of the ledger names the right records."""
        for send in self._world.ledger.sends():
            expected = self._world.source.expected[send.partition]
            inside = [record.offset for record in expected if send.source_start <= record.offset < send.source_end]
            mapped = [record.offset for record in expected[send.target_start : send.target_end]]
            need(inside == mapped and len(inside) == send.records, "I8", f"wrong send: {send}")

"""One round of housekeeping over real tables: what may leave, what must not, who is told."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lock import maintenance_lock
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.place.space import (
    RESERVED_FILE_BYTES,
    SPARE_BYTES,
    BufferSpace,
    SpaceWatch,
    drop_reserved_file,
    lay_reserved_file,
)
from mirror_pipeline.buffer.place.usage import buffer_use
from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.spans import JOIN_FILES, MAX_SPAN_FILES, SpanTable
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.maintain import rounds
from mirror_pipeline.engine.driver.maintain.rounds import Differing, Maintenance, damage, staged_verifier
from mirror_pipeline.engine.driver.maintain.thread import CROWD_FILES, MAINTENANCE_SECONDS, MaintenanceThread, halt_of
from mirror_pipeline.engine.driver.plan import SHORT_TURN_SECONDS
from mirror_pipeline.errors import BufferDamaged, BufferUnusable, ClusterUnreachable, SparkGone
from mirror_pipeline.execution.runner import InlineRunner, OneAtATime
from mirror_pipeline.model import Verdict, Verification
from tests.support.buffer_samples import LIFE, Settings, draft, life, send
from tests.support.lane_context import context

__all__ = ["context"]

KEY: SpanKey = ("orders", 0, LIFE)
DAY = 86_400
CAP = 50 * 10**9
PATIENT = 900.0


@dataclass(frozen=True)
class Difference:
    topic: str
    partition: int
    kind: str = "altered"
    source_offset: int | None = 3


@dataclass(frozen=True)
class Found:
    verified: dict[SpanKey, int]
    records: int
    bytes: int
    differences: tuple[Difference, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclass
class Verifier:
    """Verifies one span a call, as if its target were in order up to ``good``; ``error`` is raised in its place."""

    ledger: Ledger
    good: int = 10**9
    error: Exception | None = None
    calls: list[int] = field(default_factory=list)

    def __call__(self, budget: int) -> Found:
        self.calls.append(budget)
        if self.error is not None:
            raise self.error
        at = self.ledger.verified().get(KEY, 0)
        if at >= self.good:
            return Found(self.ledger.verified(), 0, 0, (Difference("orders", 0, source_offset=at),))
        self.ledger.add_verifications([Verification(*KEY, at, at + 1, 1, 1, "", Verdict.SAME, "staged", int(time.time() * 1000))])
        return Found(self.ledger.verified(), 1, 100)


@dataclass
class Lane:
    store: LaneStore
    spans: SpanTable
    ledger: Ledger
    verifier: Verifier

    def stage(self, count: int, size: int = 1000) -> None:
        for number in range(count):
            writer = PartFileWriter(self.store, number, 0, durable=False)
            writer.add(draft(number, number + 1), b"x" * size)
            part = writer.close()
            assert part is not None
            assert self.spans.commit(number, [part])

    def produce(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            assert self.ledger.record(number, [send(number, number + 1)])

    def house(self, retention: int = DAY, told: list[Collection[Differing]] | None = None) -> Maintenance:
        differs = None if told is None else told.append
        return Maintenance(self.store, self.spans, self.ledger, retention, CAP, verify=self.verifier, differs=differs)

    def live(self) -> list[int]:
        return [ref.start for ref in SpanTable(self.store).spans()]


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    spans, ledger = SpanTable(store, durable=False), Ledger(store, durable=False)
    spans.ensure()
    ledger.ensure()
    ledger.add_incarnation(life({0: 0}))
    return Lane(store, spans, ledger, Verifier(ledger))


def test_nothing_young_leaves_and_nothing_is_verified_for_it(lane: Lane) -> None:
    lane.stage(5)
    lane.produce(5)
    done = lane.house().run_round()
    assert (done.micro_batches, done.verified_records, done.kept_bytes, done.note) == (0, 0, 0, "")
    assert lane.verifier.calls == []
    assert lane.live() == [0, 1, 2, 3, 4]


def test_what_retention_drives_out_is_verified_first(lane: Lane) -> None:
    lane.stage(5)
    lane.produce(3)
    done = lane.house(retention=-1).run_round()
    assert done.micro_batches == 3
    assert (done.verified_records, done.verified_bytes) == (3, 300)
    assert lane.ledger.verified() == {KEY: 3}
    assert lane.live() == [3, 4]
    assert len(lane.verifier.calls) == 3
    assert lane.house(retention=-1).run_round().micro_batches == 0


def test_room_is_made_no_further_than_needed(lane: Lane) -> None:
    lane.stage(10, size=100_000)
    lane.produce(8)
    each = lane.spans.bytes() // 10
    done = lane.house().run_round(excess=3 * each - 100, upkeep=False)
    assert done.micro_batches == 3
    assert done.freed_bytes >= 3 * each - 100
    assert lane.live() == list(range(3, 10))
    assert lane.spans.disk_bytes() == lane.spans.bytes()


@pytest.mark.parametrize("unproduced", [True, False])
def test_only_what_is_produced_and_verified_leaves_however_full_it_is(lane: Lane, unproduced: bool) -> None:
    lane.stage(6)
    lane.produce(2 if unproduced else 6)
    lane.verifier.good = 6 if unproduced else 2
    done = lane.house(retention=-1).run_round(excess=10**12)
    assert done.micro_batches == 2
    assert lane.live() == [2, 3, 4, 5]
    assert bool(done.kept_bytes) is not unproduced


def test_a_difference_keeps_the_spans_and_is_told(lane: Lane) -> None:
    lane.stage(4)
    lane.produce(4)
    lane.verifier.good = 1
    told: list[Collection[Differing]] = []
    done = lane.house(retention=-1, told=told).run_round()
    assert (done.micro_batches, done.differences) == (1, 1)
    assert "orders[0]" in done.note
    assert [d.source_offset for found in told for d in found] == [1]
    assert lane.live() == [1, 2, 3]
    halt = halt_of("m", told[0])
    assert (halt.code, halt.topic, halt.partition) == ("copy_differs", "orders", 0)
    assert "source offset 1 is altered" in halt.message
    assert "mirror verify --mirror m --topic orders" in halt.hint


def test_an_unreachable_target_holds_up_only_what_is_not_verified(lane: Lane) -> None:
    lane.stage(4)
    lane.produce(4)
    lane.verifier(0)
    lane.verifier.error = ClusterUnreachable("west", "no broker of west answers")
    done = lane.house(retention=-1).run_round()
    assert done.micro_batches == 1
    assert done.note == "not verified: no broker of west answers"
    assert done.kept_bytes > 0
    house = lane.house(retention=-1)
    house.verify = None
    assert house.run_round().note == "not verified: the target was not read"
    assert lane.live() == [1, 2, 3]


def test_verification_is_bounded_in_time(lane: Lane) -> None:
    lane.stage(5)
    lane.produce(5)
    assert lane.house(retention=-1).run_round(seconds=0.0).micro_batches == 1
    assert lane.verifier.calls == [rounds.VERIFY_BYTES]


@pytest.mark.long
def test_many_small_files_are_verified_and_joined_before_their_time(lane: Lane) -> None:
    count = JOIN_FILES + 6
    lane.stage(count)
    lane.produce(count - 1)
    done = lane.house().run_round(seconds=PATIENT)
    assert done.micro_batches == 0
    assert done.joined_files >= count - 1
    assert lane.spans.live_files() == 2
    assert lane.live() == list(range(count))


@pytest.mark.long
def test_joining_files_does_not_break_the_cap(lane: Lane) -> None:
    """A joined file and those it replaces are on the disk together for a while."""
    count = JOIN_FILES + 6
    lane.stage(count, size=20_000)
    lane.produce(count)
    lane.house().run_round(upkeep=False, seconds=PATIENT)  # all is verified, nothing joined yet
    assert lane.spans.live_files() == count
    used = sum(use.total for use in buffer_use(lane.store).values())
    for cap in (int(used * 1.3), int(used * 3)):
        joined = replace(lane.house(), cap=cap).run_round(seconds=PATIENT).joined_files
        assert (joined == count) == (cap > 2 * used)
        assert sum(use.total for use in buffer_use(lane.store).values()) < cap


def test_two_do_not_maintain_one_lane_at_a_time(lane: Lane) -> None:
    lane.stage(2)
    lane.produce(2)
    with maintenance_lock(lane.store):
        done = lane.house(retention=-1).run_round()
    assert (done.micro_batches, done.note) == (0, "another process is running maintenance")
    assert lane.live() == [0, 1]


def test_on_a_full_disk_the_reserved_file_goes_first(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    lane.stage(2)
    lane.produce(2)
    lay_reserved_file(lane.store, cap=CAP)
    really = SpanTable.evict

    def full(self: SpanTable, *args: object, **named: object) -> object:
        if lane.store.file("ballast").exists():
            problem = BufferUnusable("the disk is full")
            problem.retryable = True
            raise problem
        return really(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(SpanTable, "evict", full)
    assert lane.house(retention=-1).run_round(upkeep=False).micro_batches == 2
    assert not drop_reserved_file(lane.store)
    lay_reserved_file(lane.store, cap=CAP)
    assert lane.store.file("ballast").stat().st_size == RESERVED_FILE_BYTES


def test_a_rewritten_file_is_damage_and_other_trouble_is_not(lane: Lane) -> None:
    import pyarrow.parquet as pq

    lane.stage(1)
    writer = PartFileWriter(lane.store, 1, 0, durable=False)
    for start in (1, 2):
        writer.add(draft(start, start + 1), b"x")
    part = writer.close()
    assert part is not None
    lane.spans.commit(1, [part])
    path = Path(lane.store.table("spans"), part.path)
    pq.write_table(pq.read_table(path), path)
    house = Maintenance(lane.store, SpanTable(lane.store), lane.ledger, -1, CAP, verify=lane.verifier)
    with pytest.raises(BufferDamaged) as caught:
        house.run_round()
    assert damage(caught.value)
    assert not damage(BufferUnusable("not writable"))
    assert not damage(ValueError())


def test_a_second_process_evicts_beside_the_first(lane: Lane) -> None:
    """Both see the same tables; what one removed the other does not miss."""
    lane.stage(6)
    lane.produce(6)
    other = Maintenance(lane.store, SpanTable(lane.store), Ledger(lane.store), -1, CAP, verify=Verifier(Ledger(lane.store)))
    assert lane.house(retention=-1).run_round().micro_batches == 6
    assert other.run_round().micro_batches == 0
    for number in range(6, 9):
        writer = PartFileWriter(lane.store, number, 0, durable=False)
        writer.add(draft(number, number + 1), b"x")
        part = writer.close()
        assert part is not None
        assert lane.spans.commit(number, [part])
        lane.produce(1, first=number)
    assert other.run_round().micro_batches == 3
    assert lane.spans.spans() == []
    assert lane.spans.last_micro_batch() == 8


rooms = st.builds(BufferSpace, st.integers(0, 2**40), st.integers(2**20, 2**40), st.integers(0, 2**40), st.integers(1, 2**30))


@given(rooms)
def test_room_that_was_made_is_enough(room: BufferSpace) -> None:
    """After the excess is gone the next micro-batch fits, if there was so much to remove; and nothing goes without need."""
    excess = room.excess
    if room.why_full:
        assert excess > 0 or room.limit == 0
    if room.used >= excess:
        after = BufferSpace(room.used - excess, room.cap, room.free + excess, room.reserve)
        assert not after.why_full
        assert after.excess <= 1
    if not room.near:
        assert (excess, room.why_full) == (0, "")


def test_a_spark_that_is_gone_ends_the_lane(lane: Lane) -> None:
    """Nothing is verified without it, so nothing leaves: a lane that waits for room would wait for ever, and asks Spark for nothing."""
    lane.stage(2)
    lane.produce(2)
    lane.verifier.error = SparkGone("Spark's Java process is gone")
    with pytest.raises(SparkGone) as caught:
        lane.house(retention=-1).run_round()
    assert damage(caught.value)
    assert not damage(ClusterUnreachable("west", "silent"))


def test_a_buffer_without_spans_takes_the_next_micro_batch_however_large_the_last_ones_were(lane: Lane) -> None:
    """What ledger and logs take cannot be evicted: a lane must not wait for that."""
    watch = SpaceWatch(lane.store, cap=8_000_000, micro_batch=1_000_000)
    watch.cached(4_900_000)  # a micro-batch took whole fetches of many partitions
    Path(lane.store.uri, "ledger-of-a-long-life").write_bytes(os.urandom(2_300_000))
    assert watch.measure().why_full == ""
    lane.stage(1, size=1_000_000)
    assert watch.measure().why_full != "", "with spans in it that may leave, there is something to wait for"


def test_the_watch_counts_the_whole_buffer_and_every_run(lane: Lane) -> None:
    lane.stage(3, size=100_000)
    watch = SpaceWatch(lane.store, cap=10**9, micro_batch=10**6)
    room = watch.measure()
    assert room.used > 300_000
    assert room.reserve == 1_250_000
    assert room.why_full == ""
    assert watch.cached(5_000).used == room.used + 5_000
    assert watch.cached(4_000_000).reserve == 5_000_000  # a micro-batch was that large: the next one may be
    assert watch.measure().reserve == 5_000_000
    watch = SpaceWatch(lane.store, cap=10**9, micro_batch=10**6)
    second = Path(lane.store.uri).parent / "lane-1"
    second.mkdir()
    for folder in (Path(lane.store.uri), second):
        (folder / "lock").write_text("{}")
    (second / "left").write_bytes(os.urandom(2**20))
    room = watch.measure()
    assert room.used > 300_000 + 2**20
    assert room.reserve == 2_500_000
    small = SpaceWatch(lane.store, cap=1_000_000, micro_batch=250_000).measure()
    assert "are taken" in small.why_full
    assert BufferSpace(0, 10**9, SPARE_BYTES, 1).why_full == "its disk is full: 16.8 MB left, and the next micro-batch may need 1 B"


def test_tasks_run_inline_one_after_the_other() -> None:
    seen: list[int] = []

    def task(number: int) -> int:
        seen.append(number)
        return 2 * number

    for runner in (InlineRunner(), OneAtATime(InlineRunner())):
        assert runner.tasks == 1
        assert runner.run(task, [1, 2], name="double") == [2, 4]
    assert seen == [1, 2, 1, 2]


def test_each_verification_asks_anew_where_its_tasks_run(lane: Lane) -> None:
    """Spark may have started since the last one."""
    ledger, spans, target = Ledger(lane.store), SpanTable(lane.store), ClusterSettings("west", ("b:1",))
    runners = [InlineRunner(), InlineRunner()]
    left, asked = list(runners), []

    def compare(**arguments: object) -> Found:
        asked.append(arguments)
        return Found({}, 0, 0)

    verify = staged_verifier(compare, ledger, spans, target, runner=lambda: left.pop(0), timeout=3.0)
    assert (verify(7).records, verify(8).records) == (0, 0)
    same = {"ledger": ledger, "spans": spans, "target": target, "timeout": 3.0}
    assert asked == [{**same, "runner": runners[0], "budget_bytes": 7}, {**same, "runner": runners[1], "budget_bytes": 8}]


def test_many_small_files_bring_the_next_round_forward(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beyond what a table may hold would be evicted, whatever the retention, instead of joined."""
    keeper = MaintenanceThread(context)
    half, whole = MAINTENANCE_SECONDS / 2, MAINTENANCE_SECONDS
    assert [keeper._is_due(passed) for passed in (0.0, half, whole)] == [False, False, True]
    monkeypatch.setattr(context.spans, "live_files", lambda: CROWD_FILES + 1)
    assert [keeper._is_due(passed) for passed in (0.0, half, whole)] == [False, True, True]


def test_files_of_half_a_round_and_those_that_may_stay_small_fit_into_the_table() -> None:
    assert MAINTENANCE_SECONDS / 2 / SHORT_TURN_SECONDS + CROWD_FILES <= MAX_SPAN_FILES

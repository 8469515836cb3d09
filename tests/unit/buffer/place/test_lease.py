"""The lease against a real S3 server: who gets it, when it is over, and that the server keeps to its conditions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from mirror_pipeline.buffer.place.bucket import Found, Objects, StoreError, carried_options
from mirror_pipeline.buffer.place.lease import HELD_SHARE, RELEASED, Lease, Sightings
from mirror_pipeline.buffer.place.lock import LANE_LOCK, MAINTENANCE, lane_lock, last_maintenance, maintenance_lock, note_maintenance
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.errors import BufferUnusable, LaneBusy, LaneLost
from tests.support.buffer_samples import Settings
from tests.support.object_store import BUCKET, ObjectStore

SECONDS = 100.0


class Clock:
    """Monotonic seconds that somebody else moves."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def objects(object_store: ObjectStore) -> Objects:
    return Objects(f"s3://{BUCKET}/m/lane-0", carried_options())


@pytest.fixture
def made(objects: Objects) -> Callable[..., Lease]:
    """Makes a lease as another machine would: with a clock and a memory of its own."""

    def make(clock: Clock, seconds: float = SECONDS) -> Lease:
        lease = Lease(objects, LANE_LOCK, seconds, clock=clock, sightings=Sightings())
        lease._begin = lambda: None  # type: ignore[method-assign]  # renewed by the test, when it says so
        return lease

    return make


def test_conditional_puts_are_strict(objects: Objects) -> None:
    """The server, not the mirror: of many who write at once one succeeds, for each condition."""
    writers = 8

    def race(write: Callable[[int], str | None]) -> int:
        barrier, won = threading.Barrier(writers), []

        def one(number: int) -> None:
            barrier.wait()
            if write(number) is not None:
                won.append(number)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(won)

    created: Counter[int] = Counter()
    replaced: Counter[int] = Counter()
    for turn in range(40):
        created[race(lambda number, name=f"new-{turn}": objects.create(name, b"%d" % number))] += 1  # type: ignore[misc]
        found = objects.read("new-0")
        assert found is not None
        replaced[race(lambda number, etag=found.etag, turn=turn: objects.replace("new-0", b"%d %d" % (turn, number), etag))] += 1  # type: ignore[misc]
    assert (created, replaced) == ({1: 40}, {1: 40})


def test_a_free_lease_is_taken_and_a_released_one_too(made: Callable[..., Lease], objects: Objects) -> None:
    first, second = made(Clock()), made(Clock(5e6))
    assert first.take(0)
    first.check()
    assert not second.take(0)
    assert b'"pid"' in second.holder
    first.release()
    assert objects.read(LANE_LOCK) is not None and objects.read(LANE_LOCK).data == RELEASED  # type: ignore[union-attr]
    assert second.take(0)


def test_only_a_lease_that_was_seen_unchanged_for_its_whole_length_is_taken_over(made: Callable[..., Lease]) -> None:
    here, there = Clock(), Clock(-7e6)
    holder, waiter = made(here), made(there)
    assert holder.take(0)
    there.now += 1e6  # before it has looked: what passed then says nothing of the holder
    assert not waiter.take(0)
    there.now += SECONDS - 1
    assert not waiter.take(0)
    assert holder.renew()
    there.now += SECONDS - 1
    assert not waiter.take(0)
    there.now += SECONDS - 1
    assert not waiter.take(0)
    there.now += 1
    assert waiter.take(0)


def test_the_longer_lease_of_two_counts(made: Callable[..., Lease]) -> None:
    there = Clock()
    assert made(Clock(), SECONDS).take(0)
    waiter = made(there, SECONDS / 10)
    assert not waiter.take(0)
    there.now += SECONDS - 1
    assert not waiter.take(0)
    there.now += 1
    assert waiter.take(0)


def test_a_holder_stops_before_anybody_can_have_taken_over_and_goes_on_if_nobody_has(made: Callable[..., Lease]) -> None:
    clock = Clock()
    holder = made(clock)
    assert holder.take(0)
    clock.now += HELD_SHARE * SECONDS - 0.1
    holder.check()
    clock.now += 0.1
    with pytest.raises(BufferUnusable, match="could not be renewed in time") as stopped:
        holder.check()
    assert stopped.value.retryable
    assert not isinstance(stopped.value, LaneLost)
    clock.now += 10 * SECONDS
    assert holder.renew()
    holder.check()
    assert holder.left == pytest.approx(HELD_SHARE * SECONDS)


def test_a_holder_that_wakes_late_finds_that_it_is_none(made: Callable[..., Lease]) -> None:
    here, there = Clock(), Clock()
    holder, other = made(here), made(there)
    assert holder.take(0) and not other.take(0)
    there.now += SECONDS
    assert other.take(0)
    assert not holder.renew()
    with pytest.raises(LaneLost, match=r"was taken over by process \d+ on ") as lost:
        holder.check()
    assert lost.value.retryable
    assert holder.left == 0
    holder.release()  # must not release what is another's
    other.check()
    assert other.renew()


def test_of_two_who_take_over_one_succeeds(made: Callable[..., Lease]) -> None:
    there = Clock()
    assert made(Clock()).take(0)
    waiters = [made(there), made(there)]
    assert not any(waiter.take(0) for waiter in waiters)
    there.now += SECONDS
    really = Objects.read
    with pytest.MonkeyPatch.context() as patch:

        def overtaken(self: Objects, name: str) -> Found | None:
            """The other one takes it between this one's look and its write."""
            found = really(self, name)
            patch.undo()
            assert waiters[1].take(0)
            return found

        patch.setattr(Objects, "read", overtaken)
        assert not waiters[0].take(0)
    waiters[1].check()
    assert waiters[1].renew()


def test_a_renewal_whose_answer_was_lost_is_ours(made: Callable[..., Lease]) -> None:
    clock = Clock()
    holder = made(clock)
    assert holder.take(0)
    really = Objects.replace

    def lost(self: Objects, name: str, data: bytes, etag: str) -> str | None:
        assert really(self, name, data, etag) is not None
        raise StoreError("connection reset")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "replace", lost)
        with pytest.raises(StoreError):
            holder.renew()
    clock.now += SECONDS
    assert holder.renew()
    holder.check()


def test_nothing_is_left_of_a_lease_while_the_store_is_away(made: Callable[..., Lease], object_store: ObjectStore) -> None:
    clock = Clock()
    holder = made(clock)
    assert holder.take(0)
    object_store.kill()
    with pytest.raises(OSError):
        holder.renew()
    holder.check()  # there is still time
    clock.now += SECONDS
    with pytest.raises(BufferUnusable, match="could not be renewed"):
        holder.check()
    object_store.start()
    assert holder.renew()
    holder.check()


# A request may take a third of it, on a machine with other things to do as well.
LANE_SECONDS = 3.0


@pytest.fixture
def lane(object_store: ObjectStore) -> LaneStore:
    return open_lane(Settings(f"s3://{BUCKET}/buffer", lease=LANE_SECONDS), "m", "lane-0")


def test_a_lane_in_a_store_is_held_by_one_run_only(lane: LaneStore) -> None:
    with lane_lock(lane) as hold:
        assert 0 < hold.left <= LANE_SECONDS
        with pytest.raises(LaneBusy, match=r"lane m/lane-0 is held by process \d+ on .* since "), lane_lock(lane):
            pass
        with maintenance_lock(lane) as ours, maintenance_lock(lane) as theirs:
            assert (ours, theirs) == (True, False)
        hold.check()
    with lane_lock(lane, patience=0):
        pass


def test_a_lane_is_renewed_for_as_long_as_it_is_held(lane: LaneStore) -> None:
    waiting = threading.Event()
    with lane_lock(lane) as hold:
        for _ in range(5):
            waiting.wait(0.4 * LANE_SECONDS)
            hold.check()


def test_a_lane_whose_holder_died_is_free_after_its_lease(lane: LaneStore) -> None:
    lane.objects().create(LANE_LOCK, b'{"pid": 1, "host": "gone", "since": 0, "lease": 3.0}')
    lane.objects().create(MAINTENANCE, b"of an unknown version")
    with lane_lock(lane), maintenance_lock(lane, patience=LANE_SECONDS) as ours:
        assert ours


def test_when_maintenance_ran_last(lane: LaneStore) -> None:
    assert last_maintenance(lane) is None
    note_maintenance(lane)
    assert last_maintenance(lane) is not None

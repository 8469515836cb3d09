"""Single cases of a broker that forgets a producer (records older than producer.id.expiration.ms), told step by step.

The last one is what the protocol does not promise; docs/guarantees.md names it and the search leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mirror_pipeline.model import TopicPartition
from tests.model.broker import ModelPartition
from tests.model.invariants import Violation
from tests.model.machine import LaneMachine
from tests.model.source import Kind
from tests.model.world import TARGET_TOPIC

STEPS = 3000
FIRST = TopicPartition(TARGET_TOPIC, 0)


@pytest.fixture
def machine() -> Iterator[LaneMachine]:
    made = LaneMachine()
    made.begin(layouts=[[Kind.ONE] * 12, [Kind.ONE]], once=False, young=False)
    yield made
    made.world.close()


def until(machine: LaneMachine, reached: Callable[[], bool]) -> None:
    """Let everything move until the moment has come."""
    for number in range(STEPS):
        if reached():
            return
        machine.world.step(number)
        machine.holds()
    raise AssertionError("the moment never came")


def first_log(machine: LaneMachine) -> ModelPartition:
    return machine.world.target.logs[FIRST]


def forget(machine: LaneMachine) -> None:
    for log in machine.world.target.logs.values():
        log.producers.clear()


def test_of_old_records_no_two_batches_of_a_partition_are_on_their_way(machine: LaneMachine) -> None:
    """Else the broker could forget the producer, refuse the first and take the second in its place."""

    def several() -> bool:
        return any(sum(FIRST in batches for _, batches in c.requests) > 1 for c in machine.world.target.connections)

    until(machine, lambda: several() or first_log(machine).end == 12)
    assert not several()


def test_forgotten_while_the_last_batch_is_on_the_leader_alone(machine: LaneMachine) -> None:
    """Neither the log up to the high watermark nor DescribeProducers shows the batch."""
    machine.trouble("replicas fall behind")
    until(machine, lambda: first_log(machine).end > 0)
    until(machine, lambda: not machine.world.workers)  # they give up
    forget(machine)
    for number in range(STEPS // 10):
        machine.world.step(number)
        machine.holds()
    machine.come_to_rest()


@pytest.mark.parametrize("look", ["describe producers", "list offsets"])
def test_forgotten_between_two_looks_at_a_tail(machine: LaneMachine, look: str) -> None:
    """The replicas catch up behind one look, and the producer is forgotten before the next."""
    machine.trouble("replicas fall behind")
    until(machine, lambda: first_log(machine).end > 0)
    until(machine, lambda: not machine.world.workers)
    until(machine, lambda: any(p.where == look and p.name == "producing" for p in machine.world.processes))
    machine.trouble("replicas catch up")
    forget(machine)
    machine.come_to_rest()


def test_forgotten_while_a_sender_of_before_is_late(machine: LaneMachine) -> None:
    """A process that was stopped between its look at the lease and its send, for longer than lease and expiry: the limit."""
    until(machine, lambda: any(w.where == "send produce" for w in machine.world.workers))
    machine.kill_run(False)
    late = [w for w in machine.world.workers if w.where == "send produce"]
    for worker in late:
        worker.frozen = True
    machine.world.workers = []
    machine.start_run(once=True)
    until(machine, lambda: machine.run is not None and not machine.run.alive)
    assert first_log(machine).end == 12
    forget(machine)
    for worker in late:
        worker.frozen = False
    with pytest.raises(Violation, match="I4"):
        until(machine, lambda: False)

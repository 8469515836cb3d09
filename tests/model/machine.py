"""The search: what may happen, in any order. Faults stop at the end, and then everything must have arrived."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirror_pipeline.model import SpanRef, TopicPartition
from tests.model.broker import SEEN
from tests.model.cluster import Fault, ModelConnection
from tests.model.invariants import Violation, Watch, need
from tests.model.processes import Process
from tests.model.runs import ModelRun
from tests.model.source import Kind
from tests.model.trouble import APPLIED, REFUSED, SOURCE_TROUBLE, TROUBLE
from tests.model.world import HALTS, PARTITIONS, TARGET_TOPIC, TOPIC, World

LAYOUTS = st.lists(st.sampled_from([Kind.ONE, Kind.ONE, Kind.THREE, Kind.COMMITTED, Kind.ABORTED, Kind.COMPACTED]), min_size=1, max_size=12)
FINAL_STEPS, FINAL_RUNS = 6000, 4
SOURCE_SHARE = 0.15


class LaneMachine(RuleBasedStateMachine):
    """One lane, one run of it at a time (the lock), any number of workers that outlived their driver."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.watch = Watch(self.world)
        self.run: ModelRun | None = None
        self.verified: dict[int, int] = {}
        self.halted_on_purpose = False

    # -- what goes on -------------------------------------------------------------------------------------------------

    @initialize(layouts=st.lists(LAYOUTS, min_size=PARTITIONS, max_size=PARTITIONS), once=st.booleans(), young=st.booleans())
    def begin(self, layouts: list[list[Kind]], once: bool, young: bool) -> None:
        self.world.source.young = young
        for partition, layout in enumerate(layouts):
            self.world.kinds(partition, layout)
        self.run = ModelRun(self.world, once=once)

    @rule(steps=st.integers(1, 80), seed=st.integers(0, 2**16))
    def go_on(self, steps: int, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(steps):
            self.world.step(chance.randrange(64))
        self.world.workers = [w for w in self.world.workers if not w.done]

    @rule(steps=st.integers(20, 80), seed=st.integers(0, 2**16))
    def go_on_for_long(self, steps: int, seed: int) -> None:
        self.go_on(steps, seed)

    @rule(which=st.integers(0, 15), steps=st.integers(1, 12))
    def one_goes_on_alone(self, which: int, steps: int) -> None:
        for _ in range(steps):
            self.world.step(which)

    @rule(partition=st.integers(0, PARTITIONS - 1), layout=LAYOUTS)
    def source_grows(self, partition: int, layout: list[Kind]) -> None:
        self.world.kinds(partition, layout)

    @precondition(lambda self: self.run is None or not self.run.alive)
    @rule(once=st.booleans())
    def start_run(self, once: bool) -> None:
        if self.run is not None and self.run.failure is not None:
            self.judge_failure(self.run.failure)
        self.run = ModelRun(self.world, once=once)

    def judge_failure(self, failure: BaseException) -> None:
        """A run may end with an error only for what is in the world around it."""
        need(type(failure).__name__ in {"ClusterUnreachable", "ConnectionLost", "TaskLost"}, "I9", f"a run failed: {failure!r}")

    # -- what goes wrong with processes --------------------------------------------------------------------------------

    @precondition(lambda self: self.run is not None and self.run.alive)
    @rule(workers=st.booleans())
    def kill_run(self, workers: bool) -> None:
        assert self.run is not None
        SEEN["killed run"] += 1
        self.run.kill(workers=workers)

    @precondition(lambda self: bool(self.world.workers) and self.run is not None and self.run.alive)
    @rule(once=st.booleans(), steps=st.integers(20, 60), seed=st.integers(0, 2**16), stop=st.booleans())
    def leave_workers_to_the_next_run(self, once: bool, steps: int, seed: int, stop: bool) -> None:
        for left in self.world.workers if stop else []:
            left.frozen = True
        self.kill_run(False)
        self.run = ModelRun(self.world, once=once)
        self.go_on(steps, seed)

    @precondition(lambda self: any(w.frozen for w in self.world.workers))
    @rule()
    def stopped_workers_go_on(self) -> None:
        for worker in self.world.workers:
            SEEN["went on late"] += worker.frozen
            worker.frozen = False

    @precondition(lambda self: bool(self.world.workers))
    @rule(which=st.integers(0, 7), dies=st.booleans())
    def lose_worker(self, which: int, dies: bool) -> None:
        """A worker dies, or its driver only thinks so and its twin lives on."""
        lost = self.world.workers[which % len(self.world.workers)]
        lost.lost = True
        SEEN["lost worker"] += 1
        if dies:
            lost.kill()

    # -- what goes wrong with the target -------------------------------------------------------------------------------

    @rule(steps=st.integers(10, 80), seed=st.integers(0, 2**16), fault=st.sampled_from([*REFUSED, *APPLIED]))
    def go_on_badly(self, steps: int, seed: int, fault: Fault) -> None:
        """The broker now and then answers badly while everything moves."""
        chance = random.Random(seed)
        for _ in range(steps):
            busy = self.world.target.busy()
            if busy and chance.random() < 0.2:
                self.bad_answer(chance.choice(busy), fault)
            self.world.step(chance.randrange(64))
        self.world.workers = [w for w in self.world.workers if not w.done]

    def bad_answer(self, connection: ModelConnection, fault: Fault) -> None:
        self.halted_on_purpose |= fault.code in HALTS
        SEEN["answered badly" if fault.applied else "refused"] += 1
        connection.handle(fault)

    @precondition(lambda self: bool(self.world.target.connections))
    @rule(which=st.integers(0, 7), lose=st.booleans())
    def cut(self, which: int, lose: bool) -> None:
        """A connection breaks; what was sent is lost, or handled late."""
        connections = self.world.target.connections
        self.world.target.cut(connections[which % len(connections)], lose_requests=lose)

    @rule(what=st.sampled_from(sorted(TROUBLE)))
    def trouble(self, what: str) -> None:
        TROUBLE[what](self.world)

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def broker_forgets(self, partition: int) -> None:
        """Producer state expires by record time; test_model_limits.py shows when it must not."""
        tp = TopicPartition(TARGET_TOPIC, partition)
        log = self.world.target.logs[tp]
        late = any(c.closed and c.holds(tp) for c in self.world.target.connections)
        if not self.world.source.young and not late and not self.left_behind():
            SEEN["forgotten"] += len(log.producers)
            log.producers.clear()

    def left_behind(self) -> list[Process]:
        """Workers that may still send although nobody waits for them."""
        mine = self.run.runner.workers if self.run is not None and self.run.alive else []
        return [w for w in self.world.workers if not w.done and (w.lost or w not in mine)]

    # -- buffer life ---------------------------------------------------------------------------------------------------

    @rule()
    def verify(self) -> None:
        """Everything that is on the target for good has been compared."""
        self.verified = {partition: position.source_next for partition, position in self.watch.positions().items()}

    @rule(keep=st.sampled_from([0, 2000]), verified=st.booleans())
    def evict(self, keep: int, verified: bool) -> None:
        if verified:
            self.verify()
        table = self.run.context.spans if self.run is not None and self.run.alive else self.world.spans
        before = self.spans()
        ends = {
            (TOPIC, partition, "source-topic-id"): min(position.source_next, self.verified.get(partition, -1))
            for partition, position in self.watch.positions().items()
        }
        table.evict(table.produced(ends), target_bytes=keep)
        table.vacuum(grace=0.0)
        SEEN["evicted"] += len(before) - len(self.spans())
        self.watch.evicted([span for span in before if span not in set(self.spans())], self.verified)

    def spans(self) -> list[SpanRef]:
        return self.world.spans.spans()

    # -- all of it at once -----------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 2**32), length=st.integers(1, 25))
    def storm(self, seed: int, length: int) -> None:
        """One thing after the other, by chance alone: denser than the rules, which serve to tell a short story of a finding."""
        chance = random.Random(seed)
        for _ in range(length):
            self.weather(chance)
            self.holds()

    def twins(self, chance: random.Random) -> None:
        """A worker is stopped right before a send, and goes on when the next run has sent the same."""
        for _ in range(80):
            if any(worker.where == "send produce" for worker in self.world.workers):
                self.leave_workers_to_the_next_run(once=True, steps=150, seed=chance.randrange(2**16), stop=True)
                self.stopped_workers_go_on()
                return
            self.world.step(chance.randrange(64))

    def source_weather(self, chance: random.Random) -> None:
        """A little is written while leaders move or brokers hang: what was asked before is answered after it, or the other way round."""
        for _ in range(chance.randint(1, 4)):
            if chance.random() < 0.4:
                self.trouble(chance.choice(SOURCE_TROUBLE))
            self.source_grows(chance.randrange(PARTITIONS), [chance.choice(list(Kind)) for _ in range(chance.randint(1, 2))])
            self.go_on(chance.randint(1, 25), chance.randrange(2**16))

    def weather(self, chance: random.Random) -> None:
        dice, target, which, flag = chance.random(), self.world.target, chance.randrange(8), chance.random() < 0.5
        if self.run is None or not self.run.alive:
            self.start_run(flag)
        elif chance.random() < SOURCE_SHARE:
            self.source_weather(chance)
        elif dice < 0.4:
            self.go_on(chance.randint(1, 40), chance.randrange(2**16))
        elif dice < 0.6:
            self.go_on_badly(chance.randint(5, 40), chance.randrange(2**16), chance.choice([*REFUSED, *APPLIED]))
        elif dice < 0.66:
            self.broker_forgets(which % PARTITIONS)
        elif dice < 0.72 and target.connections:
            self.cut(which, flag)
        elif dice < 0.82:
            self.trouble(chance.choice(sorted(TROUBLE.keys() - set(SOURCE_TROUBLE))))
        elif dice < 0.87 and self.world.workers:
            self.lose_worker(which, flag)
        elif dice < 0.91 and self.world.workers:
            self.leave_workers_to_the_next_run(flag, chance.randint(20, 60), chance.randrange(2**16), chance.random() < 0.7)
        elif dice < 0.93:
            self.stopped_workers_go_on()
        elif dice < 0.96:
            self.twins(chance)
        elif dice < 0.97:
            self.kill_run(flag)
        elif dice < 0.985:
            self.evict(2000 if flag else 0, chance.random() < 0.5)
        else:
            self.source_grows(which % PARTITIONS, [chance.choice(list(Kind)) for _ in range(6)])

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        self.watch.look(self.run)
        if self.run is not None:
            for topic in self.run.context.state.topics.values():
                need(topic.halted is None or self.halted_on_purpose, "I9", f"halted without a reason: {topic.halted}")

    def teardown(self) -> None:
        try:
            if self.run is not None:
                self.come_to_rest()
        finally:
            self.world.close()

    def come_to_rest(self) -> None:
        """Faults stop; runs go on until nothing is left to do."""
        self.world.target.down = self.world.source.down = False
        TROUBLE["replicas catch up"](self.world)
        self.world.source.agree()
        self.world.source.silent.clear()
        self.stopped_workers_go_on()
        assert self.run is not None
        if not self.run.once:
            self.run.context.stop.set()
        self.finish(self.run)
        for _ in range(FINAL_RUNS):
            self.run = ModelRun(self.world, once=True)
            self.halted_on_purpose = False
            self.finish(self.run)
            if self.run.failure is None:
                break
            self.judge_failure(self.run.failure)
        self.watch.at_rest(self.run)

    def finish(self, run: ModelRun) -> None:
        for number in range(FINAL_STEPS):
            if not run.alive and not self.world.workers:
                break
            if not self.world.step(number * 7 + 3) and not run.alive:
                break
            self.watch.look(run)
        if run.alive:
            raise Violation(f"I9: nothing ends: {[(p.name, p.where) for p in self.world.processes]}")
        self.holds()


def story(seed: int, length: int = 40) -> None:
    """One storm from beginning to end, told again by its seed. Raises Violation."""
    chance = random.Random(seed)
    machine = LaneMachine()
    layouts = [[chance.choice(list(Kind)) for _ in range(chance.randint(1, 15))] for _ in range(PARTITIONS)]
    try:
        machine.begin(layouts=layouts, once=chance.random() < 0.5, young=chance.random() < 0.4)
        for _ in range(length):
            machine.weather(chance)
            machine.holds()
    except BaseException:
        machine.world.close()
        raise
    machine.teardown()

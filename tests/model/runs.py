"""A run of the lane in the model: the real preparation, staging and producing of one driver."""

from __future__ import annotations

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.permits import Permits
from mirror_pipeline.engine.driver.read.loop import ReadLoop
from mirror_pipeline.engine.driver.state import LaneState, PartitionState
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.engine.driver.topics.preparing import Preparing
from mirror_pipeline.engine.driver.write.loop import WriteLoop
from mirror_pipeline.execution.placement import Placement
from mirror_pipeline.model import Position
from mirror_pipeline.topics.lanes import LaneTopic
from tests.model.processes import ModelEvent, ModelLock, Process
from tests.model.world import TARGET_TOPIC, TOPIC, ModelRunner, World


class ModelRun:
    """One driver. ``killed`` as a whole: its threads together, its workers only if the fault says so."""

    def __init__(self, world: World, *, once: bool) -> None:
        self.world, self.once = world, once
        self.runner = ModelRunner(world)
        self.seen: dict[int, Position] = {}
        self.context = LaneContext(
            mirror=world.mirror,
            lane="lane-0",
            source=ClusterSettings("east", ("model:9092",)),
            target=ClusterSettings("west", ("model:9093",)),
            buffer=world.buffer,
            store=world.store,
            spans=SpanTable(world.store, durable=False),
            ledger=Ledger(world.store, durable=False),
            permits=Permits(Decisions(world.store, durable=False)),
            placement=Placement.only(self.runner),
            once=once,
            stop=ModelEvent(world.clock),  # type: ignore[arg-type]
            state=LaneState(lock=ModelLock(world.clock)),  # type: ignore[arg-type]
        )
        self.threads: list[Process] = [world.spawn("driver", self._drive)]

    def _drive(self) -> None:
        """What LaneRun does, without its watch and its heartbeat."""
        context, world = self.context, self.world
        context.spans.discard_uncommitted()
        preparation = Preparation(context)
        client = world.client(context.source)
        read_loop = ReadLoop(context, client, preparation.rules.reconsider)  # type: ignore[arg-type]
        preparation.start([LaneTopic(TOPIC, TARGET_TOPIC)])
        write_loop = WriteLoop(context, world.client(context.target))  # type: ignore[arg-type]
        read_loop.refresh_ends()
        preparing = Preparing(context, preparation, None, lambda began: began)

        def produce() -> None:
            write_loop.run()
            preparing.over.set()

        self.threads += [world.spawn("staging", read_loop.run), world.spawn("producing", produce), world.spawn("preparing", preparing.run)]

    @property
    def alive(self) -> bool:
        return any(not thread.done for thread in self.threads)

    @property
    def failure(self) -> BaseException | None:
        return self.context.state.failure or next((t.error for t in self.threads if t.error is not None), None)

    def partitions(self) -> list[PartitionState]:
        return [part for topic in self.context.state.topics.values() for part in topic.partitions.values()]

    def kill(self, *, workers: bool) -> None:
        for process in [*self.threads, *(self.runner.workers if workers else [])]:
            process.kill()

    def leave_workers(self) -> list[Process]:
        """Workers that live although nobody waits for them."""
        return [w for w in self.runner.workers if not w.done and (w.lost or not self.alive)]

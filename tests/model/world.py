"""The model's world: a source, a target, a buffer, and runs of the real engine between them.

Everything under ``mirror_pipeline.engine`` and ``mirror_pipeline.buffer`` is the real code. Modelled are the brokers, the
Delta logs, the clock, locks, and the processes, which move one at a time and can be killed at every pause.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import crash_points
from mirror_pipeline.buffer.ledger import ledger as ledger_module
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.spans import spans as spans_module
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import BufferConfig, ClusterSettings, EngineConfig, MirrorConfig, TopicSelection
from mirror_pipeline.engine.driver import plan
from mirror_pipeline.engine.driver.read import source as source_side
from mirror_pipeline.engine.driver.silent_brokers import SilentBrokers
from mirror_pipeline.engine.driver.topics import prepare, target
from mirror_pipeline.errors import TaskLost
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.kafka.client import readable
from mirror_pipeline.kafka.records import merge
from mirror_pipeline.model import Incarnation
from tests.model.cluster import REQUEST_TIMEOUT, ModelClient, ModelCluster
from tests.model.processes import Clock, ModelReadable, Process, pause
from tests.model.source import Kind, ModelSource
from tests.model.tables import ModelLog

TOPIC, TARGET_TOPIC, PARTITIONS = "t", "east.t", 2
LEASE = 60.0
HALTS = {10}  # codes that end a topic's run on purpose


class ModelAdmin:
    """Stands in for the admin client: one compacted topic without limits of its own."""

    def __init__(self, cluster: ClusterSettings, **_: object) -> None:
        self.cluster = cluster

    def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        from mirror_pipeline.kafka.cluster_info import ConfigValue

        policy = ConfigValue("compact")
        return {name: {"cleanup.policy": policy} for name in names}

    def broker_configs(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing to close."""


class ModelRunner:
    """Stands in for Spark: each task is a process of its own and may outlive its driver."""

    tasks = 2

    def __init__(self, world: World) -> None:
        self._world = world
        self.workers: list[Process] = []

    def run_each(self, function: Callable[[Any], Any], specs: Sequence[Any], *, name: str) -> list[Any]:
        mine = [self._world.spawn(f"{name}/{n}", partial(function, spec)) for n, spec in enumerate(specs)]
        self.workers += mine
        self._world.workers += mine
        pause(name, until=lambda: all(p.done or p.lost for p in mine))
        for worker_process in mine:
            if worker_process.error is not None and not worker_process.lost:
                raise worker_process.error
        return [TaskLost("model: a worker died") if p.lost or p.killed else p.result for p in mine]

    def run(self, function: Callable[[Any], Any], specs: Sequence[Any], *, name: str) -> list[Any]:
        answers = self.run_each(function, specs, name=name)
        for answer in answers:
            if isinstance(answer, TaskLost):
                raise answer
        return answers


class ModelSilentBrokers(SilentBrokers):
    """Probes find out at once who answers again, and need no threads."""

    def __init__(self, source: ModelCluster) -> None:
        super().__init__(lambda node: None, most=REQUEST_TIMEOUT)
        self._source = source

    @property
    def now(self) -> dict[int, str]:
        self._silent = {node: why for node, why in self._silent.items() if node in self._source.silent}
        return dict(self._silent)

    def _watch(self, node: int) -> None:
        """``now`` looks by itself."""


class World:
    """One example. Close it: its processes are threads."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.clock = Clock()
        self.folder = Path(tempfile.mkdtemp(prefix="mirror-model-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.processes: list[Process] = []
        self.workers: list[Process] = []
        self.source = ModelSource(self.clock, "east", TOPIC, PARTITIONS, "source-topic-id")
        self.target = ModelCluster(self.clock, "west", TARGET_TOPIC, PARTITIONS, "target-topic-id")
        self._stand_in()
        self.mirror = MirrorConfig(
            "m", "east", "west", TopicSelection((TOPIC,), ()),
            engine=EngineConfig(micro_batch_bytes=700, request_timeout=5.0, lease=LEASE, max_batch_age=5.0, target_wait=30.0),
        )  # fmt: skip
        self.buffer = BufferConfig(str(self.folder / "buffer"), durable=False)
        self.store: LaneStore = open_lane(self.buffer, "m", "lane-0")
        self.ledger, self.spans = Ledger(self.store, durable=False), SpanTable(self.store, durable=False)
        self.ledger.ensure()
        self.spans.ensure()
        starts = dict.fromkeys(range(PARTITIONS), 0)
        self.ledger.add_incarnation(
            Incarnation(TOPIC, "source-topic-id", "east-id", "west-id", TARGET_TOPIC, "target-topic-id", starts, starts, 1)
        )

    def _stand_in(self) -> None:
        """Put the model in the place of the world outside."""
        patch, chance = self.patch, random.Random(7)
        for name, module in list(sys.modules.items()):
            if name.startswith(("mirror_pipeline.engine.", "mirror_pipeline.buffer.")):
                if getattr(module, "time", None) is time:
                    patch.setattr(module, "time", self.clock)
                if getattr(module, "random", None) is random:
                    patch.setattr(module, "random", chance)
                if getattr(module, "readable", None) is readable:
                    patch.setattr(module, "readable", ModelReadable(self.clock))
                if getattr(module, "DeltaLog", None) is not None and module is not sys.modules[ModelLog.__mro__[1].__module__]:
                    patch.setattr(module, "DeltaLog", ModelLog)
        assert vars(ledger_module)["DeltaLog"] is vars(spans_module)["DeltaLog"] is ModelLog
        patch.setattr(ModelLog, "tables", {})
        for module in (prepare, target, worker_cache):
            patch.setattr(module, "WireClient", self.client)
        patch.setattr(source_side, "SilentBrokers", lambda *_, **__: ModelSilentBrokers(self.source))
        patch.setattr(prepare, "Admin", ModelAdmin)
        patch.setattr(target, "Admin", ModelAdmin)
        patch.setattr(plan, "LEAST_RANGE_BYTES", 200)
        patch.setattr(merge, "MERGED_RECORDS", 3)  # else a partition would be one batch
        patch.setattr(crash_points, "_NAMES", frozenset(crash_points.POINTS))
        patch.setattr(crash_points, "_reach", pause)

    def client(self, cluster: ClusterSettings, **_: object) -> ModelClient:
        return ModelClient(self.source if cluster.alias == "east" else self.target)

    def spawn(self, name: str, function: Callable[[], Any]) -> Process:
        process = Process(name, function)
        self.processes.append(process)
        return process

    def actors(self) -> list[Callable[[], None]]:
        """Everything that can happen next without a fault."""
        self.processes = [p for p in self.processes if not p.done]
        self.workers = [p for p in self.workers if not p.done]
        found: list[Callable[[], None]] = [p.step for p in self.processes if p.ready(self.clock.now)]
        self.source.connections = [c for c in self.source.connections if not c.closed]
        found += [connection.answer_held for connection in self.source.connections if connection.answerable()]
        return found + [connection.handle for connection in self.target.busy()]

    def step(self, which: int) -> bool:
        """Let one of them move; when nobody can, time passes until somebody wakes. False when all is at rest."""
        found = self.actors()
        if not found:
            wakes = [p.wake_at for p in self.processes if p.wake_at is not None and not p.frozen]
            if not wakes:
                return False
            self.clock.now = max(self.clock.now, min(wakes))
            return True
        self.clock.now += 0.001
        found[which % len(found)]()
        return True

    def kinds(self, partition: int, layout: Sequence[Kind]) -> None:
        """Records, transactions and holes appear on the source."""
        for kind in layout:
            self.source.add(partition, kind)

    def close(self) -> None:
        for process in [*self.processes]:
            process.kill()
        self.patch.undo()
        shutil.rmtree(self.folder, ignore_errors=True)

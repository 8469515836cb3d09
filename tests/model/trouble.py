"""What goes wrong around the lane, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.broker import SEEN
from tests.model.cluster import Fault, ModelCluster
from tests.model.world import LEASE, World

REFUSED = [Fault(code, applied=False, partition=p) for code in (6, 19, 3, 56, 10) for p in (None, 0)]
APPLIED = [Fault(code, applied=True, partition=p) for code in (7, 20, 6, 45) for p in (None, 1)]


SOURCE_TROUBLE = (
    "a source leader moves", "a source leader moves, the new one lags", "a source leader moves, the old one has not heard",
    "a source leader moves, the old one has not heard", "a source leader moves, the old one has not heard",
    "the source's brokers agree", "a source broker falls silent", "the source's brokers answer",
)  # fmt: skip


def _away(cluster: ModelCluster, *, lose: bool) -> None:
    cluster.down = True
    for connection in cluster.connections:
        cluster.cut(connection, lose_requests=lose)


def _set(cluster: ModelCluster, **changes: bool) -> None:
    for name, value in changes.items():
        setattr(cluster, name, value)


def _later(world: World, seconds: float) -> None:
    world.clock.now += seconds


TROUBLE: dict[str, Callable[[World], None]] = {
    "half a second passes": lambda world: _later(world, 0.5),
    "a request's time passes": lambda world: _later(world, 6.0),
    "a lease passes": lambda world: _later(world, LEASE + 1),
    "replicas fall behind": lambda world: _set(world.target, slow_replicas=True),
    "replicas catch up": lambda world: (_set(world.target, slow_replicas=False), world.target.replicate())[0],
    "the leader stops waiting: 7": lambda world: world.target.time_out(7),
    "the leader stops waiting: 20": lambda world: world.target.time_out(20),
    "another leader": lambda world: (SEEN.update(["failed over"]), world.target.fail_over())[0],
    "the target goes": lambda world: _away(world.target, lose=False),
    "the target comes": lambda world: _set(world.target, down=False),
    "the source goes": lambda world: _away(world.source, lose=True),
    "the source comes": lambda world: _set(world.source, down=False),
    "a source leader moves": lambda world: world.source.move(),
    "a source leader moves, the new one lags": lambda world: world.source.move(lags=True),
    "a source leader moves, the old one has not heard": lambda world: world.source.move(unaware=True),
    "the source's brokers agree": lambda world: world.source.agree(),
    "a source broker falls silent": lambda world: world.source.hush(),
    "the source's brokers answer": lambda world: world.source.silent.clear(),
}

"""Changes of a source (or target) topic that a mirror does not control, each as a class: prepare, strike, mend, expect."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Producer

from mirror_pipeline.kafka.records.batch import headers
from mirror_pipeline.model import HoleCause
from tests.faults.ground import Ground

OLD_SECONDS = 3 * 86400.0
SMALL_MAX = 50_000
HUGE = 120_000


class Hazard:
    """One topic and its misfortune.

    ``code`` is the halt expected of the run after the strike, "" for none, "*" for any. ``accept`` says that
    `mirror resolve` ends it; otherwise ``mend`` does. ``causes`` are the gaps that must be on record at the end.
    """

    name: ClassVar[str] = ""
    mirror: ClassVar[str] = "m"
    code: ClassVar[str] = ""
    accept: ClassVar[bool] = False
    causes: ClassVar[frozenset[HoleCause]] = frozenset()
    partitions: ClassVar[int] = 2
    configs: ClassVar[dict[str, Any]] = {}

    def __init__(self, ground: Ground, number: int, chance: random.Random) -> None:
        self.ground, self.chance = ground, chance
        self.topic = f"{'load' if self.mirror == 'm' else 'gap'}-{self.name}-{number}"
        self.expected: dict[int, list[str]] = defaultdict(list)
        self._next = 0

    @property
    def target(self) -> str:
        """Its name on the target."""
        return f"east.{self.topic}"

    def put(self, count: int = 60, *, partitions: int | None = None, size: int = 100, age: float = 0.0, key: bool = True) -> None:
        """Put records into all partitions in turn; they are expected on the target."""
        wide = partitions or self.partitions
        for values in self.values(count, wide, size=size, age=age, key=key):
            self.expected[values[0]].append(values[1])

    def values(self, count: int, wide: int, *, size: int = 100, age: float = 0.0, key: bool = True) -> list[tuple[int, str]]:
        """Put records; (partition, value's name) of each. A size that is large comes uncompressible."""
        rows = []
        for _ in range(count):
            name = f"{self.topic}/{self._next}"
            rows.append((self._next % wide, name))
            self.ground.put(self.topic, rows[-1][0], name, size=size, age=age, key=f"k{self._next}" if key else None)
            self._next += 1
        self.ground.flush()
        return rows

    def prepare(self) -> None:
        """Before the first run."""
        self.ground.create(self.topic, self.partitions, **self.configs)
        self.put()

    def strike(self) -> None:
        """After the first run, while no run is in progress."""

    def cut(self, data: Path) -> None:
        """While the source is down; ``data`` is its log folder."""

    def rise(self) -> None:
        """When the source is up again, before the second run."""

    def during(self) -> None:
        """During the second run."""

    def mend(self) -> None:
        """After the second run."""

    def more(self) -> None:
        """Before the last run."""
        self.put(20)

    def judge(self, target: dict[int, list[str]]) -> dict[int, list[str]]:
        """What the target must hold, seeing what it holds."""
        return self.expected


class Trimmed(Hazard):
    """DeleteRecords while the mirror has lag."""

    name, code, accept, causes = "trimmed", "trimmed", True, frozenset({HoleCause.RETENTION})

    def strike(self) -> None:
        late = self.values(self.chance.randint(20, 100), self.partitions)
        firsts = {p: len(self.expected[p]) for p in range(self.partitions)}
        counts = {p: sum(1 for q, _ in late if q == p) for p in firsts}
        cuts = {p: self.chance.randint(1, counts[p]) for p in firsts}
        self.ground.trim(self.topic, {p: firsts[p] + cut for p, cut in cuts.items()})
        for partition in firsts:
            self.expected[partition] += [name for p, name in late if p == partition][cuts[partition] :]
        self.put(30)


class TrimmedGap(Trimmed):
    """The same with ``on_loss: record_gap``: on, and a gap row."""

    name, mirror, code, accept = "trimmed-gap", "g", "", False


class Recreated(Hazard):
    """Deleted and created again under the same name."""

    name, code, accept = "recreated", "recreated", True

    def strike(self) -> None:
        self.ground.delete(self.topic)
        self.ground.create(self.topic, self.partitions)
        self.put(self.chance.choice((10, 200)))


class TargetRecreated(Hazard):
    """The target topic was deleted and created again: all is copied once more."""

    name, code, accept = "target-recreated", "target_recreated", True

    def strike(self) -> None:
        self.ground.delete(self.target, target=True)
        self.ground.create(self.target, self.partitions, target=True)
        self.put(10)


class Truncated(Hazard):
    """The end of the log is gone after a crash; half the time new records have taken its place."""

    name, code, accept, causes, partitions = "truncated", "truncated", True, frozenset({HoleCause.TRUNCATION}), 1

    def prepare(self) -> None:
        self.ground.create(self.topic, self.partitions)
        for _ in range(6):
            self.put(10)

    def cut(self, data: Path) -> None:
        log = data / f"{self.topic}-0" / "00000000000000000000.log"
        content = log.read_bytes()
        places = [at for at, _ in headers(memoryview(content))]
        log.write_bytes(content[: places[self.chance.randrange(len(places) // 2, len(places))]])

    def rise(self) -> None:
        if self.chance.random() < 0.5:
            self.put(120)


class Grown(Hazard):
    """More partitions, during a run, with records in them at once."""

    name = "grown"

    def during(self) -> None:
        self.ground.grow(self.topic, 4)
        self.put(100, partitions=4)

    def more(self) -> None:
        self.put(40, partitions=4)


class Oversize(Hazard):
    """A record that the target's max.message.bytes does not let in."""

    name, code, accept, causes = "oversize", "oversize", True, frozenset({HoleCause.QUARANTINED})

    def strike(self) -> None:
        self.ground.configure(self.target, {"max.message.bytes": str(SMALL_MAX)})
        self.put(20)
        self.values(1, 1, size=HUGE)
        self.put(20)


class OversizeGap(Oversize):
    """The same with ``on_loss: record_gap``."""

    name, mirror, code, accept = "oversize-gap", "g", "", False


class OversizeMended(Hazard):
    """The same, and the target's limit is raised."""

    name, code = "oversize-mended", "oversize"

    def strike(self) -> None:
        self.ground.configure(self.target, {"max.message.bytes": str(SMALL_MAX)})
        self.put(1, size=HUGE)
        self.put(20)

    def mend(self) -> None:
        self.ground.configure(self.target, {"max.message.bytes": "2000000"})


class OversizeCompacted(OversizeMended):
    """The same on a compacted topic, where a missing offset looks like nothing unusual."""

    name, configs = "oversize-compacted", {"cleanup.policy": "compact"}


class Hanging(Hazard):
    """An open transaction blocks all later records; then it is committed or aborted."""

    name = "hanging"
    _client: Producer | None = None

    def strike(self) -> None:
        self._client = self.ground.transaction(self.topic)
        self._held = [(n % self.partitions, f"{self.topic}/held/{n}") for n in range(20)]
        for partition, name in self._held:
            self._client.produce(self.topic, name.encode() + b" x", b"k", partition)
        self._client.flush(30)
        self._later = self.values(20, self.partitions)

    def mend(self) -> None:
        assert self._client is not None
        shown = self.ground.names(self.target)
        early = [name for _, name in self._held + self._later if any(name in values for values in shown.values())]
        if early:
            self.ground.account.unexplain(f"{self.topic}: {len(early)} records copied past the last stable offset: {early[:3]}")
        if self.chance.random() < 0.5:
            self._client.commit_transaction(30)
            kept = self._held + self._later
        else:
            self._client.abort_transaction(30)
            kept = self._later
        for partition, name in kept:
            self.expected[partition].append(name)


class Keyless(Hazard):
    """A keyless record for a compacted target topic: refused until the user decides about the policy."""

    name, code = "keyless", "*"

    def strike(self) -> None:
        self.ground.configure(self.target, {"cleanup.policy": "compact"})
        self.put(10)
        self.put(3, key=False)
        self.put(10)

    def mend(self) -> None:
        self.ground.configure(self.target, {"cleanup.policy": "delete"})


class Old(Hazard):
    """Records older than the target's retention: said before, deleted there, and nothing is upset by it."""

    name = "old"

    def strike(self) -> None:
        self.ground.configure(self.target, {"retention.ms": "3600000"})
        self.put(60, age=OLD_SECONDS)

    def mend(self) -> None:
        self.ground.configure(self.target, {"retention.ms": "-1"})

    def judge(self, target: dict[int, list[str]]) -> dict[int, list[str]]:
        """The target may have deleted from the front; what is left must be the end of what was sent."""
        return {p: names[len(names) - len(target.get(p, [])) :] for p, names in self.expected.items()}


KINDS: tuple[type[Hazard], ...] = (
    Trimmed, TrimmedGap, Recreated, TargetRecreated, Truncated, Grown,
    Oversize, OversizeGap, OversizeMended, OversizeCompacted, Hanging, Keyless, Old,
)  # fmt: skip

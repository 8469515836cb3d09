"""A facade that answers from memory: what the commands see instead of clusters."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mirror_pipeline import Mirror
from mirror_pipeline.cli.load import LoadedConfig
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.model import Gap, HoleCause
from mirror_pipeline.operations.state.health import Health, health_of
from mirror_pipeline.reports import (
    BackfillReport,
    BufferUse,
    CarriedGroup,
    Excluded,
    Finding,
    GroupsReport,
    LaneStatus,
    MappedRange,
    MirrorPlan,
    MirrorStatus,
    Progress,
    RunReport,
    TopicPlan,
    TopicProgress,
    TopicState,
    Translation,
)
from mirror_pipeline.verdicts import PartitionVerdict, TopicVerdict, VerifyReport
from mirror_pipeline.verify.repair import RepairedRecord, RepairReport

PLAN = MirrorPlan(
    "m",
    (TopicPlan("orders", "east.orders", 12, 1_234_567, 93_400_000, ("create east.orders with 12 partitions",), ("no ACLs read",)),),
    (Excluded("__consumer_offsets", "internal topic"),),
)
LAG = MirrorLag("m", (TopicLag("orders", "east.orders", (PartitionLag(0, 10, 110, 60, 100), PartitionLag(1, 5, 5, 5, 0)), 12.0),), 12.0)
HALTED = TopicState("pay", "halted", "record too large", "raise it")
USE = BufferUse(1_500_000, 20_000, 300_000, 0, 60, 12, 40, 700_000, 30.0, 60.0, "the cap is reached", 80.0, "not verified: no broker")
LANE = LaneStatus("0", "running", 90.0, 4711, "host", 40.0, (HALTED,), 3, 5, 6, 1.0, 2e6, 70.0, buffer=USE)
STATUS = MirrorStatus("m", "east", "west", (LANE,), 45_000_000_000, 50_000_000_000, 77, 7_700, 2)
GAP = Gap("m", "orders", 3, "id", 100, 150, HoleCause.RETENTION, "on_loss: record_gap", 1_700_000_000_000)

PARTITION = PartitionVerdict(0, 0, 900, 900, 1, "aa", "bb", 7)
VERDICT = TopicVerdict("m", "orders", "east.orders", "identical", 900, 1, 90_000_000, 7, 0, (PARTITION,))
PROOF = VerifyReport((VERDICT,), (), 2.0)
REPAIRED = (RepairedRecord(0, 71, "missing", "written", 0), RepairedRecord(0, 90, "altered", "already there", 4))
REPAIR = RepairReport("m", "orders", "east.orders", "east.orders.repair", False, REPAIRED)


def run_report(mirror: str = "m", state: str = "ok", topic: str = "ok", reason: str = "", hint: str = "") -> RunReport:
    row = TopicState("orders", topic, reason, hint, "east.orders", 1_234_567, 93_400_000)
    return RunReport(mirror, state, 1_234_567, 93_400_000, 1.0, (row,), micro_batches=2, session_seconds=5.0)


def progress(mirror: str = "m", **facts: Any) -> Progress:
    base: dict[str, Any] = {"records": 500, "bytes": 5_000_000, "total_records": 1000, "lag_records": 500, "seconds": 1.0}
    made = Progress(mirror, "0", **(base | facts))
    made.topics.setdefault("orders", TopicProgress("east.orders"))
    return made


@dataclass
class FakeMirror:
    """Answers given beforehand; ``calls`` remembers what was asked."""

    name: str = "m"
    the_plan: MirrorPlan = PLAN
    findings: list[Finding] = field(default_factory=lambda: [Finding("java", True, "17.0.19")])
    the_proof: VerifyReport = PROOF
    the_repair: RepairReport = REPAIR
    the_undelivered: MirrorLag = MirrorLag("m", (), None)
    the_gaps: list[Gap] = field(default_factory=list)
    on_run: Callable[..., RunReport] | None = None
    error: BaseException | None = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def _answer(self, call: str, value: Any, **facts: Any) -> Any:
        self.calls.append((call, facts))
        if self.error is not None:
            raise self.error
        return value

    def plan(self) -> MirrorPlan:
        return self._answer("plan", self.the_plan)

    def check(self) -> list[Finding]:
        return self._answer("check", self.findings)

    def lag(self) -> MirrorLag:
        return self._answer("lag", LAG)

    def undelivered(self) -> MirrorLag:
        self.calls.append(("undelivered", {}))
        return self.the_undelivered

    def health(self, max_age: float | None = None) -> Health:
        return health_of(self.status(), time.time(), max_age)

    def status(self) -> MirrorStatus:
        return self._answer("status", STATUS)

    def gaps(self) -> list[Gap]:
        return self._answer("gaps", self.the_gaps)

    def evict(self) -> list[dict[str, Any]]:
        return self._answer("evict", [{"lane": "0", "micro_batches": 3, "freed_bytes": 1_500_000}])

    def run(self, **facts: Any) -> RunReport:
        self._answer("run", None, **facts)
        return self.on_run(**facts) if self.on_run else run_report(self.name)

    def backfill(self, topic: str, start: int, end: int, /, **facts: Any) -> BackfillReport:
        self._answer("backfill", None, topic=topic, start=start, end=end, **facts)
        return BackfillReport(self.name, topic, facts["into"] or f"east.{topic}", start, end, {0: (10, 20)}, run_report(self.name))

    def translate(self, topic: str, **facts: Any) -> tuple[Translation, ...]:
        return self._answer("translate", (Translation("m", topic, f"east.{topic}", 0, 1, 4711, None, "not_there_yet", "not yet"),), **facts)

    def offset_map(self, topic: str | None = None) -> tuple[MappedRange, ...]:
        return self._answer("offset_map", (MappedRange("m", "orders", "east.orders", 3, 2, True, 0, 10, 5_000, 7, 4_990, 4_983, 3),))

    def groups(self) -> GroupsReport:
        row = CarriedGroup("m", "billing", "orders", 3, 4711, 4600, 90, 0, "active_on_target", "the group has members on the target")
        return self._answer("groups", GroupsReport("m", (row,), ("no round has run yet",)))

    def verify(self, **facts: Any) -> VerifyReport:
        return self._answer("verify", self.the_proof, **facts)

    def repair(self, topic: str, /, **facts: Any) -> RepairReport:
        return self._answer("repair", self.the_repair, topic=topic, **facts)

    def external(self, *clusters: Any, **facts: Any) -> VerifyReport:
        return self._answer("external", self.the_proof, clusters=clusters, **facts)


def opened(*mirrors: FakeMirror, session: Callable[[], Any] = lambda: "spark") -> LoadedConfig:
    by_name = {mirror.name: mirror for mirror in mirrors}
    get = cast(Callable[[str], Mirror], by_name.__getitem__)
    return LoadedConfig(Path("mirror.yaml"), tuple(by_name), get, session, mirrors[0].external)


def until_stopped(stop: threading.Event, timeout: float = 30.0) -> bool:
    """Wait as a run without end does; False if it was not stopped in time."""
    deadline = time.monotonic() + timeout
    while not stop.is_set() and time.monotonic() < deadline:
        stop.wait(0.05)
    return stop.is_set()


@dataclass(frozen=True)
class Ended:
    """The result of one call of the command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)


Cli = Callable[..., Ended]

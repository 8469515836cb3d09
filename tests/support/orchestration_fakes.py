"""A mirror that moves numbers in memory, and a resource that hands it out."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mirror_pipeline.config.settings import EngineConfig, MirrorConfig, TopicSelection
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.orchestration.project import KnownMirror, KnownTopic, Project, read_project
from mirror_pipeline.orchestration.resource_types import MirrorsResource, SparkSessionResource
from mirror_pipeline.reports import BackfillReport, LaneStatus, MirrorStatus, Progress, RunReport, TopicProgress, TopicState
from mirror_pipeline.verdicts import Difference, TopicVerdict, VerifyReport

NAME = "east-to-west"
PROJECT = "this"


def topic_lag(topic: str, lag: int, *, position: int = 100, seconds: float | None = 1.5) -> TopicLag:
    return TopicLag(topic, f"east.{topic}", (PartitionLag(0, position, position + lag, position, lag),), seconds if lag else 0.0)


def mirror_lag(**lags: int) -> MirrorLag:
    return MirrorLag(NAME, tuple(topic_lag(name, lag) for name, lag in sorted(lags.items())), 1.5)


def lane_status(**facts: Any) -> LaneStatus:
    values: dict[str, Any] = {
        "lane": "lane-0", "state": "running", "heartbeat": time.time(), "pid": 1, "host": "elsewhere", "started": time.time(), "topics": (),
        "micro_batches": 1, "records": 1, "bytes": 1, "records_per_second": 1.0, "bytes_per_second": 1.0,
    }  # fmt: skip
    return LaneStatus(**{**values, **facts})


def known(*topics: str, lanes: int = 1, name: str = NAME) -> KnownMirror:
    config = MirrorConfig(name, "east", "west", TopicSelection((".*",)), lanes=lanes)
    return KnownMirror(config, tuple(KnownTopic(t, f"east.{t}", f"lane-{n % lanes}", 3) for n, t in enumerate(topics)), project=PROJECT)


@dataclass
class FakeMirror:
    """Returns prepared answers; ``script`` drives a run: it gets the observer, the stop event and the wanted topics."""

    lag_answer: MirrorLag | Exception = field(default_factory=lambda: mirror_lag(orders=0))
    staged: MirrorLag = field(default_factory=lambda: mirror_lag(orders=0))
    lanes_answer: tuple[LaneStatus, ...] = ()
    script: Callable[[Callable[[Progress], None], threading.Event], None] | None = None
    halted: dict[str, tuple[str, str]] = field(default_factory=dict)
    run_error: Exception | None = None
    catalogue: Any = None
    records: dict[str, int] = field(default_factory=lambda: {"orders": 5})
    calls: list[dict[str, Any]] = field(default_factory=list)
    lanes: list[str] = field(default_factory=lambda: ["lane-0"])
    states: dict[str, str] = field(default_factory=dict)

    def lag(self) -> MirrorLag:
        if isinstance(self.lag_answer, Exception):
            raise self.lag_answer
        return self.lag_answer

    def undelivered(self) -> MirrorLag:
        return self.staged

    def status(self) -> MirrorStatus:
        return MirrorStatus(NAME, "east", "west", self.lanes_answer, 0, 1, 0, 0, 0)

    def evict(self) -> list[dict[str, Any]]:
        self.calls.append({"call": "evict"})
        return [{"lane": "lane-0", "freed_bytes": 7}]

    def refresh_catalogue(self) -> Any:
        if isinstance(self.catalogue, Exception):
            raise self.catalogue
        return self.catalogue

    def picture(self, *, part: float = 1.0, seconds: float = 2.0) -> Progress:
        topics = {
            t: TopicProgress(f"east.{t}", int(n * part), int(n * part) * 10, n - int(n * part), {0: int(n * part)}, {0: n})
            for t, n in self.records.items()
        }
        for topic, (reason, hint) in self.halted.items():
            topics[topic] = TopicProgress(f"east.{topic}", 0, 0, 9, {0: 0}, {0: 9}, "halted", reason, hint, "trimmed")
        done = sum(t.records for t in topics.values())
        return Progress(
            NAME, "lane-0", done, done * 10, micro_batches=3, seconds=seconds, seconds_staging=1.0, seconds_producing=0.5, topics=topics
        )

    def report(self) -> RunReport:
        last = self.picture()
        states = tuple(TopicState(n, t.state, t.reason, t.hint, t.target_topic, t.records, t.bytes) for n, t in last.topics.items())
        return RunReport(NAME, "halted" if self.halted else "ok", last.records, last.bytes, 2.0, states, micro_batches=3)

    def run(self, *, observer: Callable[[Progress], None], stop: threading.Event, **rest: Any) -> RunReport:
        self.calls.append({"call": "run", "thread": threading.current_thread(), **rest})
        if self.run_error is not None:
            raise self.run_error
        if self.script is not None:
            self.script(observer, stop)
        observer(self.picture())
        return self.report()

    def verify(self, **options: Any) -> VerifyReport:
        self.calls.append({"call": "verify", "thread": threading.current_thread(), **options})
        if self.run_error is not None:
            raise self.run_error
        row = TopicVerdict(NAME, "orders", "east.orders", "different", 5, 1, 50, 2, 1, ())
        good = TopicVerdict(NAME, "pay", "east.pay", "identical", 7, 1, 70, 0, 0, ())
        closed = TopicVerdict(NAME, "closed", "east.closed", "unreadable", 0, 0, 0, 0, 0, (), "the source topic cannot be read")
        return VerifyReport((row, good, closed), (Difference("missing", "orders", 0, 3, None),), 1.5)

    def backfill_target(self, topic: str) -> str:
        return f"east.{topic}.backfill"

    def backfill(self, topic: str, from_time: int, to_time: int, *, into: str | None, **rest: Any) -> BackfillReport:
        self.calls.append({"call": "backfill", "topic": topic, "from": from_time, "to": to_time, "into": into, **rest})
        if self.run_error is not None:
            raise self.run_error
        return BackfillReport(NAME, topic, into or f"east.{topic}", from_time, to_time, {0: (10, 30), 1: (4, 4)}, self.report())


class FakeMirrors(MirrorsResource):
    """Mirrors by name, from memory."""

    config_path: str = "nowhere"
    fakes: ClassVar[dict[str, FakeMirror]] = {}

    def mirror(self, name: str) -> Any:
        return self.fakes[name]

    def opened(self, name: str) -> Any:
        return self.mirror(name), self.engine(name)

    def engine(self, name: str) -> EngineConfig:
        return EngineConfig()

    def lanes_of(self, name: str, topics: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "lane-0")

    def states_of(self, name: str, topics: Collection[str]) -> dict[str, str]:
        return {topic: state for topic, state in self.fakes[name].states.items() if topic in topics}


class NoSpark(SparkSessionResource):
    """No session at all."""

    def session_for(self, engine: EngineConfig) -> Any:
        return "session"


def write_project(folder: Path, topics: Collection[str] | None, *, lanes: int = 1) -> Project:
    """A real mirror.yaml and, unless ``topics`` is None, a real catalogue."""
    (folder / ".mirror").mkdir(exist_ok=True)
    path = folder / "mirror.yaml"
    path.write_text(
        "clusters:\n  east: {bootstrap_servers: '127.0.0.1:1'}\n  west: {bootstrap_servers: '127.0.0.1:2'}\n"
        f"mirrors:\n  - {{name: {NAME}, source: east, target: west, topics: {{include: ['.*']}}, lanes: {lanes}}}\n"
    )
    if topics is not None:
        rows = [{"name": t, "target_topic": f"east.{t}", "partitions": 3, "topic_id": "id"} for t in sorted(topics)]
        body = {"version": 1, "mirror": NAME, "refreshed_at": 1, "source_cluster_id": "c", "topics": rows, "excluded": []}
        (folder / ".mirror" / f"{NAME}.catalogue.json").write_text(json.dumps(body))
    return read_project(path)

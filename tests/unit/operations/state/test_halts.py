"""What `lag`, `plan` and `check` know of halted topics: real ledgers and status files, and a source that answers from memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lane_file import LaneFile, write_lane_file
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import BufferConfig
from mirror_pipeline.kafka.answers import EARLIEST_TIME, ClusterMetadata, OffsetAnswer, PartitionMetadata, TopicMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.lags import PartitionLag, TopicLag
from mirror_pipeline.model import Decision, DecisionKind, Incarnation, TopicPartition
from mirror_pipeline.operations.state.cluster_view import ClusterView
from mirror_pipeline.operations.state.halts import HaltLook
from mirror_pipeline.operations.state.ledger_view import ledger_view
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import Progress, TopicProgress
from mirror_pipeline.topics.lanes import Selected

LIFE = Incarnation("t", "now", "east-id", "west-id", "east.t", "target-id", {0: 10}, {0: 0}, 1)
HERE = TopicPartition("t", 0)
GONE = 3


@dataclass
class Cluster:
    """Answers of a cluster with one topic of one partition, whose log is ``[start, end)``; ``ends`` are given one after the other."""

    cluster_id: str = "east-id"
    topic_id: str = "now"
    start: int = 0
    end: int = 100
    error: int = 0
    ends: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def metadata(self, topics: Iterable[str]) -> ClusterMetadata:
        self.asked.append("metadata")
        part = {} if self.error else {0: PartitionMetadata(1, 1, (1,), (1,), 0)}
        found = {name: TopicMetadata(name, "" if self.error else self.topic_id, self.error, False, part) for name in topics}
        return ClusterMetadata(self.cluster_id, 1, {1: ("here", 1)}, found)

    def list_offsets(self, wanted: Mapping[TopicPartition, int], *, isolation: int = 1) -> dict[TopicPartition, OffsetAnswer]:
        self.asked += ["offsets"] * len(wanted)
        return {tp: OffsetAnswer(self.start if at == EARLIEST_TIME else self._end(), -1, 0) for tp, at in wanted.items()}

    def forget(self, tp: TopicPartition) -> None:
        self.asked.append("forget")

    def _end(self) -> int:
        return self.ends.pop(0) if self.ends else self.end


def view_of(cluster: Cluster) -> ClusterView:
    return ClusterView("east", lambda: cast(WireClient, nullcontext(cluster)), lambda: pytest.fail("no question about names or settings"))


def look_at(store: LaneStore, cluster: Cluster | None = None, target: str = "east.t", on_loss: str = "halt") -> HaltLook:
    """A look at a mirror that selects the topic and whose clusters, both of them, are this one."""
    settings = SimpleNamespace(naming="prefix", source="east", on_loss=on_loss, topics=SimpleNamespace(on_source_delete="halt"))
    view = view_of(cluster or Cluster())
    snapshot = SimpleNamespace(
        flow=SimpleNamespace(name="m", settings=settings), ledger=ledger_view([store]), selected=Selected({"t": target}, ()),
        turned_away=lambda _: {}, source=view, target=view,
    )  # fmt: skip
    return HaltLook(cast(Snapshot, snapshot))


@pytest.fixture
def store(tmp_path: Path) -> LaneStore:
    made = open_lane(BufferConfig(str(tmp_path / "buffer"), durable=False), "m", "lane-0")
    SpanTable(made, durable=False).ensure()
    ledger = Ledger(made, durable=False)
    ledger.ensure()
    ledger.add_incarnation(LIFE)
    return made


def wrote(
    store: LaneStore, topic: TopicProgress, state: str = "finished", *, age: float = 0.0, message: str = "", target_down: str = "",
    source_down: str = "",
) -> None:  # fmt: skip
    """What a run leaves behind."""
    progress = Progress("m", "lane-0", topics={"t": topic}, target_down=target_down, source_down=source_down)
    write_lane_file(store, LaneFile(progress, state, message, heartbeat=time.time() - age))


def ran(store: LaneStore, state: str = "finished", *, age: float = 0.0, message: str = "") -> None:
    """What a run leaves behind that went well with its topic."""
    wrote(store, TopicProgress("east.t"), state, age=age, message=message)


def stopped(store: LaneStore, code: str) -> None:
    """What a run leaves behind that left the topic halted."""
    wrote(store, TopicProgress("east.t", state="halted", reason="it cannot go on", hint="mend it", code=code))


def waits(store: LaneStore, state: str = "running", target_down: str = "", source_down: str = "") -> TopicLag:
    """The lag beside the status of a run that waits for the topic."""
    topic = TopicProgress("east.t", state="behind", reason="NOT_ENOUGH_REPLICAS", hint="bring the brokers up")
    wrote(store, topic, state, target_down=target_down, source_down=source_down)
    row = TopicLag("t", "east.t", (PartitionLag(0, 10, 12, 10, 2),), 3.0)
    (shown,) = look_at(store).shown({"t": row})
    return shown


def test_a_topic_that_a_lane_waits_for_says_why_and_what_to_do(store: LaneStore) -> None:
    row = waits(store)
    assert (row.state, row.reason, row.hint, row.lag_records) == ("behind", "NOT_ENOUGH_REPLICAS", "bring the brokers up", 2)
    for other in (waits(store, "finished"), waits(store, target_down="no broker answers"), waits(store, source_down="none answers")):
        assert (other.state, other.reason) == ("ok", "")


def decide(store: LaneStore, kind: DecisionKind, start: int = 0, end: int = 0, subject: str = "") -> None:
    at = int(time.time() * 1000) + 1000
    Decisions(store, durable=False).add([Decision("t", 0, "now", kind, start, end, subject, "me", at)])


def look(store: LaneStore, source: Cluster, target: str = "east.t", on_loss: str = "halt") -> dict[str, tuple[str, str]]:
    seen = look_at(store, source, target, on_loss)
    seen.at_source()
    return {name: (halt.code, halt.hint) for name, halt in seen.halts.items()}


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (Cluster(), None),
        (Cluster(start=10), None),
        (Cluster(start=11), "trimmed"),
        (Cluster(end=9), "truncated"),
        (Cluster(topic_id="other"), "recreated"),
        (Cluster(cluster_id="north-id"), "other_cluster"),
        (Cluster(error=GONE), "source_gone"),
        (Cluster(error=5), None),
    ],
)
def test_what_a_look_at_the_source_shows(store: LaneStore, source: Cluster, code: str | None) -> None:
    ran(store)
    assert [said for said, _ in look(store, source).values()] == ([code] if code else [])


def test_a_renamed_target_is_seen_without_a_run(store: LaneStore) -> None:
    assert look(store, Cluster(), target="west.t")["t"][0] == "renamed"


def test_what_was_seen_now_says_how_it_is_accepted_once_a_run_has_stopped(store: LaneStore) -> None:
    hint = look(store, Cluster(start=50))["t"][1]
    assert "the next run stops here, then to leave out what the source has deleted" in hint
    assert "mirror resolve --mirror m --topic t --accept trimmed" in hint


def test_a_short_log_is_asked_about_twice(store: LaneStore) -> None:
    """A leader that has just been elected may answer late and low; a halt on that would be false."""
    source = Cluster(ends=[9, 100])
    assert look(store, source) == {}
    assert source.asked.count("forget") == 1


@dataclass
class RecreatedMeanwhile(Cluster):
    """The topic is recreated after the first question for its id."""

    def metadata(self, topics: Iterable[str]) -> ClusterMetadata:
        answer = super().metadata(topics)
        self.topic_id = "other"
        return answer


@pytest.mark.parametrize("log", [{"end": 5}, {"start": 11}])
def test_another_topics_log_is_neither_truncated_nor_trimmed(store: LaneStore, log: dict[str, int]) -> None:
    assert look(store, RecreatedMeanwhile(**log))["t"][0] == "recreated"  # type: ignore[arg-type]


def test_with_record_gap_deleted_offsets_stop_nothing(store: LaneStore) -> None:
    source = Cluster(start=50)
    assert look(store, source, on_loss="record_gap") == {} and "forget" not in source.asked


def test_a_lane_that_runs_is_not_asked_about_offsets(store: LaneStore) -> None:
    """It reads on while the log is trimmed behind it, and says itself when it was too late."""
    ran(store, "running")
    source = Cluster(start=50)
    assert look(store, source) == {} and source.asked == ["metadata"]


@pytest.mark.parametrize(
    ("source", "kind", "facts"),
    [
        (Cluster(start=50), DecisionKind.GAP, {"start": 10, "end": 50}),
        (Cluster(end=5), DecisionKind.TRUNCATED, {"start": 5, "end": 10}),
        (Cluster(topic_id="other"), DecisionKind.RECREATED, {"subject": "other"}),
        (Cluster(topic_id="other", end=5), DecisionKind.RECREATED, {"subject": "other"}),
    ],
)
def test_what_a_person_has_accepted_is_no_halt(store: LaneStore, source: Cluster, kind: DecisionKind, facts: dict[str, Any]) -> None:
    decide(store, kind, **facts)
    assert look(store, source) == {}


def test_the_last_run_is_believed_about_what_a_look_cannot_see(store: LaneStore) -> None:
    stopped(store, "corrupt")
    assert look(store, Cluster()) == {"t": ("corrupt", "mend it")}


def test_a_cause_that_is_mended_is_no_halt_any_more(store: LaneStore) -> None:
    stopped(store, "renamed")
    assert look(store, Cluster()) == {}


def test_a_halt_that_was_accepted_since_is_over(store: LaneStore) -> None:
    stopped(store, "trimmed")
    assert set(look_at(store).halts) == {"t"}
    decide(store, DecisionKind.GAP, 10, 50)
    assert look_at(store).halts == {}


def test_a_target_that_was_made_again_is_seen(store: LaneStore) -> None:
    stopped(store, "target_gone")
    for topic_id, code in (("another", "target_recreated"), ("target-id", None)):
        seen = look_at(store, Cluster(cluster_id="west-id", topic_id=topic_id))
        seen.at_target()
        assert [halt.code for halt in seen.halts.values()] == ([code] if code else [])


def test_a_deleted_topic_stays_in_the_lag_with_what_is_staged(store: LaneStore) -> None:
    seen = look_at(store, Cluster(error=GONE))
    seen.at_source()
    (row,) = seen.shown({"t": TopicLag("t", "east.t", ())})
    assert (row.state, row.code, row.partitions) == ("halted", "source_gone", (PartitionLag(0, 10, 10, 10, 0),))


@pytest.mark.parametrize(
    ("state", "age", "said"),
    [("failed", 0, "lane-0: the last run failed: no broker"), ("running", 90, "lane-0: the last run was interrupted"), ("finished", 0, "")],
)
def test_how_the_last_runs_ended(store: LaneStore, state: str, age: float, said: str) -> None:
    ran(store, state, age=age, message="no broker")
    assert "".join(ledger_view([store]).notes).startswith(said) and bool(ledger_view([store]).notes) == bool(said)

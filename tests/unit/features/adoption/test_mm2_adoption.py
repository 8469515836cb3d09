"""MirrorMaker's stored positions and checkpoints: how they are read, and what follows when they do not agree with the data."""

from __future__ import annotations

import json
import struct

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.features.adoption import state_topics
from mirror_pipeline.features.adoption.mm2_adoption import agreement, written
from mirror_pipeline.features.adoption.proof import Proof, ProofSide, ProvenPartition
from mirror_pipeline.features.adoption.state_topics import Checkpoint, StoredPositions
from mirror_pipeline.features.groups.group_offsets import NO_OFFSET, CarriedOffset, GroupPartition
from mirror_pipeline.kafka.groups.group_client import Commit, Commits
from mirror_pipeline.kafka.records.batch import Record
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.compare import ComparedPair, PairTask
from mirror_pipeline.verify.record_tasks import Terms

EAST, WEST = (ClusterSettings(alias, ("h:1",)) for alias in ("east", "west"))
STORE = TopicPartition("mm2-offsets.A.internal", 3)


def record(key: object, value: object) -> Record:
    def text(part: object) -> bytes | None:
        return part if isinstance(part, bytes) or part is None else json.dumps(part).encode()

    return Record(7, 0, text(key), text(value), ())


def part(*runs: tuple[int, int, int], source_next: int, number: int = 0) -> ProvenPartition:
    """A partition of which these runs (source, target, length) are on both sides."""
    places = TopicPartition("t", number), TopicPartition("A.t", number)
    end = max((target + length for _, target, length in runs), default=0)
    pair = ComparedPair(PairTask(EAST, WEST, *places, (0, 1000), (0, end), Terms(), 5, 1.0))
    for run in runs:
        pair.runs.add(*run)
    pair.beyond = source_next
    return ProvenPartition(number, 0, (0, end), pair if runs else None)


def stored(*next_offsets: int) -> StoredPositions:
    return StoredPositions(STORE.topic, {TopicPartition("t", number): offset for number, offset in enumerate(next_offsets)})


def test_a_position_is_the_last_offset_that_was_copied() -> None:
    key = ["MirrorSourceConnector", {"cluster": "A", "partition": 2, "topic": "a-b"}]
    assert state_topics.position(record(key, {"offset": 41}), "A", STORE) == (TopicPartition("a-b", 2), 41)
    assert state_topics.position(record(key, None), "A", STORE) == (TopicPartition("a-b", 2), None)
    assert state_topics.position(record(key, {"offset": 41}), "B", STORE) is None
    heartbeat = ["MirrorHeartbeatConnector", {"sourceClusterAlias": "A", "targetClusterAlias": "B"}]
    assert state_topics.position(record(heartbeat, {"offset": 0}), "A", STORE) is None


@pytest.mark.parametrize(
    ("key", "value"), [(b"\xff", {}), ({"a": 1}, {}), (["MirrorSourceConnector", {}], {}), (b"not json", {"offset": 1})]
)
def test_a_record_of_another_form_is_named_by_its_offset(key: object, value: object) -> None:
    with pytest.raises(ProblemFound, match=r"mm2-offsets\.A\.internal\[3\] offset 7 is not a record"):
        state_topics.position(record(key, value), "A", STORE)


def test_a_checkpoint_is_group_target_partition_and_both_offsets() -> None:
    key = struct.pack(">h2sh3si", 2, b"gr", 3, b"A.t", 1)
    value = struct.pack(">hqqh", 0, 700, 650, 0)
    assert state_topics.checkpoint(record(key, value), STORE) == ("gr", TopicPartition("A.t", 1), Checkpoint(700, 650))
    with pytest.raises(ProblemFound, match="version 1"):
        state_topics.checkpoint(record(key, struct.pack(">hqqh", 1, 700, 650, 0)), STORE)
    with pytest.raises(ProblemFound, match="offset 7 is not a record"):
        state_topics.checkpoint(record(key[:4], value), STORE)


def test_a_position_right_after_the_last_record_agrees() -> None:
    """Between it and the next record on the source there may be holes."""
    assert agreement("t", "A.t", [part((0, 0, 10), (12, 10, 5), source_next=20)], stored(17)) == ()
    assert agreement("t", "A.t", [part((0, 0, 10), source_next=10)], stored(10)) == ()
    assert agreement("t", "A.t", [part(source_next=0)], stored()) == ()


def test_records_beyond_the_position_are_a_note_and_a_warning() -> None:
    notes = agreement("t", "A.t", [part((0, 0, 10), source_next=10), part((0, 0, 5), source_next=5, number=1)], stored(4))
    assert notes == (
        "A.t[0]: MirrorMaker stored offset 3 and has sent records up to 9",
        "A.t[1]: MirrorMaker stored no position and has sent records up to 4",
        "MirrorMaker was killed: never start it again, it would send these records a second time",
    )


def test_a_position_beyond_the_data_is_refused() -> None:
    """The target was rebuilt, or has lost its end."""
    with pytest.raises(ProblemFound, match=r"beyond what A\.t holds: t\[0\] offset 10, the copy ends before offset 10"):
        agreement("t", "A.t", [part((0, 0, 10), source_next=10)], stored(11))
    with pytest.raises(ProblemFound, match=r"t\[0\] offset 10, the copy ends before offset 0"):
        agreement("t", "A.t", [part(source_next=0)], stored(11))


def test_only_offsets_that_a_checkpoint_names_are_mirrormakers() -> None:
    proof = Proof("t", "A.t", ProofSide("c", "i", 1), ProofSide("d", "j", 1), (), {}, ())
    place, other = TopicPartition("A.t", 0), TopicPartition("other", 0)
    held: dict[str, Commits] = {"ours": {place: Commit(650, "m"), other: Commit(650)}, "moved": {place: Commit(651)}}
    known = {("ours", place): [Checkpoint(600, 650), Checkpoint(700, 650)], ("moved", place): [Checkpoint(700, 650)]}
    (row,) = written(held, {}, known, proof, 5)
    assert row == CarriedOffset(GroupPartition("ours", "t", 0), 700, "m", 650, NO_OFFSET, False, 5)


@pytest.mark.parametrize(("now_there", "seen"), [(100, 100), (900, 700)])
def test_a_group_that_went_back_on_the_source_counts_as_seen_there(now_there: int, seen: int) -> None:
    """Otherwise the next round would take MirrorMaker's further offset back."""
    proof = Proof("t", "A.t", ProofSide("c", "i", 1), ProofSide("d", "j", 1), (), {}, ())
    place = TopicPartition("A.t", 0)
    source: dict[str, Commits] = {"g": {TopicPartition("t", 0): Commit(now_there)}}
    (row,) = written({"g": {place: Commit(650)}}, source, {("g", place): [Checkpoint(700, 650)]}, proof, 5)
    assert (row.source_offset, row.target_offset) == (seen, 650)

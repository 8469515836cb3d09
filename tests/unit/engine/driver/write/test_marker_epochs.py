"""Each attempt, in whichever run, has a higher epoch than all before it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.engine.driver.write import marker_epochs
from mirror_pipeline.engine.driver.write.marker_epochs import EPOCHS_TOGETHER, MarkerEpochs
from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.halts import Halt
from mirror_pipeline.model import MarkerStamp, Stamp, TopicPartition


class Client:
    """Gives one producer id."""

    def __init__(self, error: BrokerError | None = None) -> None:
        self.asked = 0
        self._error = error

    def init_producer_id(self) -> Stamp:
        self.asked += 1
        if self._error is not None:
            raise self._error
        return Stamp(77, 0)


def epochs(folder: Path, client: Client) -> MarkerEpochs:
    ledger = Ledger(LaneStore(str(folder)))
    ledger.ensure()
    context = SimpleNamespace(
        state=SimpleNamespace(markers=None), ledger=ledger, hold=SimpleNamespace(check=lambda: None),
        target=SimpleNamespace(cluster_id="west-id"),
    )  # fmt: skip
    return MarkerEpochs(context, client)  # type: ignore[arg-type]


def test_epochs_rise_over_attempts_runs_and_blocks(tmp_path: Path) -> None:
    client = Client()
    seen = []
    for _ in range(3):
        run = epochs(tmp_path, client)
        seen += [run.renew() for _ in range(EPOCHS_TOGETHER + 2)]
    assert {stamp.producer_id for stamp in seen} == {77}
    assert all(before.epoch < after.epoch for before, after in zip(seen, seen[1:], strict=False))
    assert client.asked == 1


def test_the_records_producer_is_another_one(tmp_path: Path) -> None:
    run = epochs(tmp_path, Client())
    ledger = Ledger(LaneStore(str(tmp_path)))
    ledger.save_producer(Stamp(5, 0), "west-id")
    run.renew()
    assert Ledger(LaneStore(str(tmp_path))).producer("west-id") == Stamp(5, 0)


def test_a_target_that_gives_no_id_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost):
        epochs(tmp_path, Client(BrokerError(15, "COORDINATOR_NOT_AVAILABLE", "not yet", hint="wait"))).renew()


class Leaders:
    """A target whose leaders take markers, refuse them, or break off."""

    def __init__(self) -> None:
        self.forgotten: list[TopicPartition] = []

    def init_producer_id(self) -> Stamp:
        return Stamp(77, 0)

    def leaders(self, tps: list[TopicPartition], *, patience: float) -> tuple[dict[TopicPartition, int], dict[TopicPartition, BrokerError]]:
        unled = BrokerError(5, "LEADER_NOT_AVAILABLE", "no leader")
        return {tp: tp.partition % 2 for tp in tps if tp.partition < 4}, {tp: unled for tp in tps if tp.partition >= 4}

    def connection(self, node: int) -> int:
        return node

    def forget(self, tp: TopicPartition) -> None:
        self.forgotten.append(tp)


def test_one_marker_goes_to_each_partition_and_failures_are_those_of_their_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[TopicPartition, int] = {}

    def write(node: int, counts: dict[TopicPartition, int], stamp: MarkerStamp) -> dict[TopicPartition, int]:
        if node:
            raise ConnectionLost("broker 1: closed")
        written.update(counts)
        return {tp: 31 if tp.partition == 2 else 0 for tp in counts}

    monkeypatch.setattr(marker_epochs, "write_markers", write)
    client = Leaders()
    run = epochs(tmp_path, client)  # type: ignore[arg-type]
    run.renew()
    parts = [TopicPartition("t", number) for number in (0, 1, 2, 4)]
    errors = run.write_one(parts)
    assert written == {parts[0]: 1, parts[2]: 1}
    assert set(errors) == {parts[1], parts[2], parts[3]} == set(client.forgotten)
    assert isinstance(errors[parts[1]], ConnectionLost)
    assert isinstance(errors[parts[2]], Halt) and errors[parts[2]].code == "markers_refused"  # type: ignore[union-attr]

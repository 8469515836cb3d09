"""A broker that does not answer, or a partition without a leader, costs the partitions of other brokers nothing."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.engine.driver import silent_brokers
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.progress import progress_of
from mirror_pipeline.engine.driver.read import source_watch
from mirror_pipeline.engine.driver.read.source_watch import SourceWatch
from mirror_pipeline.engine.driver.silent_brokers import SilentBrokers
from mirror_pipeline.engine.driver.state import PartitionState
from mirror_pipeline.engine.tasks.read.messages import SILENT_SECONDS, RangeOutcome, ReadResult, ReadTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.task import run_read
from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.model import OffsetRange, Position, TopicPartition
from tests.model.broker import ModelPartition, fetch_answer, parse_fetch
from tests.support.lane_context import context
from tests.support.read_lane import PLACE, STAGED, Source, lane
from tests.support.scripted_broker import Request, reply
from tests.support.scripted_cluster import FIRST, SECOND, Cluster
from tests.support.source_batches import batch

__all__ = ["context"]

pytestmark = pytest.mark.timeout(60)
REQUEST_TIMEOUT = 300.0
"""Longer than a test may take: nobody waits for it."""


class Log(Cluster):
    """Twenty records in each partition. The ``stuck`` broker ends in the middle of an answer, and goes on no more."""

    stuck = 0

    def answer(self, node: int, connected: socket.socket, request: Request) -> None:
        if request.api != Api.FETCH:
            super().answer(node, connected, request)
            return
        body = fetch_answer({tp: self.fetched(offset) for tp, (offset, _) in parse_fetch(request.rest).items()})
        sent = reply(request, body)
        if node == self.stuck:
            connected.sendall(sent[: len(sent) // 2])
            self.over.wait()
        connected.sendall(sent)

    @staticmethod
    def fetched(offset: int) -> tuple[ModelPartition, int, bytes, int]:
        return ModelPartition(), 0, batch(offset, 20 - offset) if offset < 20 else b"", 20


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    for node in made.listeners:
        threading.Thread(target=made.serve, args=(node,), daemon=True).start()
    yield made
    worker_cache.close()
    made.over.set()
    for listener in made.listeners.values():
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def read(log: Log, store: LaneStore, partitions: int = 2, **more: Any) -> tuple[ReadResult, dict[int, RangeOutcome]]:
    rules = tuple(RangeRules(OffsetRange("t", n, 0, 20, 10**6, "id"), 10**6, False, False) for n in range(partitions))
    task = ReadTask(store, log.settings, 0, 0, rules, 10**6, 10**6, 10**9, REQUEST_TIMEOUT, 20.0, False, **more)
    result = run_read(task)
    return result, {outcome.partition: outcome for outcome in result.outcomes}


@pytest.mark.parametrize("trouble", ["silent from the start", "silent later", "stuck"])
@pytest.mark.parametrize("connections", [None, 4])
def test_the_ranges_of_a_silent_broker_are_put_off_and_others_read(
    log: Log, context: LaneContext, trouble: str, connections: int | None
) -> None:
    if trouble == "silent later":
        worker_cache.client_of(log.settings, timeout=REQUEST_TIMEOUT).list_offsets({FIRST: -1, SECOND: -1})
    if trouble == "stuck":
        log.stuck = 2
    else:
        log.silent = {2}
        log.leaders = {0: (1, 5), 1: (2, 5)}
    result, outcomes = read(log, context.store, connections=connections)
    assert (outcomes[0].next, outcomes[0].error) == (20, "")
    assert outcomes[1].next == 0 and outcomes[1].error and outcomes[1].halt is None
    assert list(result.silent) == [2]
    assert result.part is not None and [(span.partition, span.records) for span in result.part.spans] == [(0, 20)]


def test_a_broker_to_avoid_is_not_asked(log: Log, context: LaneContext) -> None:
    log.silent = {2}
    _, outcomes = read(log, context.store, avoid=frozenset({2}))
    assert (outcomes[0].next, outcomes[1].next, outcomes[1].error) == (20, 0, "broker 2 does not respond")
    assert (2, Api.FETCH) not in log.asked


def test_partitions_without_a_leader_are_asked_for_together(log: Log, context: LaneContext) -> None:
    log.leaders = {0: (1, 5), **{number: (-1, 5) for number in range(1, 40)}}
    _, outcomes = read(log, context.store, 40)
    assert outcomes[0].next == 20 and all("LEADER_NOT_AVAILABLE" in outcomes[number].error for number in range(1, 40))


def test_a_broker_that_answers_late_is_given_the_time_it_asks_for(log: Log, context: LaneContext) -> None:
    fetched = log.answer

    def slowly(node: int, connected: socket.socket, request: Request) -> None:
        if node == 2 and request.api == Api.FETCH:
            time.sleep(SILENT_SECONDS + 0.5)
        fetched(node, connected, request)

    log.answer = slowly  # type: ignore[method-assign]
    result, outcomes = read(log, context.store, patience={2: 30.0})
    assert (outcomes[0].next, outcomes[1].next, result.silent) == (20, 20, {})
    assert result.heard[2] > SILENT_SECONDS


class Probed:
    """A broker that fails so many probes."""

    def __init__(self, failures: int, problem: Exception | None = None) -> None:
        self.failures, self.problem = failures, problem
        self.asked = 0
        self.answered = threading.Event()

    def __call__(self, node: int) -> None:
        self.asked += 1
        if self.asked <= self.failures:
            raise self.problem or ConnectionLost("no answer", timed_out=True)
        self.answered.set()


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_brokers, "FIRST_PROBE_SECONDS", 0.001)
    monkeypatch.setattr(silent_brokers, "RAREST_PROBE_SECONDS", 0.001)


def until_back(brokers: SilentBrokers) -> None:
    while brokers.now:
        time.sleep(0.001)


@pytest.mark.usefixtures("_quick")
def test_a_silent_broker_is_probed_until_it_answers_and_has_more_time_then() -> None:
    probed = Probed(3)
    brokers = SilentBrokers(probed, most=10.0)
    brokers.lost(2, "timed out")
    assert brokers.longest() == SILENT_SECONDS or not brokers.now, "nobody waits for one that is silent"
    until_back(brokers)
    assert probed.asked == 4 and brokers.patience() == {2: 2 * SILENT_SECONDS}
    for _ in range(5):
        brokers.lost(2, "again")
        until_back(brokers)
    assert brokers.patience() == {2: 10.0} and brokers.longest() == 10.0
    brokers.heard(2, 4.0)
    assert brokers.patience() == {2: 8.0}
    brokers.heard(2, 0.1)
    assert brokers.patience() == {}


@pytest.mark.usefixtures("_quick")
def test_a_broker_that_refuses_does_answer() -> None:
    probed = Probed(1, broker_error(58, "authentication"))
    brokers = SilentBrokers(probed, most=10.0)
    brokers.lost(2, "timed out")
    until_back(brokers)
    assert probed.asked == 1


def test_probes_end_with_the_run() -> None:
    brokers = SilentBrokers(Probed(10**6), most=10.0)
    brokers.lost(2, "timed out")
    brokers.end()
    until_back(brokers)


class Moving(Source):
    """A source whose leaders the test says; errors by partition."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.led: dict[TopicPartition, int | BrokerError] = {PLACE: 1}
        self.looked = 0
        self.avoided: frozenset[int] = frozenset()

    def leaders(self, tps: list[TopicPartition], *, patience: float) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Any]]:
        assert patience == 0
        self.looked += 1
        return (
            {tp: node for tp in tps if isinstance(node := self.led[tp], int)},
            {tp: error for tp in tps if isinstance(error := self.led[tp], BrokerError)},
        )

    def avoid(self, nodes: Any) -> None:
        self.avoided = frozenset(nodes)


def part_of(context: LaneContext) -> PartitionState:
    return context.state.topics["t"].partitions[0]


def test_a_partition_without_a_leader_waits_on_its_own(context: LaneContext) -> None:
    source = Moving(ends=["no leader", STAGED + 5])
    staging = lane(context, source)
    staging.refresh_ends()
    part = part_of(context)
    assert part.reading.unread and context.state.ready() == [] and context.state.live() == [part]
    staging.refresh_ends()
    assert source.asked == 1, "what is put off is not asked for"
    staging._source.look_up()
    assert source.looked == 0, "its time is not over"
    part.reading.read_at, source.led[PLACE] = 0.0, broker_error(3, "t[0]")
    staging._source.look_up()
    assert (source.looked, part.reading.read_failures, bool(part.reading.unread)) == (1, 2, True)
    part.reading.read_at, source.led[PLACE] = 0.0, 1
    staging._source.look_up()
    assert context.state.ready() == [part]
    staging.refresh_ends()
    assert part.reading.end == STAGED + 5


def test_what_a_silent_broker_leads_is_left_out_until_it_answers_or_another_leads(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SilentBrokers, "_watch", lambda self, node: None)
    source = Moving()
    side = lane(context, source)._source
    side.take_results([ReadResult(None, (), 0.0, {1: "timed out"})])
    part = part_of(context)
    assert (part.reading.unread, source.avoided) == ("timed out", {1})
    part.reading.read_at = 0.0
    side.look_up()
    assert part.reading.unread == "timed out", "it leads still"
    part.reading.read_at, source.led[PLACE] = 0.0, 2
    side.look_up()
    assert part.reading.unread == ""
    side.take_results([ReadResult(None, (), 0.0, {1: "timed out"})])
    part.reading.put_off("timed out", delay=1000.0)
    side.brokers._silent.clear()
    side.look_up()
    assert (part.reading.unread, source.avoided) == ("", frozenset()), "one that answers again is asked at once"


def test_a_run_once_says_what_it_waits_for_when_all_else_is_read(context: LaneContext) -> None:
    staging = lane(context, Moving(ends=["no leader"]), once=True)
    part = part_of(context)
    part.reading.end_known = False
    with pytest.raises(ConnectionLost, match=r"t\[0\] cannot be read: t\[0\]: LEADER_NOT_AVAILABLE"):
        staging._nothing_to_read()
    part.reading.end_known = True
    assert staging._nothing_to_read() is False, "it was read to its end"


def test_a_topic_that_cannot_be_read_says_so(context: LaneContext) -> None:
    lane(context, Moving())
    part = part_of(context)

    def shown() -> tuple[str, str]:
        topic = progress_of(context, seconds=1.0).topics["t"]
        return topic.state, topic.reason

    part.writing.position = Position(STAGED, 0, 0)
    assert shown() == ("ok", "")
    part.reading.put_off("its leader moves", delay=1.0)
    assert shown() == ("ok", ""), "that passes in a moment"
    part.reading.put_off("no leader", delay=1.0)
    assert shown() == ("behind", "t[0] cannot be read: no leader")


def test_a_refusal_halts_the_topic(context: LaneContext) -> None:
    class Refusing(Moving):
        def list_offsets(self, at: Any, **_: Any) -> Any:
            from mirror_pipeline.kafka.answers import OffsetAnswer

            return {tp: OffsetAnswer(-1, -1, 29) for tp in at}

    staging = lane(context, Refusing())
    staging.refresh_ends()
    halt = context.state.topics["t"].halted
    assert halt is not None and halt.code == "topic_authorization_failed"


def test_the_watch_waits_whatever_number_its_connections_have(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2048) if hard > 0 else 2048, hard))
    ours, theirs = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1100))
    connection = SimpleNamespace(fileno=high.fileno, closed=False, received=False, limit=lambda seconds: None, patience=2.0)
    client = SimpleNamespace(leaders=lambda tps, patience: (dict.fromkeys(tps, 1), {}), connection=lambda *_, **__: connection)
    answer = {PLACE: FetchedPartition(0, 9, 9, 0, [], memoryview(b""))}
    monkeypatch.setattr(source_watch, "send_fetch", lambda *_, **__: 1)
    monkeypatch.setattr(source_watch, "receive_fetch", lambda connection: answer)
    watch = SourceWatch(client)  # type: ignore[arg-type]
    with ours, theirs, high:
        assert watch.wait({PLACE: 3}, seconds=0.0, most=0.01) == {}
        theirs.send(b"x")
        assert watch.wait({PLACE: 3}, seconds=1.0) == answer


def test_a_question_of_the_watch_that_is_overdue_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would notice: an open question is no request that times out."""
    ours, theirs = socket.socketpair()
    given_up: list[bool] = []
    connection = SimpleNamespace(
        fileno=ours.fileno, closed=False, received=False, limit=lambda seconds: None, patience=0.2, give_up=lambda: given_up.append(True)
    )
    forgotten: list[Any] = []
    client = SimpleNamespace(
        leaders=lambda tps, patience: (dict.fromkeys(tps, 1), {}), connection=lambda *_, **__: connection, known_leader=lambda tp: 1,
        forget=forgotten.append,
    )  # fmt: skip
    monkeypatch.setattr(source_watch, "send_fetch", lambda *_, **__: 1)
    watch = SourceWatch(client)  # type: ignore[arg-type]
    with ours, theirs:
        assert watch.wait({PLACE: 3}, seconds=0.1, most=0.01, within=0.1) == {} and not given_up
        time.sleep(0.4)
        assert watch.wait({PLACE: 3}, seconds=0.1, most=0.01, within=0.1) == {}
    assert (given_up, forgotten, watch.asks) == ([True], [PLACE], False)


@pytest.mark.parametrize("checked", [True, False])
def test_what_is_staged_is_sent_once_its_target_was_checked(context: LaneContext, checked: bool) -> None:
    """The check has a thread of its own: a look that takes its time keeps nothing else from the target."""
    lane(context, Moving())
    context.state.topics["t"].target_checked = checked
    assert bool(context.state.checked()) is checked
    assert bool(context.state.unchecked()) is not checked
    assert context.state.sendable(), "the run is not idle, and does not end"

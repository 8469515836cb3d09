"""Consumer groups of one cluster: which there are, their committed offsets, and writing offsets of groups without members.

Many groups travel in one request: ListGroups to every broker, FindCoordinator to any, OffsetFetch to each coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import NETWORK_EXCEPTION, broker_error
from mirror_pipeline.model import TopicPartition

GROUP_KEY = 0
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: the coordinator moves, or is being made.
MOVING = frozenset((14, 15, 16, NETWORK_EXCEPTION))
UNKNOWN_MEMBER_ID = 25
SETTLE_SECONDS = 5.0
PAUSE_SECONDS = 0.1
# Groups in one OffsetFetch; and requests that wait for answers at a time on one connection.
FETCHED, PIPELINED = 200, 50

T = TypeVar("T")
Messages = Callable[[list[str]], Iterator[tuple[list[str], Any]]]


class ListedGroup(NamedTuple):
    """A group: its state as its coordinator names it (``Empty`` without members), and ``kind``: classic, consumer, share, streams."""

    name: str
    state: str
    kind: str


class Commit(NamedTuple):
    """A committed offset, the next one to read, with the metadata string that the consumer left with it."""

    offset: int
    metadata: str = ""


Commits = dict[TopicPartition, Commit]


@dataclass(slots=True)
class GroupClient:
    """Asks about groups through a client of the cluster; used by one thread at a time."""

    client: WireClient
    _coordinators: dict[str, int] = field(default_factory=dict)

    def listed(self) -> dict[str, ListedGroup]:
        """Every group that this principal may see, by name.

        Raises:
            ClusterUnreachable: no broker answers.
            ConnectionLost: a broker does not; its groups would be missing.
            BrokerError: a broker refuses.
        """
        found: dict[str, ListedGroup] = {}
        for node in sorted(self.client.metadata(()).brokers):
            answer = self._settled(node, ListGroupsRequest(states_filter=[], types_filter=[]))
            for group in answer.groups:
                kind = (group.group_type or "").lower() or ("share" if group.protocol_type == "share" else "classic")
                found[group.group_id] = ListedGroup(group.group_id, group.group_state or "", kind)
        return found

    def _settled(self, node: int, message: Any) -> Any:
        """The answer of a broker that may be loading groups right now."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = self.client.connection(node).request(message)
            if not answer.error_code:
                return answer
            if answer.error_code not in MOVING or time.monotonic() > deadline:
                raise broker_error(answer.error_code, f"{self.client.cluster.alias}: groups of broker {node}")
            time.sleep(PAUSE_SECONDS)

    def committed(self, groups: Sequence[str]) -> dict[str, Commits | BrokerError]:
        """Committed offsets of groups, or the error of a group; offsets of a transaction that is not decided yet are left out.

        Raises:
            ClusterUnreachable: no broker answers.
        """

        def messages(names: list[str]) -> Iterator[tuple[list[str], Any]]:
            kind = OffsetFetchRequest.OffsetFetchRequestGroup
            for start in range(0, len(names), FETCHED):
                part = names[start : start + FETCHED]
                asked = [kind(group_id=name, member_id=None, member_epoch=-1, topics=None) for name in part]
                yield part, OffsetFetchRequest(groups=asked, require_stable=True)

        def read(answer: Any) -> Iterator[tuple[str, int, Commits]]:
            for group in answer.groups:
                commits = {
                    TopicPartition(topic.name, part.partition_index): Commit(part.committed_offset, part.metadata or "")
                    for topic in group.topics
                    for part in topic.partitions
                    if not part.error_code and part.committed_offset >= 0
                }
                yield group.group_id, group.error_code, commits

        return self._ask(groups, messages, read, lambda code: {}, "committed offsets")

    def commit(self, commits: Mapping[str, Commits]) -> dict[str, dict[TopicPartition, int] | BrokerError]:
        """Write offsets of groups; the coordinator refuses (25) while a group has members. Error codes by partition, 0 for written.

        Raises:
            ClusterUnreachable: no broker answers.
        """

        def messages(names: list[str]) -> Iterator[tuple[list[str], Any]]:
            for name in names:
                yield [name], _commit_request(name, commits[name])

        def read(name: str, answer: Any) -> tuple[str, int, dict[TopicPartition, int]]:
            codes = {TopicPartition(t.name, p.partition_index): int(p.error_code) for t in answer.topics for p in t.partitions}
            moving = next((code for code in codes.values() if code in MOVING), 0)
            return name, moving, codes

        return self._ask(sorted(commits), messages, read, lambda code: {}, "commit")

    def _ask(
        self, names: Sequence[str], messages: Messages, read: Callable[..., Any], empty: Callable[[int], T], what: str
    ) -> dict[str, T | BrokerError]:
        """Ask each group's coordinator; requests that a moving coordinator refuses are sent again for five seconds."""
        deadline = time.monotonic() + SETTLE_SECONDS
        answers: dict[str, T | BrokerError] = {}
        left = list(names)
        while left:
            codes = self._find([name for name in left if name not in self._coordinators])
            known = [name for name in left if name in self._coordinators]
            for name, code, found in self._round(known, messages, read):
                codes[name] = code
                answers[name] = found
            for name, code in codes.items():
                if code:
                    answers[name] = broker_error(code, f"{self.client.cluster.alias}: {what} of group {name}")
            left = [name for name, code in codes.items() if code in MOVING]
            for name in left:
                self._coordinators.pop(name, None)
            if time.monotonic() > deadline:
                break
            if left:
                time.sleep(PAUSE_SECONDS)
        return answers

    def _find(self, names: list[str]) -> dict[str, int]:
        """Look coordinators up; error codes of groups that have none now."""
        codes: dict[str, int] = {}
        if not names:
            return codes
        node = min(self.client.metadata(()).brokers)
        try:
            answer = self.client.connection(node).request(FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=names))
        except ConnectionLost:
            self.client.ask_elsewhere()
            return dict.fromkeys(names, NETWORK_EXCEPTION)
        for found in answer.coordinators:
            if found.error_code:
                codes[found.key] = found.error_code
            else:
                self._coordinators[found.key] = found.node_id
        return codes

    def _round(self, names: list[str], messages: Messages, read: Callable[..., Any]) -> Iterator[tuple[str, int, Any]]:
        by_node = sorted(names, key=lambda name: (self._coordinators[name], name))
        for node, own in groupby(by_node, key=lambda name: self._coordinators[name]):
            mine = list(own)
            done: set[str] = set()
            try:
                for name, code, found in self._node(node, list(messages(mine)), read):
                    done.add(name)
                    yield name, code, found
            except ConnectionLost:
                yield from ((name, NETWORK_EXCEPTION, {}) for name in mine if name not in done)

    def _node(self, node: int, asked: list[tuple[list[str], Any]], read: Callable[..., Any]) -> Iterator[tuple[str, int, Any]]:
        connection = self.client.connection(node)
        for start in range(0, len(asked), PIPELINED):
            part = asked[start : start + PIPELINED]
            for (names, message), sent in [((names, message), connection.post(message)) for names, message in part]:
                answer = connection.answer(sent)
                if isinstance(message, OffsetCommitRequest):
                    yield read(names[0], answer)
                else:
                    yield from read(answer)


def _commit_request(group: str, commits: Commits) -> Any:
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    part = kind.OffsetCommitRequestPartition
    topics = [
        kind(
            name=name,
            partitions=[
                part(
                    partition_index=tp.partition, committed_offset=commits[tp].offset, committed_leader_epoch=-1,
                    committed_metadata=commits[tp].metadata,
                )
                for tp in own
            ],
        )
        for name, own in groupby(sorted(commits), key=lambda tp: tp.topic)
    ]  # fmt: skip
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, retention_time_ms=-1, topics=topics
    )

"""Consumer groups of one cluster: which there are, their committed offsets, and writing offsets of groups without members.

Many groups travel in one request: ListGroups to every broker, FindCoordinator to any, OffsetFetch to each coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import NETWORK_EXCEPTION, broker_error
from mirror_pipeline.kafka.groups.offset_frames import Commit, Commits, commit_body, commit_codes, fetched_offsets
from mirror_pipeline.kafka.wire import messages
from mirror_pipeline.kafka.wire.messages import SPOKEN, Api
from mirror_pipeline.model import TopicPartition

GROUP_KEY = 0
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: the coordinator moves, or is being made.
MOVING = frozenset((14, 15, 16, NETWORK_EXCEPTION))
UNKNOWN_MEMBER_ID = 25
GROUP_AUTHORIZATION_FAILED = 30
# In a broker's answer to what we may do (KIP-430): codes of ACL operations.
OPERATIONS = {3: "READ", 6: "DELETE", 8: "DESCRIBE"}
GROUP_SETTLE_SECONDS = 5.0
GROUP_PAUSE_SECONDS = 0.1
# Groups in one OffsetFetch; and requests that wait for answers at a time on one connection.
FETCHED, PIPELINED = 200, 50

Questions = Callable[[list[str]], Iterator["GroupQuestion"]]
Read = Callable[["GroupQuestion", memoryview], "Answers"]


__all__ = ["Commit", "Commits", "GroupClient", "ListedGroup"]


class ListedGroup(NamedTuple):
    """A group: its state as its coordinator names it (``Empty`` without members), and ``kind``: classic, consumer, share, streams."""

    name: str
    state: str
    kind: str


class GroupQuestion(NamedTuple):
    """A request about some groups, encoded; all of one call are of the same kind."""

    names: list[str]
    api: Api
    body: bytes


# Throttle time in milliseconds, and (group, error code, what was asked for) of each group.
Answers = tuple[int, list[tuple[str, int, Any]]]


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
        deadline = time.monotonic() + GROUP_SETTLE_SECONDS
        while True:
            answer = self.client.connection(node).request(message)
            if not answer.error_code:
                return answer
            if answer.error_code not in MOVING or time.monotonic() > deadline:
                raise broker_error(answer.error_code, f"{self.client.cluster.alias}: groups of broker {node}")
            time.sleep(GROUP_PAUSE_SECONDS)

    def committed(self, groups: Sequence[str]) -> dict[str, Commits | BrokerError]:
        """Committed offsets of groups, or the error of a group; offsets of a transaction that is not decided yet are left out.

        Raises:
            ClusterUnreachable: no broker answers.
        """

        def questions(names: list[str]) -> Iterator[GroupQuestion]:
            kind = OffsetFetchRequest.OffsetFetchRequestGroup
            for start in range(0, len(names), FETCHED):
                part = names[start : start + FETCHED]
                asked = [kind(group_id=name, member_id=None, member_epoch=-1, topics=None) for name in part]
                yield _question(part, OffsetFetchRequest(groups=asked, require_stable=True))

        def read(_: GroupQuestion, body: memoryview) -> Answers:
            return fetched_offsets(body)

        return self._ask(groups, questions, read, "committed offsets")

    def commit(self, commits: Mapping[str, Commits]) -> dict[str, dict[TopicPartition, int] | BrokerError]:
        """Write offsets of groups; the coordinator refuses (25) while a group has members. Error codes by partition, 0 for written.

        Raises:
            ClusterUnreachable: no broker answers.
        """

        def questions(names: list[str]) -> Iterator[GroupQuestion]:
            return (GroupQuestion([name], Api.OFFSET_COMMIT, commit_body(name, commits[name])) for name in names)

        def read(question: GroupQuestion, body: memoryview) -> Answers:
            throttle, codes = commit_codes(body)
            moving = next((code for code in codes.values() if code in MOVING), 0)
            return throttle, [(question.names[0], moving, codes)]

        return self._ask(sorted(commits), questions, read, "commit")

    def hidden(self, groups: Collection[str]) -> set[str]:
        """Those that this principal may not describe; they need not exist. Any broker knows, so no coordinator has to be found.

        Raises:
            ClusterUnreachable: no broker answers.
            ConnectionLost: the one that was asked does not.
        """
        node = min(self.client.metadata(()).brokers)
        answer = self.client.connection(node).request(DescribeGroupsRequest(groups=sorted(groups), include_authorized_operations=False))
        return {group.group_id for group in answer.groups if group.error_code == GROUP_AUTHORIZATION_FAILED}

    def operations(self, groups: Collection[str]) -> dict[str, frozenset[str] | BrokerError]:
        """What this principal may do with groups, which need not exist, or the error of a group (30: not even describe it).

        Raises:
            ClusterUnreachable: no broker answers.
        """

        def questions(names: list[str]) -> Iterator[GroupQuestion]:
            for start in range(0, len(names), FETCHED):
                part = names[start : start + FETCHED]
                yield _question(part, DescribeGroupsRequest(groups=part, include_authorized_operations=True))

        def read(question: GroupQuestion, body: memoryview) -> Answers:
            answer = messages.decode(question.api, SPOKEN[question.api].highest, body)
            allowed = {
                group.group_id: frozenset(name for code, name in OPERATIONS.items() if code in (group.authorized_operations or ()))
                for group in answer.groups
            }
            return answer.throttle_time_ms, [(group.group_id, group.error_code, allowed[group.group_id]) for group in answer.groups]

        return self._ask(sorted(groups), questions, read, "rights")

    def _ask(self, names: Sequence[str], questions: Questions, read: Read, what: str) -> dict[str, Any | BrokerError]:
        """Ask each group's coordinator; requests that a moving coordinator refuses are sent again for five seconds."""
        deadline = time.monotonic() + GROUP_SETTLE_SECONDS
        answers: dict[str, Any | BrokerError] = {}
        left = list(names)
        while left:
            codes = self._find([name for name in left if name not in self._coordinators])
            known = [name for name in left if name in self._coordinators]
            for name, code, found in self._round(known, questions, read):
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
                time.sleep(GROUP_PAUSE_SECONDS)
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

    def _round(self, names: list[str], questions: Questions, read: Read) -> Iterator[tuple[str, int, Any]]:
        by_node = sorted(names, key=lambda name: (self._coordinators[name], name))
        for node, own in groupby(by_node, key=lambda name: self._coordinators[name]):
            mine = list(own)
            done: set[str] = set()
            try:
                for name, code, found in self._node(node, list(questions(mine)), read):
                    done.add(name)
                    yield name, code, found
            except ConnectionLost:
                yield from ((name, NETWORK_EXCEPTION, {}) for name in mine if name not in done)

    def _node(self, node: int, asked: list[GroupQuestion], read: Read) -> Iterator[tuple[str, int, Any]]:
        connection = self.client.connection(node)
        for start in range(0, len(asked), PIPELINED):
            part = asked[start : start + PIPELINED]
            for question in part:
                connection.send(question.api, connection.version(question.api), (question.body,))
            for question in part:
                throttle, found = read(question, connection.receive().body)
                connection.throttled(throttle)
                yield from found


def _question(names: list[str], message: Any) -> GroupQuestion:
    api = Api(int(message.API_KEY))
    return GroupQuestion(names, api, messages.encode(message, SPOKEN[api].highest))

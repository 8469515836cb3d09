"""Whether MirrorMaker 2 still copies to the target: two writers of one topic would copy records twice."""

from __future__ import annotations

from collections.abc import Collection

from mirror_pipeline.errors import BrokerError, ProblemFound
from mirror_pipeline.features.adoption.state_topics import StoredPositions
from mirror_pipeline.features.groups.group_round import IDLE_STATES
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.groups.group_client import GroupClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.model import TopicPartition

_HINT = "stop every MirrorMaker process of this flow for good; a killed one leaves its Connect group after 10 s; then repeat the command"


def connect_group(alias: str) -> str:
    """The group that the processes of the flow from cluster ``alias`` form on the target."""
    return f"{alias}-mm2"


def refuse_members(client: WireClient, alias: str) -> None:
    """Raise ProblemFound while the Connect group of the flow has members."""
    name = connect_group(alias)
    group = GroupClient(client).listed().get(name)
    if group is not None and group.state.lower() not in IDLE_STATES:
        raise ProblemFound(
            f"MirrorMaker still runs: its Connect group {name} on cluster {client.cluster.alias} is {group.state}", hint=_HINT
        )


def refuse_moved(client: WireClient, positions: StoredPositions) -> None:
    """Raise ProblemFound when MirrorMaker has stored a position since they were read."""
    for tp, (_, end) in log_range(client, list(positions.ends), isolation=1).items():
        if end != positions.ends[tp]:
            raise ProblemFound(f"MirrorMaker still runs: it wrote to {tp} while the copy was compared", hint=_HINT)


def refuse_open_transactions(client: WireClient, parts: Collection[TopicPartition]) -> None:
    """Raise ProblemFound while a producer has a transaction open in a target partition: MirrorMaker with exactly-once support."""
    for tp, states in client.describe_producers(parts).items():
        if isinstance(states, BrokerError):
            raise states
        opened = [state for state in states if state.current_txn_start >= 0]
        if opened:
            raise ProblemFound(
                f"{tp}: producer {opened[0].producer_id} has a transaction open since offset {opened[0].current_txn_start}",
                hint=f"{_HINT}; the broker aborts the transaction of a killed one after its timeout, 1 minute by default",
            )

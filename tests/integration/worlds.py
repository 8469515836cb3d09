"""The set-ups under which MirrorMaker's cases run: its own test classes rerun all of them under each, and so do ours.

`prefix` is the plain one. `identity` keeps topic names. `transactions` has producers that abort and commit, so that source offsets and
target offsets differ. `tls` gives the mirror TLS listeners only, `sasl_acl` SASL and an authorizer with a user that has the documented
rights and no others. The test's own clients always come in by an open listener: what is tested is the mirror.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from mirror_pipeline import Mirror
from mirror_pipeline.topics import rights
from tests.integration.secured import Secured
from tests.support.groups import IN_PROCESS, commit, committed
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce
from tests.support.scram import USER

NAMES = ("prefix", "identity", "transactions", "tls", "sasl_acl")
SECURED = frozenset(("tls", "sasl_acl"))
# An aborted record and its marker, in each partition, before the records of each `produce`.
ABORTED = 2


@dataclass
class World:
    """Two clusters, and how topics are filled, named and mirrored between them."""

    name: str
    east: str
    west: str
    settings: dict[str, Any] = field(default_factory=dict)
    secured: Secured | None = None

    @property
    def transactional(self) -> bool:
        """Whether producers use transactions."""
        return self.name == "transactions"

    def copy(self, topic: str) -> str:
        """The target topic's name."""
        return topic if self.name == "identity" else f"east.{topic}"

    def at(self, count: int) -> int:
        """The source offset behind the first ``count`` records of a partition that was filled once."""
        return count + (ABORTED if self.transactional else 0)

    def mirror(self, folder: Path, prefix: str, **settings: Any) -> Mirror:
        """A mirror of all topics and groups that begin with ``prefix``."""
        if self.name == "sasl_acl":
            self._grant(prefix)
        pattern = f"{prefix}.*"
        groups = {"include": [pattern], "interval": "1s"}
        return make_mirror(
            folder, self.east, self.west, [pattern], **{"engine": IN_PROCESS, "groups": groups, **self.settings, **settings}
        )

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """A topic of the source."""
        create_topic(self.east, topic, partitions, replicas=None, **configs)

    def produce(self, topic: str, count: int, *, partitions: int = 1, start: int = 0) -> None:
        """Put records into a topic of the source, one after the other over its partitions."""
        if not self.transactional:
            produce(self.east, topic, count, partitions=partitions, start=start)
            return
        producer = Producer({"bootstrap.servers": self.east, "transactional.id": f"{topic}-{start}", "linger.ms": 5})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(partitions):
            producer.produce(topic, b"aborted", b"aborted", number)
        producer.flush(30)
        producer.abort_transaction(30)
        producer.begin_transaction()
        for number in range(start, start + count):
            producer.produce(topic, f"value-{number}".encode(), f"key-{number}".encode(), number % partitions)
            producer.poll(0)
        producer.commit_transaction(60)

    def commit(self, group: str, offsets: Mapping[Any, int]) -> None:
        """Commit on the source as a consumer that is done does."""
        commit(self.east, group, dict(offsets))

    def target_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """What the target has for a group."""
        return {place: offset for place, (offset, _) in committed(self.west, group).items()}

    def _grant(self, prefix: str) -> None:
        """The rights that docs/security.md lists."""
        assert self.secured is not None
        self.secured.allow("east", "topic", prefix, *rights.SOURCE)
        self.secured.allow("east", "group", prefix, *rights.GROUPS_SOURCE)
        self.secured.allow("west", "topic", f"east.{prefix}", *rights.NEW)
        self.secured.allow("west", "group", prefix, *rights.GROUPS_TARGET)


def world(name: str, clusters: ClusterPair | None, secured: Secured | None) -> World:
    """The set-up of this name, on the session's clusters or on the secured ones."""
    if clusters is not None:
        east, west = (cluster.bootstrap_servers for cluster in clusters)
        return World(name, east, west, {"naming": "identity"} if name == "identity" else {})
    assert secured is not None
    pair = {alias: secured.clusters[alias] for alias in ("east", "west")}
    if name == "tls":
        security: dict[str, Any] = {"protocol": "SSL", "ca_file": str(secured.folder / "ca.pem")}
        listener = "TLS"
    else:
        security, listener = secured.security(), "SECURE"
        assert security["username"] == USER
    reached = {alias: {"bootstrap_servers": cluster.listener(listener), "security": security} for alias, cluster in pair.items()}
    east, west = (cluster.bootstrap_servers for cluster in pair.values())
    return World(name, east, west, {"clusters": reached}, secured)

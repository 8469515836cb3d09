"""One round over the ACLs of a mirror's target topics. It may end at any point: the ledger names an ACL before it is created."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.features.topic_sync.acl_sync import AclStep, acl_step, carried_acls, own_principals
from mirror_pipeline.features.topic_sync.own_copies import OwnCopies, own_copies
from mirror_pipeline.features.topic_sync.sync_state import topics_store
from mirror_pipeline.features.topic_sync.topic_changes import ACL, Made, TopicChanges
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.security.acls import Acl, create_acls, delete_acls, topic_acls
from mirror_pipeline.text import few
from mirror_pipeline.topics import rights

NOT_CARRIED = "ACLs are not carried"


@dataclass(slots=True)
class AclOutcome:
    """What a round has changed, or would change, and what an operator should know; in words."""

    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class AclRounds:
    """Rounds over the topics of one mirror.

    Args:
        flow: the mirror.
        table: what it has made on target topics; None if it has made nothing.
        target: the cluster on which ACLs are made.
    """

    flow: Flow
    table: TopicChanges | None
    target: Admin

    def run(self, own: OwnCopies, *, write: bool = True) -> AclOutcome:
        """One round; without ``write`` it changes nothing and says what it would change.

        Nothing is changed where the ACLs of either cluster cannot be read.

        Raises:
            ClusterUnreachable: a cluster does not answer.
            BufferUnusable: the table cannot be read or written.
        """
        outcome = AclOutcome()
        with self.flow.source_client() as here, self.flow.target_client() as there:
            source, held = _read(here, self.flow.source, outcome), _read(there, self.flow.target, outcome)
        if source is None or held is None:
            return outcome
        targets = {topic: copy.generation.target_topic for topic, copy in own.copies.items()}
        settings = self.flow.settings
        carried = carried_acls(source, targets, settings.naming, settings.source, own_principals(self.flow.target))
        made = _made(self.table.read()) if self.table is not None else {}
        step = acl_step(carried, source, held, made, own.handed_over)
        outcome.notes += carried.refused
        if write and self.table is not None:
            self._write(self.table, step, made, outcome)
            return outcome
        outcome.changed = [f"create {acl.words()}" for acl in sorted(step.create)]
        outcome.changed += [f"delete {acl.words()}" for acl in sorted(step.delete)]
        operations = self.target.cluster_operations()
        if operations and "ALTER" not in operations:
            outcome.notes.append(_lacking(self.flow.target, "ALTER"))
        return outcome

    def _write(self, table: TopicChanges, step: AclStep, made: Mapping[Acl, Acl], outcome: AclOutcome) -> None:
        table.write({_key(acl): _text(origin) for acl, origin in step.made.items() if made.get(acl) != origin})
        if step.create or step.delete:
            crash_point("acls.named")
        created = create_acls(self.target, step.create) if step.create else {}
        deleted = delete_acls(self.target, step.delete) if step.delete else {}
        if step.create or step.delete:
            crash_point("acls.changed")
        for verb, answers in (("create", created), ("delete", deleted)):
            outcome.changed += [f"{verb} {acl.words()}" for acl, error in answers.items() if error is None]
        failed = {acl: error for answers in (created, deleted) for acl, error in answers.items() if error is not None}
        table.write({}, [_key(acl) for acl in step.forget if acl not in failed] + [_key(a) for a in created if a in failed])
        if any(error.code == KafkaError.CLUSTER_AUTHORIZATION_FAILED for error in failed.values()):
            outcome.notes.append(_lacking(self.flow.target, "ALTER"))
        outcome.notes += [
            f"{acl.words()}: {error.message}" for acl, error in sorted(failed.items())
            if error.code != KafkaError.CLUSTER_AUTHORIZATION_FAILED
        ]  # fmt: skip


def _read(client: WireClient, cluster: ClusterSettings, outcome: AclOutcome) -> set[Acl] | None:
    """The ACLs of a cluster; None, with a note, where they cannot be read."""
    try:
        return topic_acls(client)
    except BrokerError as error:
        if error.code == KafkaError.SECURITY_DISABLED:
            outcome.notes.append(f"cluster {cluster.alias} has no authorizer: {NOT_CARRIED}; set topics.acls.sync to false")
        elif error.code == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            outcome.notes.append(_lacking(cluster, "DESCRIBE"))
        else:
            outcome.notes.append(f"{error.message}: {NOT_CARRIED}")
        return None


def _lacking(cluster: ClusterSettings, right: str) -> str:
    grant = rights.grant_cluster(cluster, (right,))
    return f"no right to {right} cluster {cluster.alias}: {NOT_CARRIED}; grant it: {grant}"


def _made(rows: Mapping[Made, str]) -> dict[Acl, Acl]:
    return {Acl(key.topic, *json.loads(key.name)): Acl(*json.loads(value)) for key, value in rows.items() if key.kind == ACL}


def _key(acl: Acl) -> Made:
    return Made(ACL, acl.name, json.dumps(acl[1:]))


def _text(acl: Acl) -> str:
    return json.dumps(acl)


def acl_notes(flow: Flow) -> tuple[str, ...]:
    """What `plan` and `check` say of ACLs: rights that are missing, clusters without an authorizer, what the next round would change.

    Nothing where ACLs are not carried. Changes nothing. Raises ClusterUnreachable, BufferUnusable.
    """
    if not flow.settings.topics.acls.sync:
        return ()
    store = topics_store(flow)
    with flow.target_admin() as target:
        table = TopicChanges(store) if store is not None else None
        outcome = AclRounds(flow, table, target).run(own_copies(flow), write=False)
    return (*outcome.notes, *few([f"the next run will {line}" for line in outcome.changed], "more ACLs"))

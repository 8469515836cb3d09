"""What `plan` and `check` say of ACLs: rights that are missing, clusters without an authorizer, and what the next round would change."""

from __future__ import annotations

from mirror_pipeline.buffer.ledger.topic_changes import TopicChanges
from mirror_pipeline.flow import Flow
from mirror_pipeline.operations.topic_sync.acl_round import AclRounds
from mirror_pipeline.operations.topic_sync.own_copies import own_copies
from mirror_pipeline.operations.topic_sync.sync_state import topics_store
from mirror_pipeline.text import SHOWN_NAMES


def acl_notes(flow: Flow) -> tuple[str, ...]:
    """One line each; nothing where ACLs are not carried. Changes nothing. Raises ClusterUnreachable, BufferUnusable."""
    if not flow.settings.topics.acls.sync:
        return ()
    store = topics_store(flow)
    with flow.target_admin() as target:
        table = TopicChanges(store) if store is not None else None
        outcome = AclRounds(flow, table, target).run(own_copies(flow), write=False)
    more = len(outcome.changed) - SHOWN_NAMES
    changes = [f"the next run will {line}" for line in outcome.changed[:SHOWN_NAMES]]
    return (*outcome.notes, *changes, *([f"and {more} more ACLs"] if more > 0 else []))

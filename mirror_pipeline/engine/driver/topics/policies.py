"""What the settings of topics mean for reading: whether offsets may be missing, and how large a batch may be.

They are read when a topic joins, with every search for new topics, and before a halt that depends on them:
a topic may have become compacted, or its target may take larger batches, since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mirror_pipeline.engine.driver.state import LaneState, TopicRun
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome
from mirror_pipeline.errors import BrokerError, MirrorError
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.cluster_info import ConfigValue
from mirror_pipeline.kafka.codes import Action, lookup
from mirror_pipeline.topics.configs import DEFAULT_MAX_MESSAGE_BYTES

# UNKNOWN_OUTCOME is that of a leader that did not answer a question.
PASSING = (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME)
HOLE_POLICY, OVERSIZE = "unexplained_hole", "oversize"

Configs = Mapping[str, ConfigValue] | BrokerError | None


@dataclass(frozen=True, slots=True)
class SourcePolicy:
    """Whether a source topic is compacted. ``unread`` says why that is not known, ``passing`` that a retry may succeed."""

    compacted: bool
    unread: str = ""
    passing: bool = False

    @property
    def may_be_compacted(self) -> bool:
        """Whether its log may have been rewritten by compaction, as far as is known."""
        return self.compacted or bool(self.unread)


def source_policies(names: Collection[str], admin: Admin) -> dict[str, SourcePolicy]:
    """The policies of source topics. Raises ClusterUnreachable."""
    found = admin.topic_configs(names) if names else {}
    return {name: _policy(found.get(name)) for name in names}


def _policy(configs: Configs) -> SourcePolicy:
    """Unknown counts as not compacted: otherwise any loss would pass for compaction."""
    if isinstance(configs, BrokerError):
        return SourcePolicy(compacted=False, unread=configs.message, passing=lookup(configs.code).action in PASSING)
    if configs is None or "cleanup.policy" not in configs:
        return SourcePolicy(compacted=False, unread="the cluster does not report its cleanup.policy")
    return SourcePolicy("compact" in (configs["cleanup.policy"].value or ""))


def largest_batches(names: Collection[str], admin: Admin) -> dict[str, int]:
    """The largest batch that each target topic takes, in bytes; Kafka's default if unknown. Raises ClusterUnreachable."""
    found = admin.topic_configs(names) if names else {}
    return {name: _max_bytes(found.get(name)) for name in names}


def _max_bytes(configs: Configs) -> int:
    if configs is None or isinstance(configs, BrokerError) or "max.message.bytes" not in configs:
        return DEFAULT_MAX_MESSAGE_BYTES
    return int(configs["max.message.bytes"].value or DEFAULT_MAX_MESSAGE_BYTES)


def apply_policy(run: TopicRun, policy: SourcePolicy, *, fresh: bool = False) -> None:
    """Apply a topic's current settings; while they cannot be read, a topic that is not ``fresh`` keeps the last known ones."""
    if fresh or run.settings_unread or not policy.passing:
        run.compacted, run.settings_unread = policy.compacted, policy.unread


class RulesLook:
    """Reads the settings that halts depend on again."""

    def __init__(self, state: LaneState, source_admin: Admin, target_admin: Admin) -> None:
        self._state = state
        self._source_admin = source_admin
        self._target_admin = target_admin

    def reconsider(self, outcomes: Sequence[RangeOutcome]) -> list[RangeOutcome]:
        """Outcomes without the halts that no longer hold: those ranges are read again. Sends no request if there is no such halt."""
        holes = {o.topic for o in outcomes if o.halt is not None and o.halt.code == HOLE_POLICY}
        large = {o.topic for o in outcomes if o.halt is not None and o.halt.code == OVERSIZE}
        if not holes and not large:
            return list(outcomes)
        try:
            policies = source_policies(sorted(holes), self._source_admin)
        except MirrorError as error:
            policies = {name: SourcePolicy(compacted=False, unread=error.message, passing=True) for name in holes}
        mended = self._look(policies, large)
        resolved = []
        for outcome in outcomes:
            policy = policies.get(outcome.topic)
            if outcome.halt is None or outcome.halt.code not in (HOLE_POLICY, OVERSIZE):
                resolved.append(outcome)
            elif outcome.topic in mended:
                resolved.append(replace(outcome, halt=None))
            elif outcome.halt.code == HOLE_POLICY and policy is not None and policy.passing:
                resolved.append(replace(outcome, halt=None, error=f"the settings of {outcome.topic} cannot be read now: {policy.unread}"))
            else:
                resolved.append(outcome)
        return resolved

    def resume_resolved(self) -> None:
        """Resume topics whose halt no longer holds; settings that cannot be read now are left to the next call."""
        with self._state.lock:
            halted = {name: run.halted.code for name, run in self._state.topics.items() if run.halted is not None}
        holes = sorted(name for name, code in halted.items() if code == HOLE_POLICY)
        large = {name for name, code in halted.items() if code == OVERSIZE}
        mended = self._look(source_policies(holes, self._source_admin), large)
        with self._state.lock:
            for name in mended:
                run = self._state.topics.get(name)
                if run is not None and run.halted is not None and run.halted.code in (HOLE_POLICY, OVERSIZE):
                    run.halted = None

    def _look(self, policies: Mapping[str, SourcePolicy], large: Collection[str]) -> set[str]:
        """Apply current settings; returns the topics whose settings now allow what they did not allow before."""
        with self._state.lock:
            targets = {self._state.topics[name].target_topic: name for name in large if name in self._state.topics}
        try:
            sizes = largest_batches(sorted(targets), self._target_admin)
        except MirrorError:  # the target is unreachable: its halts stay
            sizes = {}
        mended = set()
        with self._state.lock:
            for name, policy in policies.items():
                run = self._state.topics.get(name)
                if run is not None:
                    mended |= {name} if policy.compacted and not run.compacted else set()
                    apply_policy(run, policy)
            for target, size in sizes.items():
                run = self._state.topics.get(targets[target])
                if run is not None and size != run.max_batch_bytes:
                    mended |= {run.topic} if size > run.max_batch_bytes else set()
                    run.max_batch_bytes = size
        return mended

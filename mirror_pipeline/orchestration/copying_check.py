"""The check ``copying`` of every target asset: is this topic being copied? A lane's run makes it, topic by topic.

A run has one end for all its topics, a topic has its own: a halt fails this check at once, with its reason and what to do,
while the asset's neighbours stay as they are.
"""

from __future__ import annotations

import dagster as dg

from mirror_pipeline.orchestration import metadata, names
from mirror_pipeline.orchestration.project import KnownMirror, KnownTopic

HALTED, BEHIND = "halted", "behind"


class TopicCheckSpec(dg.AssetCheckSpec):
    """A check whose output in its step is named with a hash: Dagster's own name is the same for ``a.b`` and ``a_b``."""

    def get_python_identifier(self) -> str:
        """The name of the output."""
        return names.unique(self.name, names.topic_of(self.asset_key))


def copying_spec(mirror: KnownMirror, topic: KnownTopic) -> dg.AssetCheckSpec:
    """The check of one topic."""
    return TopicCheckSpec(
        names.COPYING_CHECK,
        asset=names.target_key(mirror.name, topic.topic),
        description=f"`{topic.topic}` is copied: no halt has stopped it (an error), and it does not wait for a cluster (a warning).",
    )


def copying_key(mirror: str, topic: str) -> dg.AssetCheckKey:
    """The key of that check."""
    return dg.AssetCheckKey(names.target_key(mirror, topic), names.COPYING_CHECK)


def verdict(key: dg.AssetKey, state: str, facts: metadata.Metadata) -> dg.AssetCheckResult:
    """What the check says of a topic in this state."""
    reason, hint = str(facts.get(metadata.REASON, "")), str(facts.get(metadata.HINT, ""))
    said = f"{state}: {reason}" + (f" ({hint})" if hint else "")
    return dg.AssetCheckResult(
        passed=state not in (HALTED, BEHIND),
        asset_key=key,
        check_name=names.COPYING_CHECK,
        severity=dg.AssetCheckSeverity.WARN if state == BEHIND else dg.AssetCheckSeverity.ERROR,
        description=said if state in (HALTED, BEHIND) else "",
        metadata={name: facts[name] for name in (metadata.STATE, metadata.CODE, metadata.REASON, metadata.HINT) if name in facts},
    )


def evaluation(key: dg.AssetKey, state: str, facts: metadata.Metadata) -> dg.AssetCheckEvaluation:
    """The same as an event, for topics that the run did not select, and while it goes on."""
    made = verdict(key, state, facts)
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=names.COPYING_CHECK,
        passed=made.passed,
        metadata=made.metadata or {},
        severity=made.severity,
        description=made.description,
    )

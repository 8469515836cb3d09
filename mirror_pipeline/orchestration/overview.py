"""A mirror at a glance in Dagster: one asset whose text is the page's first two lines, with a check that is red where somebody must act."""

# No `from __future__ import annotations`: Dagster reads the annotations of the check at run time.
import os

import dagster as dg

from mirror_pipeline.exporter.facts import Facts, look
from mirror_pipeline.lags import LASTING_SECONDS
from mirror_pipeline.orchestration import metadata, names
from mirror_pipeline.orchestration.project import UP_PID_ENV, KnownMirror
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.run_tags import run_tags, step_tags, tag_check_run
from mirror_pipeline.orchestration.sensors.lag_decision import OverviewMemory
from mirror_pipeline.page.gate import page_of
from mirror_pipeline.page.headline import TROUBLE, Headline, headline

OVERVIEW_SECONDS = 60.0
OVERVIEW_MAX_SECONDS = 300

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


def overview_spec(mirror: KnownMirror) -> dg.AssetSpec:
    """The mirror as a whole; the lag sensor says how it is."""
    page = f" [Change or pause it on its page]({page_of(mirror.name)})." if UP_PID_ENV in os.environ else ""
    return dg.AssetSpec(
        names.overview_key(mirror.name),
        description=f"Mirror `{mirror.name}`: topics of cluster `{mirror.config.source}` on cluster `{mirror.config.target}`. Its latest "
        f"event says how it is, and what a failover would lose.{page}",
        group_name=names.group(mirror.name, "overview"),
        kinds={"kafka"},
        metadata={"mirror": mirror.name},
    )


def overview_check(mirror: KnownMirror) -> dg.AssetChecksDefinition:
    """The check on demand; the lag sensor evaluates it too."""
    means = "Nothing needs an operator: a mirror that is behind catches up."
    spec = dg.AssetCheckSpec(names.OVERVIEW_CHECK, asset=names.overview_key(mirror.name), description=means)

    @dg.multi_asset_check(name=mirror.called("overview_check"), specs=[spec], op_tags=step_tags(mirror.project))
    def nothing_to_do(context: dg.AssetCheckExecutionContext, mirror_project: MirrorsResource) -> dg.AssetCheckResult:
        tag_check_run(context, run_tags(mirror.project, names.KIND_UPKEEP, OVERVIEW_MAX_SECONDS, mirror=mirror.name))
        facts = look(mirror_project.mirror(mirror.name), Facts(mirror.name), groups=False)
        said = headline(facts)
        return dg.AssetCheckResult(
            passed=said.tone != TROUBLE, asset_key=spec.asset_key, check_name=spec.name, description=said.line,
            metadata=_metadata(facts, said),
        )  # fmt: skip

    return nothing_to_do


def overview_events(facts: Facts, memory: OverviewMemory, now: float) -> list[Event]:
    """What to say of a mirror now: nothing if the same was said before, or much the same a moment ago, or if trouble may be over soon."""
    said = headline(facts)
    passed = said.tone != TROUBLE
    memory.trouble_since = None if passed else now if memory.trouble_since is None else memory.trouble_since
    halted = facts.lag is not None and facts.lag.halted
    if memory.trouble_since is not None and not halted and now - memory.trouble_since < LASTING_SECONDS:
        return []
    soon = passed == memory.passed and now - memory.at < OVERVIEW_SECONDS
    if memory.line and (said.line == memory.line or soon):
        return []
    memory.passed, memory.line, memory.at = passed, said.line, now
    key, told = names.overview_key(facts.mirror), _metadata(facts, said)
    evaluation = dg.AssetCheckEvaluation(
        asset_key=key, check_name=names.OVERVIEW_CHECK, passed=passed, metadata=told, severity=dg.AssetCheckSeverity.ERROR,
        description=said.line,
    )  # fmt: skip
    return [dg.AssetMaterialization(key, metadata=told), evaluation]


def _metadata(facts: Facts, said: Headline) -> metadata.Metadata:
    found: metadata.Metadata = {metadata.STATE: dg.MetadataValue.md(f"**{said.text}**" + (f"\n\n{said.loss}" if said.loss else ""))}
    if facts.lag is not None:
        found |= {metadata.RECORDS_BEHIND: facts.lag.lag_records, metadata.LOSS: facts.lag.unread_records}
    return found

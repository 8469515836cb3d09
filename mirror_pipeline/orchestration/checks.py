"""The two checks on every target asset.

``same_as_source``: what was copied since the last verification is identical on the target. One verification evaluates it for all topics.

``copying``: the topic is being copied. The lane's run evaluates it topic by topic. All topics of a run share one outcome, but each
topic has its own check: a halt fails it at once, with its reason and a hint, and leaves the checks of other topics unchanged.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of the check at run time.
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.lags import BEHIND, HALTED
from mirror_pipeline.orchestration import metadata, names
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import KnownMirror, KnownTopic
from mirror_pipeline.orchestration.resource_types import MirrorsResource, SparkSessionResource
from mirror_pipeline.orchestration.run_tags import run_tags, step_tags, tag_check_run
from mirror_pipeline.orchestration.step_thread import SupervisorGone, Worker
from mirror_pipeline.reports import MirrorStatus, Observer, TopicState
from mirror_pipeline.verdicts import DIFFERENT, VerifyReport

VERIFY_CRON = "37 * * * *"
CHECK_MAX_SECONDS = 6 * 3600
NOT_YET = "no record was copied yet"
_SHOWN = (metadata.STATE, metadata.CODE, metadata.REASON, metadata.HINT_KEY, metadata.SINCE)
# A verification, and the topics that are halted, with their states.
Compared = tuple[VerifyReport, dict[str, TopicState]]


class TopicCheckSpec(dg.AssetCheckSpec):
    """A check whose output has a hashed name: Dagster's own names collide for ``a.b`` and ``a_b``."""

    def get_python_identifier(self) -> str:
        """The name of the output."""
        return names.unique(self.name, names.topic_of(self.asset_key))


def copying_spec(mirror: KnownMirror, topic: KnownTopic) -> dg.AssetCheckSpec:
    """The check of one topic."""
    return TopicCheckSpec(
        names.COPYING_CHECK,
        asset=names.target_key(mirror.name, topic.topic),
        description=f"`{topic.topic}` is copied: no halt has stopped it (an error), and it does not wait for a cluster (a warning, and an "
        "error once it lasts).",
    )


def copying_key(mirror: str, topic: str) -> dg.AssetCheckKey:
    """The key of that check."""
    return dg.AssetCheckKey(names.target_key(mirror, topic), names.COPYING_CHECK)


def verdict(key: dg.AssetKey, state: str, facts: metadata.Metadata, *, lasting: bool = False) -> dg.AssetCheckResult:
    """The result of the check for a topic in this state. Waiting for a cluster is an error, red in the asset graph, once it lasts."""
    reason, hint = str(facts.get(metadata.REASON, "")), str(facts.get(metadata.HINT_KEY, ""))
    since = facts.get(metadata.SINCE)
    began = f" since {moment(since.value)}" if state == BEHIND and isinstance(since, dg.TimestampMetadataValue) else ""
    text = f"{state}{began}: {reason}" + (f" ({hint})" if hint else "")
    return dg.AssetCheckResult(
        passed=state not in (HALTED, BEHIND),
        asset_key=key,
        check_name=names.COPYING_CHECK,
        severity=dg.AssetCheckSeverity.WARN if state == BEHIND and not lasting else dg.AssetCheckSeverity.ERROR,
        description=text if state != "ok" else "",
        metadata={name: facts[name] for name in _SHOWN if name in facts},
    )


def moment(seconds: float) -> str:
    """Date and time of day, local."""
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def waiting_since(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> float | None:
    """Since when a topic waits for a cluster by the newest result of its check; None if that says otherwise."""
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=2):  # the present run's has no result yet
        event = record.event.dagster_event if record.event is not None else None
        if event is not None and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            facts = event.asset_check_evaluation_data.metadata
            state, since = facts.get(metadata.STATE), facts.get(metadata.SINCE)
            waits = state is not None and state.value == BEHIND
            return since.value if waits and isinstance(since, dg.TimestampMetadataValue) else None
    return None


def evaluation(key: dg.AssetKey, state: str, facts: metadata.Metadata, *, lasting: bool = False) -> dg.AssetCheckEvaluation:
    """The same result as an event, for topics that the run did not select, and during the run."""
    result = verdict(key, state, facts, lasting=lasting)
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=names.COPYING_CHECK,
        passed=result.passed,
        metadata=result.metadata or {},
        severity=result.severity,
        description=result.description,
    )


def verify_checks(mirror: KnownMirror) -> dg.AssetChecksDefinition:
    """One check for each topic of a mirror, all evaluated by one verification."""
    keys = {topic.topic: names.target_key(mirror.name, topic.topic) for topic in mirror.topics or ()}
    specs = [
        TopicCheckSpec(
            names.SAME_CHECK,
            asset=key,
            description=f"Every record of `{topic}` that was copied since the last verification is on cluster "
            f"`{mirror.config.target}` once, in order, with the same key, value, headers and time as on `{mirror.config.source}`.",
        )
        for topic, key in keys.items()
    ]

    @dg.multi_asset_check(
        name=mirror.called("verify"),
        specs=specs,
        can_subset=True,
        pool=names.pool(mirror.project, mirror.name, "verify"),
        op_tags=step_tags(mirror.project),
    )
    def verify_step(
        context: dg.AssetCheckExecutionContext, mirror_project: MirrorsResource, mirror_spark: SparkSessionResource
    ) -> Iterator[dg.AssetCheckResult]:
        tag_check_run(context, _tags(mirror))
        selected = {names.topic_of(key.asset_key): key.asset_key for key in context.selected_asset_check_keys}

        def compare(_: Observer, stop: threading.Event) -> Compared:
            live, engine = mirror_project.opened(mirror.name)
            only = None if len(selected) == len(keys) else sorted(selected)
            session = lambda: mirror_spark.session_for(engine)  # noqa: E731
            report = live.verify(topics=only, since_verified=True, stop=stop, session=session)
            return report, halted_topics(live.status())

        report, halted = _wait(mirror.name, Worker(compare, name=f"verify {mirror.name}"))
        for topic, key in sorted(selected.items()):
            yield _result(topic, key, report, halted.get(topic))

    return verify_step


def _wait(mirror: str, worker: Worker[Compared]) -> Compared:
    """Wait until the verification ends; terminating the run ends it too."""
    with worker:
        try:
            for _ in worker.watch():
                pass
            return worker.report()
        except MirrorError as error:
            raise failure(f"{mirror} could not be verified: {error.message}", hint=error.hint) from None
        except SupervisorGone as error:
            raise failure(f"{mirror} could not be verified: {error}", hint="the next run starts where this one did") from None


def halted_topics(status: MirrorStatus) -> dict[str, TopicState]:
    """Topics that the newest run of their lane left halted."""
    return {topic.topic: topic for lane in status.lanes for topic in lane.topics if topic.state == HALTED}


def _result(topic: str, key: dg.AssetKey, report: VerifyReport, halt: TopicState | None) -> dg.AssetCheckResult:
    verdicts = [verdict for verdict in report.topics if verdict.topic == topic]
    different = any(verdict.verdict == DIFFERENT for verdict in verdicts)
    notes = [f"halted: {halt.reason}" + (f" ({halt.hint})" if halt.hint else "")] if halt is not None else []
    notes += [verdict.note for verdict in verdicts if verdict.note] or ([] if verdicts else [NOT_YET])
    notes += [f"{v.repaired} records were repaired: they are in {v.target_topic}.repair" for v in verdicts if v.repaired]
    return dg.AssetCheckResult(
        # The copy of a halted topic may be correct so far, but it lacks what its source holds.
        passed=halt is None and all(verdict.ok for verdict in verdicts),
        asset_key=key,
        check_name=names.SAME_CHECK,
        # A record that could not be read, or is not copied, does not prove a difference.
        severity=dg.AssetCheckSeverity.ERROR if different else dg.AssetCheckSeverity.WARN,
        description="; ".join(notes),
        metadata=metadata.of_verification(topic, report),
    )


def verify_job(mirror: KnownMirror, checks: dg.AssetChecksDefinition) -> Any:
    """The job that evaluates all checks of a mirror."""
    return dg.define_asset_job(
        mirror.called("verify_job"),
        selection=dg.AssetSelection.checks(checks),
        description=f"Compares what mirror `{mirror.name}` has copied since the last verification with its source.",
        tags=_tags(mirror),
        executor_def=dg.in_process_executor,
    )


def _tags(mirror: KnownMirror) -> dict[str, str]:
    return run_tags(mirror.project, names.KIND_UPKEEP, CHECK_MAX_SECONDS, mirror=mirror.name)


def verify_schedule(mirror: KnownMirror, job: Any) -> dg.ScheduleDefinition:
    """Once an hour, UTC."""
    return dg.ScheduleDefinition(
        name=mirror.called("verify_hourly"),
        job=job,
        cron_schedule=VERIFY_CRON,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )

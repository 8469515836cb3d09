"""The check `fresh` on every target asset: red while the copy is minutes behind, green otherwise, also where nothing is written.

The lag sensor evaluates it where it changes. Once the lag has not been measurable for the same time, what was green is a warning.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of the check at run time.
from collections.abc import Iterator

import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.exporter.causes import BEHIND_SECONDS
from mirror_pipeline.halts import LEFT_ALONE
from mirror_pipeline.lags import MirrorLag, TopicLag
from mirror_pipeline.orchestration import metadata, names
from mirror_pipeline.orchestration.checks import TopicCheckSpec, moment
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import KnownMirror
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.run_tags import run_tags, step_tags, tag_check_run
from mirror_pipeline.orchestration.sensors.lag_decision import LagMemory
from mirror_pipeline.text import duration, plural

FRESH_MAX_SECONDS = 300
# Evaluations of one tick: of thousands of topics the first ones come over some minutes.
NEWS_A_TICK = 50


def fresh_check(mirror: KnownMirror) -> dg.AssetChecksDefinition:
    """The checks of a mirror's topics, on demand."""
    keys = {topic.topic: names.target_key(mirror.name, topic.topic) for topic in mirror.topics or ()}
    means = f"is at most {duration(BEHIND_SECONDS)} behind cluster `{mirror.config.source}`: an idle topic is fresh."
    specs = [TopicCheckSpec(names.FRESH_CHECK, asset=key, description=f"The copy of `{topic}` {means}") for topic, key in keys.items()]

    @dg.multi_asset_check(name=mirror.called("fresh"), specs=specs, can_subset=True, op_tags=step_tags(mirror.project))
    def look(context: dg.AssetCheckExecutionContext, mirror_project: MirrorsResource) -> Iterator[dg.AssetCheckResult]:
        tag_check_run(context, run_tags(mirror.project, names.KIND_UPKEEP, FRESH_MAX_SECONDS, mirror=mirror.name))
        try:
            lag = {topic.topic: topic for topic in mirror_project.mirror(mirror.name).lag().topics}
        except MirrorError as error:
            raise failure(f"the lag of {mirror.name} is not known: {error.message}", hint=error.hint) from None
        for key in context.selected_asset_check_keys:
            topic = lag.get(names.topic_of(key.asset_key))
            fresh = True if topic is None else is_fresh(topic, before=True)
            yield dg.AssetCheckResult(
                passed=fresh is True, asset_key=key.asset_key, check_name=key.name, description=_words(topic, fresh),
                severity=dg.AssetCheckSeverity.ERROR if fresh is False else dg.AssetCheckSeverity.WARN,
                metadata={} if topic is None else metadata.of_topic_lag(topic),
            )  # fmt: skip

    return look


def is_fresh(topic: TopicLag, *, before: bool) -> bool | None:
    """Whether the copy is up to date enough; None where its lag in time is not known.

    ``before``: what was said last. What was late is fresh again at half the bound, so that it does not change at each look.
    """
    if topic.state in LEFT_ALONE or not topic.lag_records:
        return True
    if topic.lag_seconds is None:
        return None
    return topic.lag_seconds <= (BEHIND_SECONDS if before else BEHIND_SECONDS / 2)


def fresh_events(mirror: KnownMirror, lag: MirrorLag, memory: LagMemory) -> list[dg.AssetCheckEvaluation]:
    """The checks that have changed, those that turn red first; ``memory`` has seen this lag."""
    known = {topic.topic for topic in mirror.topics or ()}
    news = []
    for topic in lag.topics:
        said = memory.fresh(topic.topic)
        fresh = is_fresh(topic, before=said is not False) if topic.topic in known else None
        if fresh is not None and fresh is not said:
            news.append((topic, fresh))
    news.sort(key=lambda each: each[1])
    events = []
    for topic, fresh in news[:NEWS_A_TICK]:
        memory.say_fresh(topic.topic, fresh)
        events.append(
            dg.AssetCheckEvaluation(
                asset_key=names.target_key(mirror.name, topic.topic), check_name=names.FRESH_CHECK, passed=fresh,
                metadata=metadata.of_topic_lag(topic), severity=dg.AssetCheckSeverity.ERROR, description=_words(topic, fresh),
            )  # fmt: skip
        )
    return events


def unknown_events(mirror: KnownMirror, why: str, memory: LagMemory, now: float) -> list[dg.AssetCheckEvaluation]:
    """Warnings in place of green checks, once nobody can tell any more whether they are true; red ones stay."""
    since = memory.see_nothing(now)
    if now - since <= BEHIND_SECONDS:
        return []
    known = {topic.topic for topic in mirror.topics or ()}
    events = []
    for topic in [name for name in memory.said_fresh() if name in known][:NEWS_A_TICK]:
        memory.say_fresh(topic, None)
        events.append(
            dg.AssetCheckEvaluation(
                asset_key=names.target_key(mirror.name, topic), check_name=names.FRESH_CHECK, passed=False,
                severity=dg.AssetCheckSeverity.WARN, description=f"not known since {moment(since)}: {why}",
            )  # fmt: skip
        )
    return events


def _words(topic: TopicLag | None, fresh: bool | None) -> str:
    if topic is None or not topic.lag_records:
        return "nothing is missing"
    if topic.state in LEFT_ALONE:
        return f"{topic.state}: left alone"
    behind = f"{plural(topic.lag_records, 'record')} behind"
    if fresh is None or topic.lag_seconds is None:
        return f"{behind}; since when is not known"
    return f"{behind}, the oldest for {duration(topic.lag_seconds)}"

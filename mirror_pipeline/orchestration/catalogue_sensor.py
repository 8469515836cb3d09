"""One sensor a mirror: refreshes the saved catalogue, and has the definitions reloaded when topics came or went."""

# No `from __future__ import annotations`: Dagster reads the annotations of the sensor at run time.
import json
import os

import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.project import UP_URL_ENV, KnownMirror, Project
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.up.graphql import GraphQLError, reload_location
from mirror_pipeline.orchestration.up.page import known_token

INTERVAL_SECONDS = 30
LOOK_SECONDS = 20.0
RELOAD_AGAIN_SECONDS = 600.0
"""When a reload did not bring the topics in, it is asked for again after this time."""
NO_MIRRORS = "mirrors_missing"


def catalogue_sensor(mirror: KnownMirror) -> dg.SensorDefinition:
    """The catalogue sensor of one mirror."""

    @dg.sensor(
        name=mirror.called("catalogue"),
        description=f"Asks cluster `{mirror.config.source}` which topics mirror `{mirror.name}` selects and saves the answer. "
        "When it differs from the assets shown here, the code location is reloaded.",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        tags={names.MIRROR_TAG: mirror.name},
    )
    def refresh(context: dg.SensorEvaluationContext, mirrors: MirrorsResource) -> dg.SkipReason:
        return tick(context, mirror, mirrors)

    return refresh


def missing_sensor(project: Project) -> dg.SensorDefinition:
    """Stands for the mirrors that cannot be shown, and says why; notices when the file is in order again."""

    @dg.sensor(
        name=NO_MIRRORS,
        description=f"There are no mirrors to show: {project.problem}. Set MIRROR_CONFIG to a mirror.yaml, then reload.",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def say_why(mirrors: MirrorsResource) -> dg.SkipReason:
        try:
            mirrors.config()
        except MirrorError as error:
            return dg.SkipReason(str(error))
        return dg.SkipReason(f"{project.path} is in order now: " + _reload())

    return say_why


def tick(context: dg.SensorEvaluationContext, mirror: KnownMirror, mirrors: MirrorsResource) -> dg.SkipReason:
    """One refresh. Always a skip: a catalogue starts no run."""
    try:
        catalogue = step_thread.bounded(
            lambda: mirrors.mirror(mirror.name).refresh_catalogue(), LOOK_SECONDS, name=f"catalogue of {mirror.name}"
        )
    except (MirrorError, TimeoutError) as error:
        return dg.SkipReason(f"catalogue of mirror {mirror.name} not refreshed: {error} (source cluster {mirror.config.source})")
    now = {(topic.name, topic.target_topic, topic.partitions) for topic in catalogue.topics}
    shown = {(topic.topic, topic.target_topic, topic.partitions) for topic in mirror.topics or ()}
    if mirror.topics is not None and now == shown:
        context.update_cursor("")
        return dg.SkipReason(f"no change: {len(now):,} topics selected, {len(catalogue.excluded):,} left out")
    change = _change({name for name, *_ in shown}, {name for name, *_ in now})
    print_of = json.dumps(sorted(now))
    asked, at = _asked(context.cursor)
    if asked == print_of and step_thread.wall_clock() - at < RELOAD_AGAIN_SECONDS:
        return dg.SkipReason(f"{change}: reload was asked for and is under way")
    context.update_cursor(json.dumps([print_of, step_thread.wall_clock()]))
    return dg.SkipReason(f"{change}: {_reload()}")


def _asked(cursor: str | None) -> tuple[str, float]:
    try:
        asked, at = json.loads(cursor or "")
        return str(asked), float(at)
    except (ValueError, TypeError):
        return "", 0.0


def _change(before: set[str], after: set[str]) -> str:
    words = [f"+{name}" for name in sorted(after - before)] + [f"-{name}" for name in sorted(before - after)]
    shown = ", ".join(words[:5]) + (f" and {len(words) - 5} more" if len(words) > 5 else "")
    return f"topics changed ({shown or 'partitions or names'})"


def _reload() -> str:
    url = os.environ.get(UP_URL_ENV, "")
    if not url:
        return f"reload the code location to see it (`mirror up` does it alone; else set {UP_URL_ENV} to the web server's address)"
    try:
        reload_location(url, names.LOCATION, token=known_token())
    except GraphQLError as error:
        return f"reload failed: {error}"
    return "code location reloaded"

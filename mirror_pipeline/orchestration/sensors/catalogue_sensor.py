"""One sensor per mirror: refresh the saved catalogue, and reload the definitions when topics were added or removed."""

# No `from __future__ import annotations`: Dagster reads the annotations of the sensor at run time.
import json
import os

import dagster as dg

from mirror_pipeline.errors import MirrorError
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.project import UP_URL_ENV, KnownMirror, Project
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.up.config_watch import STAYS
from mirror_pipeline.orchestration.up.graphql import GraphQLError, reload_location
from mirror_pipeline.page.token import known_token
from mirror_pipeline.topics.catalogue import Catalogue

CATALOGUE_INTERVAL_SECONDS = 30
CATALOGUE_LOOK_SECONDS = 20.0
# A reload that did not bring the topics in is requested again after this time.
RELOAD_AGAIN_SECONDS = 600.0


def catalogue_sensor(mirror: KnownMirror) -> dg.SensorDefinition:
    """The catalogue sensor of one mirror."""

    @dg.sensor(
        name=mirror.called("catalogue"),
        description=f"Asks cluster `{mirror.config.source}` which topics mirror `{mirror.name}` selects and saves the answer. "
        "When it differs from the assets shown here, the code location is reloaded.",
        minimum_interval_seconds=CATALOGUE_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        tags={names.MIRROR_TAG: mirror.name},
    )
    def refresh(context: dg.SensorEvaluationContext, mirror_project: MirrorsResource) -> dg.SkipReason:
        return tick(context, mirror, mirror_project)

    return refresh


def file_sensor(project: Project) -> dg.SensorDefinition:
    """Says whether mirror.yaml loads, and reloads the definitions once it has other mirrors, or loads again."""
    description = "Fails while mirror.yaml does not load. Lanes that run keep their settings, no run starts."
    if project.problem and not project.mirrors:
        description = f"There are no mirrors to show: {project.problem}. Set MIRROR_CONFIG to a mirror.yaml, then reload."

    @dg.sensor(
        name=names.MIRROR_FILE,
        description=description,
        minimum_interval_seconds=CATALOGUE_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def look_at_file(context: dg.SensorEvaluationContext, mirror_project: MirrorsResource) -> dg.SkipReason:
        return file_tick(context, project, mirror_project)

    return look_at_file


def file_tick(context: dg.SensorEvaluationContext, project: Project, resource: MirrorsResource) -> dg.SkipReason:
    """Look at the file once."""
    try:
        mirrors = resource.config().mirrors
    except MirrorError as error:
        if not project.mirrors:
            return dg.SkipReason(str(error))
        raise failure(f"{error}; {STAYS}") from None
    if project.problem:
        return dg.SkipReason(f"{project.path} is valid now: {_reload(context)}")
    if tuple(mirrors) != tuple(known.config for known in project.mirrors):
        return _reload_once(context, f"{project.path} has changed", repr(mirrors))
    return dg.SkipReason(f"{project.path} loads")


def tick(context: dg.SensorEvaluationContext, mirror: KnownMirror, mirrors: MirrorsResource) -> dg.SkipReason:
    """Refresh once. The result is always a skip: a catalogue starts no run."""
    try:
        catalogue, states = step_thread.bounded(lambda: _look(mirror, mirrors), CATALOGUE_LOOK_SECONDS, name=f"catalogue of {mirror.name}")
    except (MirrorError, TimeoutError) as error:
        return dg.SkipReason(f"catalogue of mirror {mirror.name} not refreshed: {error} (source cluster {mirror.config.source})")
    now = {(topic.name, topic.target_topic, topic.partitions, states.get(topic.name, "")) for topic in catalogue.topics}
    shown = {(topic.topic, topic.target_topic, topic.partitions, topic.state) for topic in mirror.topics or ()}
    if mirror.topics is not None and now == shown:
        context.update_cursor("")
        return dg.SkipReason(f"no change: {len(now):,} topics selected, {len(catalogue.excluded):,} left out")
    change = _change({name for name, *_ in shown}, {name for name, *_ in now})
    return _reload_once(context, change, json.dumps(sorted(now)))


def _reload_once(context: dg.SensorEvaluationContext, change: str, fingerprint: str) -> dg.SkipReason:
    """Ask for a reload, not again for a while for what one was asked for: a host may have reasons not to show it."""
    asked, at = _asked(context.cursor)
    if asked == fingerprint and step_thread.wall_clock() - at < RELOAD_AGAIN_SECONDS:
        return dg.SkipReason(f"{change}: a reload was requested and is in progress")
    context.update_cursor(json.dumps([fingerprint, step_thread.wall_clock()]))
    return dg.SkipReason(f"{change}: {_reload(context)}")


def _look(mirror: KnownMirror, mirrors: MirrorsResource) -> tuple[Catalogue, dict[str, str]]:
    catalogue = mirrors.mirror(mirror.name).refresh_catalogue()
    return catalogue, mirrors.states_of(mirror.name, [topic.name for topic in catalogue.topics])


def _asked(cursor: str | None) -> tuple[str, float]:
    try:
        asked, at = json.loads(cursor or "")
        return str(asked), float(at)
    except (ValueError, TypeError):
        return "", 0.0


def _change(before: set[str], after: set[str]) -> str:
    words = [f"+{name}" for name in sorted(after - before)] + [f"-{name}" for name in sorted(before - after)]
    shown = ", ".join(words[:5]) + (f" and {len(words) - 5} more" if len(words) > 5 else "")
    return f"topics changed ({shown or 'partitions, names or states'})"


def _reload(context: dg.SensorEvaluationContext) -> str:
    url = os.environ.get(UP_URL_ENV, "")
    if not url:
        return f"reload the code location to see it (`mirror up` does this itself; otherwise set {UP_URL_ENV} to the web server's address)"
    # In another project the location has that project's name.
    origin = context.code_location_origin
    try:
        reload_location(url, origin.location_name if origin is not None else names.LOCATION, token=known_token())
    except GraphQLError as error:
        return f"reload failed: {error}"
    return "code location reloaded"

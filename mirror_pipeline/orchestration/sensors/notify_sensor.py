"""A sensor that a Dagster project may add: it hands each message about a mirror to a function of that project."""

# No `from __future__ import annotations`: Dagster reads the annotations of the sensor at run time.
from collections.abc import Callable

import dagster as dg

from mirror_pipeline.config.settings import NotifyConfig
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.exporter.facts import Facts, look
from mirror_pipeline.exporter.notify import Messages
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.text import few

NOTIFY_INTERVAL_SECONDS = 30
# Dagster abandons a tick after a minute.
NOTIFY_LOOK_SECONDS = 40.0
Tell = Callable[[str, str], None]
_TO_THE_HOST = ("",)
_looking: set[str] = set()


def notify_sensor(
    mirror: str, tell: Tell, *, after: float = 120.0, default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED
) -> dg.SensorDefinition:
    """Tell a function what is wrong with a mirror, and when it is over: what `notify:` in mirror.yaml sends, with a memory of its own.

    Args:
        mirror: its name.
        tell: called with a title and a text; where it raises, the message is told again at the next tick.
        after: seconds for which a cause must have lasted.
        default_status: pass RUNNING to start it with the project.
    """

    @dg.sensor(
        name=names.unique("notify", mirror),
        description=f"Tells what is wrong with mirror `{mirror}` once it has lasted for {after:g} s, and when it is over.",
        minimum_interval_seconds=NOTIFY_INTERVAL_SECONDS,
        default_status=default_status,
        tags={names.MIRROR_TAG: mirror},
    )
    def notify(context: dg.SensorEvaluationContext, mirror_project: MirrorsResource) -> dg.SensorResult | dg.SkipReason:
        try:
            facts = _look(mirror, mirror_project)
        except (MirrorError, TimeoutError) as error:
            return dg.SkipReason(f"mirror {mirror} could not be looked at: {error}")
        told: list[str] = []

        def send(_: str, title: str, text: str) -> bool:
            tell(title, text)
            told.append(title)
            return True

        messages = Messages(send, context.cursor or "")
        messages.look([facts], NotifyConfig(_TO_THE_HOST, after), step_thread.wall_clock())
        return dg.SensorResult(skip_reason="; ".join(few(told)) or "nothing new to tell", cursor=messages.kept)

    return notify


def _look(mirror: str, project: MirrorsResource) -> Facts:
    return step_thread.bounded_alone(
        lambda: look(project.mirror(mirror), Facts(mirror), groups=False), NOTIFY_LOOK_SECONDS, name=f"look at {mirror}",
        at_work=_looking, who=mirror, busy="the look before has not returned",
    )  # fmt: skip

"""What a run may say of itself: plain numbers, truths and names.

Dagster turns the ``str``, ``int`` and ``bool`` of a pythonic config class into types that also take ``{env: NAME}``, which reads
the environment of the run's process. A password there would end up as, say, the name of a topic. So the schema is spelt out.
"""

from __future__ import annotations

from typing import TypeVar

import dagster as dg

Settings = TypeVar("Settings", bound=dg.Config)
_PLAIN = {str: dg.String, bool: dg.Bool, float: dg.Float}


def plain_fields(settings: type[dg.Config]) -> dict[str, dg.Field]:
    """The schema of a config class: its fields with their defaults and descriptions, and nothing but literal values.

    Raises:
        KeyError: a field of another type.
    """
    return {
        name: dg.Field(_PLAIN[field.annotation], default_value=field.default, is_required=False, description=field.description)  # type: ignore[index]
        for name, field in settings.model_fields.items()
    }


def settings_of(context: dg.AssetExecutionContext, settings: type[Settings]) -> Settings:
    """What this run's configuration says.

    Raises:
        pydantic.ValidationError: a value is out of its bounds.
    """
    return settings(**context.op_execution_context.op_config)

"""Run configuration that accepts literal numbers, booleans and strings only.

Dagster turns the ``str``, ``int`` and ``bool`` of a pythonic config class into types that also accept ``{env: NAME}``, which reads
the environment of the run's process. A password there could become, for example, a topic name. So the schema is explicit.
"""

from __future__ import annotations

from typing import TypeVar

import dagster as dg

Settings = TypeVar("Settings", bound=dg.Config)
_PLAIN = {str: dg.String, bool: dg.Bool, float: dg.Float}


def plain_fields(settings: type[dg.Config]) -> dict[str, dg.Field]:
    """The schema of a config class: its fields with defaults and descriptions; only literal values are accepted.

    Raises:
        KeyError: a field of another type.
    """
    return {
        name: dg.Field(_PLAIN[field.annotation], default_value=field.default, is_required=False, description=field.description)  # type: ignore[index]
        for name, field in settings.model_fields.items()
    }


def settings_of(context: dg.AssetExecutionContext, settings: type[Settings]) -> Settings:
    """The configuration of this run.

    Raises:
        pydantic.ValidationError: a value is out of its bounds.
    """
    return settings(**context.op_execution_context.op_config)

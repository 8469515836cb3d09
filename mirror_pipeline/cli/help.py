"""Help pages without ``<bool>`` behind every switch: nobody shall write ``--json true``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

NO_VALUE = ""
"""metavar of a switch."""


class PlainCommand(TyperCommand):
    """A command whose ``--help`` shows no type."""

    def get_help_option(self, ctx: Any) -> Any:
        return _plain(super().get_help_option(ctx))


class PlainGroup(TyperGroup):
    """A group whose ``--help`` shows no type."""

    def get_help_option(self, ctx: Any) -> Any:
        return _plain(super().get_help_option(ctx))


def _plain(option: Any) -> Any:
    if option is not None:
        option.metavar = NO_VALUE
    return option

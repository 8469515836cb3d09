"""How the commands load the configuration and reach its mirrors.

Heavy packages (Spark, Delta, Arrow) are imported only when a command needs them, so that ``mirror --help`` stays fast.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_pipeline.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from mirror_pipeline.mirror import Mirror
    from mirror_pipeline.verdicts import VerifyReport


def _no_external(*_: Any, **__: Any) -> VerifyReport:
    raise UsageError("topics cannot be compared here")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A read configuration: the names of its mirrors, each mirror on demand, one Spark session for all of them.

    ``external`` is ``mirror_pipeline.verify.external.verify_external`` over it.
    """

    path: Path
    names: tuple[str, ...]
    mirror: Callable[[str], Mirror]
    session: Callable[[], Any]
    external: Callable[..., VerifyReport] = _no_external

    def pick(self, wanted: Sequence[str] | None) -> list[str]:
        """The mirrors named on the command line, in the file's order; all of them when none is named.

        Raises:
            UsageError: a name that the file does not have.
        """
        for name in wanted or ():
            if name not in self.names:
                raise UsageError(f"{self.path} has no mirror '{name}'", hint=_nearest(name, self.names))
        return [name for name in self.names if not wanted or name in wanted]

    def one(self, *wanted: str | None) -> str:
        """The mirror named on the command line, or the file's only one. Raises UsageError."""
        names = self.pick([name for name in wanted if name])
        if len(names) != 1:
            raise UsageError(f"which mirror? {self.path} has {', '.join(names)}", hint="name one with --mirror")
        return names[0]


def load(path: Path) -> LoadedConfig:
    """Read ``path``; nothing is connected to yet.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", hint="'mirror init' writes a starter file; -c FILE names another file")
    from mirror_pipeline import Mirror, load_config

    config = load_config(path)
    if not config.mirrors:
        raise ConfigError(f"{path}: no mirror is defined", hint="add one under 'mirrors:'; 'mirror init' shows the form")

    def session() -> Any:
        from mirror_pipeline.execution.spark import build_session

        return build_session(config.mirrors[0].engine)

    def external(*arguments: Any, **options: Any) -> VerifyReport:
        from mirror_pipeline.verify.external import verify_external

        return verify_external(config, *arguments, **options)

    return LoadedConfig(
        path=path,
        names=tuple(m.name for m in config.mirrors),
        mirror=lambda name: Mirror(config, name),
        session=session,
        external=external,
    )


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    known = ", ".join(names)
    return f"did you mean '{close[0]}'? It has: {known}" if close else f"it has: {known}"

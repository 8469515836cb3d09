"""The one seam between the commands and everything behind them.

Heavy packages (Spark, Delta, Arrow) are imported when a command needs them and not before: ``mirror --help`` is quick.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mirror_pipeline.errors import ConfigError, UsageError
from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.model import Gap
from mirror_pipeline.reports import BackfillReport, Finding, Halt, MirrorPlan, MirrorStatus, Progress, Resolution, RunReport

if TYPE_CHECKING:
    from mirror_pipeline.verdicts import VerifyReport
    from mirror_pipeline.verify.repair import RepairReport

Observer = Callable[[Progress], None]


def _no_external(*_: Any, **__: Any) -> VerifyReport:
    raise UsageError("topics cannot be compared here")


class MirrorFace(Protocol):
    """What the commands ask of ``mirror_pipeline.Mirror``."""

    def plan(self) -> MirrorPlan: ...
    def check(self) -> list[Finding]: ...
    def lag(self) -> MirrorLag: ...
    def status(self) -> MirrorStatus: ...
    def gaps(self) -> list[Gap]: ...
    def evict(self) -> list[dict[str, Any]]: ...
    def halts(self) -> list[Halt]: ...
    def resolve(self, topic: str, accept: str, /) -> Resolution: ...

    def run(
        self,
        *,
        once: bool = ...,
        seconds: float | None = ...,
        topics: Collection[str] | None = ...,
        lane: int | None = ...,
        observer: Observer | None = ...,
        stop: threading.Event | None = ...,
        session: Any | None = ...,
        drain: bool = ...,
    ) -> RunReport: ...

    def backfill(
        self,
        topic: str,
        from_time_ms: int,
        to_time_ms: int,
        /,
        *,
        into: str | None = ...,
        observer: Observer | None = ...,
        stop: threading.Event | None = ...,
        session: Any | None = ...,
    ) -> BackfillReport: ...


    def verify(
        self,
        *,
        topics: Collection[str] | None = ...,
        from_time: int | None = ...,
        to_time: int | None = ...,
        sample: float = ...,
        observer: Callable[[Any], None] | None = ...,
        stop: threading.Event | None = ...,
        session: Any | None = ...,
    ) -> VerifyReport: ...

    def repair(
        self,
        topic: str,
        /,
        *,
        dry_run: bool = ...,
        observer: Callable[[Any], None] | None = ...,
        stop: threading.Event | None = ...,
        session: Any | None = ...,
    ) -> RepairReport: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A read configuration: the names of its mirrors, each mirror on demand, one Spark session for all of them.

    ``external`` is ``mirror_pipeline.verify.external.verify_external`` over it.
    """

    path: Path
    names: tuple[str, ...]
    mirror: Callable[[str], MirrorFace]
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


def load(path: Path) -> Opened:
    """Read ``path``; nothing is connected to yet.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", hint="'mirror init' writes one to start from; -c FILE names another")
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

    return Opened(
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

"""Fetches jars by name with the Ivy that comes inside pyspark.

Where they come from is the user's business: ``MIRROR_IVY_SETTINGS``, else ``~/.ivy2/ivysettings.xml``, else Ivy's own
default repository; proxies and truststores by ``JAVA_TOOL_OPTIONS``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.execution.java import find_java
from mirror_pipeline.host import home

STALL_SECONDS = 120.0  # Ivy prints a dot per few kB and a line per file: two silent minutes mean a dead connection

# Without a POM for every jar a fetch takes a third of the time; the list of jars is complete already.
_JARS_ONLY = """<ivysettings>
  <settings defaultResolver="main"/>
  <resolvers><ibiblio name="main" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_ARRIVED = re.compile(rb"\[SUCCESSFUL \]")
_TROUBLE = re.compile(r"not found|error|fail|unresolved|exception|refused|timed? ?out|unknown ?host", re.IGNORECASE)


class FetchFailed(MirrorError):
    """Ivy could not fetch every requested jar."""

    retryable = True


def fetch(coordinates: Iterable[str], into: Path, work: Path, *, pattern: str, transitive: bool, arrived: Callable[[], None]) -> None:
    """Have Ivy put the jars ``group:artifact:version`` into the folder ``into``.

    Args:
        coordinates: what to fetch.
        into: folder for the jars.
        work: folder for Ivy's cache and files; what was fetched is not fetched again by a second try.
        pattern: Ivy's file name pattern below ``into``.
        transitive: fetch what they depend on as well.
        arrived: called once per downloaded jar.

    Raises:
        FetchFailed: with the first line of Ivy's output that names the error.
    """
    work.mkdir(parents=True, exist_ok=True)
    module = work / "ivy.xml"
    module.write_text(_module(coordinates, transitive))
    command = [str(find_java()), "-cp", str(_ivy_jar()), "org.apache.ivy.Main", *_settings(work, transitive)]
    command += ["-cache", str(work / "cache"), "-ivy", str(module), "-confs", "default", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{into}/{pattern}"]
    with (work / "ivy.log").open("wb") as log:
        status = _run(command, log.write, arrived)
    if status != 0:
        raise FetchFailed(f"jars could not be fetched: {_trouble(work / 'ivy.log')}", hint=_where_from())


def _module(coordinates: Iterable[str], transitive: bool) -> str:
    lines = ['<ivy-module version="2.0">', '<info organisation="mirror" module="jars"/>']
    lines += ['<configurations><conf name="default"/></configurations>', "<dependencies>"]
    for coordinate in coordinates:
        organisation, name, revision = (quoteattr(part) for part in coordinate.split(":"))
        follow = "true" if transitive else "false"
        lines.append(f'<dependency org={organisation} name={name} rev={revision} transitive="{follow}" conf="default->default"/>')
    return "\n".join([*lines, "</dependencies>", "</ivy-module>", ""])


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UsageError("pyspark is not installed in this Python", hint="pip install mirror-pipeline")
    jars = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise UsageError(f"no ivy jar inside {Path(spec.origin).parent}/jars", hint="install pyspark from its wheel")
    return jars[-1]


def _own_settings() -> Path | None:
    """The user's Ivy settings file, if there is one."""
    named = os.environ.get("MIRROR_IVY_SETTINGS", "")
    if named:
        if not Path(named).is_file():
            raise UsageError(f"MIRROR_IVY_SETTINGS names {named}, which is no file", hint="unset it or name an ivysettings.xml")
        return Path(named)
    folder = home()
    usual = folder / ".ivy2" / "ivysettings.xml" if folder else None
    return usual if usual is not None and usual.is_file() else None


def _settings(work: Path, transitive: bool) -> list[str]:
    own = _own_settings()
    if own is not None:
        return ["-settings", str(own)]
    if transitive:
        return []
    (work / "ivysettings.xml").write_text(_JARS_ONLY)
    return ["-settings", str(work / "ivysettings.xml")]


def _where_from() -> str:
    own = _own_settings()
    return f"settings: {own}" if own else "behind a proxy or a mirror: set JAVA_TOOL_OPTIONS or MIRROR_IVY_SETTINGS"


def _run(command: list[str], keep: Callable[[bytes], object], arrived: Callable[[], None]) -> int:
    process = subprocess.Popen(  # noqa: S603 - our own command line
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        for line in _lines(process):
            keep(line)
            if _ARRIVED.search(line):
                arrived()
        return process.wait(STALL_SECONDS)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    if process.stdout is None:
        return
    rest = b""
    with selectors.PollSelector() as selector:  # select() ends at descriptor 1,023, and a driver may hold more connections
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(STALL_SECONDS):
                raise FetchFailed(f"jars could not be fetched: nothing arrived for {STALL_SECONDS:.0f} s", hint=_where_from())
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line + b"\n"
    if rest:
        yield rest


def _trouble(log: Path) -> str:
    lines = [line.strip(" \t:") for line in log.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if line and _TROUBLE.search(line) and not line.startswith("[SUCCESSFUL")]
    cause = next((line for line in telling if re.search(r"exception|refused|unknown ?host|timed? ?out", line, re.IGNORECASE)), None)
    return (cause or (telling or lines or ["Ivy said nothing"])[0])[:300]

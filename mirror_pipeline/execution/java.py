"""Finds the Java that runs Spark, Kafka and Ivy, and says in one line what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from mirror_pipeline.errors import UsageError

MINIMUM_JAVA = 17  # Spark 4 and Kafka 4 brokers refuse anything older
JAVA_ANSWER_SECONDS = 60.0  # `java -version` answers within a second, unless the machine is starved

_INSTALL = "install openjdk-17-jre-headless (Debian/Ubuntu) or another JDK, or set JAVA_HOME"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(minimum: int = MINIMUM_JAVA) -> Path:
    """The ``java`` executable to use: ``$JAVA_HOME/bin/java`` when JAVA_HOME is set, else the one on PATH.

    Raises:
        UsageError: no Java, or one older than ``minimum``; the hint says what to install.
    """
    home = os.environ.get("JAVA_HOME", "")
    return _checked(home, "" if home else os.environ.get("PATH", ""), minimum)


@lru_cache(maxsize=8)
def _checked(home: str, path: str, minimum: int) -> Path:
    java = _locate(home, path, minimum)
    version = java_version(java)
    if version is None:
        raise UsageError(f"Java {minimum} or newer is needed, and `{java} -version` reports no version{_said(java)}", hint=_INSTALL)
    if version < minimum:
        raise UsageError(f"Java {minimum} or newer is needed, found {version} at {java}", hint=_INSTALL)
    return java


def _locate(home: str, path: str, minimum: int) -> Path:
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise UsageError(f"Java {minimum} or newer is needed, and JAVA_HOME={home} holds no bin/java", hint=_INSTALL)
        return java
    on_path = shutil.which("java", path=path)
    if on_path is None:
        raise UsageError(f"Java {minimum} or newer is needed, and no java is on PATH", hint=_INSTALL)
    return Path(on_path)


def option(name: str, path: object) -> str:
    """An option that ends in a path, as a word of Spark's lists of Java options: spaces and quotes stay in it."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}{escaped}"'


def java_version(java: Path) -> int | None:
    """The feature version (8, 11, 17, ...) that ``java -version`` prints, None when it prints none."""
    match = _VERSION.search(_answer(java))
    return int(match.group(1)) if match else None


def _said(java: Path) -> str:
    """The line of its answer that names an error, such as too little memory."""
    return next((f" ({line.strip()})" for line in _answer(java).splitlines() if "rror" in line or "ould not" in line), "")


def _answer(java: Path) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"error: {error}"
    return answer.stderr + answer.stdout


def main() -> int:
    """``python -m mirror_pipeline.execution.java``: nothing when Java is fine, else one line and exit code 2."""
    try:
        find_java()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

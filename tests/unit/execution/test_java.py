"""Which Java is taken, and the one line said when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirror_pipeline.errors import UsageError
from mirror_pipeline.execution.java import find_java, java_version

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15'
ORACLE_8 = 'java version "1.8.0_202"'
EARLY_21 = 'openjdk version "21-ea" 2023-09-19'


def install(folder: Path, banner: str, status: int = 0) -> Path:
    """A program called java that says ``banner`` the way a JVM does: on standard error."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{banner}\nEND\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        (OPENJDK_17, 17),
        (ORACLE_8, 8),
        (EARLY_21, 21),
        ("Picked up JAVA_TOOL_OPTIONS: -Da=version\n" + OPENJDK_17, 17),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_version_is_read_from_what_java_says(tmp_path: Path, banner: str, version: int | None) -> None:
    assert java_version(install(tmp_path, banner)) == version


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, other = install(tmp_path / "home", OPENJDK_17), install(tmp_path / "path", OPENJDK_17)
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == home
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == other


def test_too_old_java_is_named_with_its_place_and_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = install(tmp_path, 'openjdk version "11.0.20" 2023-07-18')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        find_java()
    assert str(caught.value).startswith(f"Java 17 or newer is needed, found 11 at {java} (install openjdk-17-jre-headless")
    assert "\n" not in str(caught.value)


def test_java_home_without_java_is_refused_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=rf"JAVA_HOME={tmp_path} holds no bin/java"):
        find_java()


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no java is on PATH"):
        find_java()


def test_the_command_says_one_line_and_fails(tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "mirror_pipeline.execution.java"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "install openjdk-17-jre-headless" in done.stderr

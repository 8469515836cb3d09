"""What pyproject.toml, the lock files and the Makefile's helpers promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_folder_is_installed() -> None:
    folders = {str(path.parent.relative_to(ROOT)).replace("/", ".") for path in (ROOT / "mirror_pipeline").rglob("__init__.py")}
    named = set(PROJECT["tool"]["setuptools"]["packages"])
    assert named == folders | {"mirror_pipeline.resources", "mirror_pipeline.dagster_home"}
    assert (ROOT / "resources" / "__init__.py").exists()


def test_every_data_file_of_the_package_is_installed() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    folders = [ROOT / "mirror_pipeline", ROOT / "resources"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    left = [path for path in files if path.suffix not in (".py", ".pyc") and not any(path.match(pattern) for pattern in patterns)]
    assert left == []


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_lock_pins_and_hashes_everything_and_names_no_host(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^--?(index|find|extra|trusted)", text, re.MULTILINE)
    starts = re.findall(r"^(\S+) \\\n    --hash=sha256:", text, re.MULTILINE)
    assert len(starts) == len(re.findall(r"^[A-Za-z]", text, re.MULTILINE))
    assert all("==" in start for start in starts)


def test_lock_holds_what_the_project_asks_for() -> None:
    for lock, wanted in {
        "requirements.lock": PROJECT["project"]["dependencies"],
        "requirements-dev.lock": PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"],
    }.items():
        locked = {name.lower() for name in re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / lock).read_text(), re.MULTILINE)}
        asked = {re.split(r"[=<>~]", requirement)[0].lower() for requirement in wanted}
        assert asked <= locked


def test_lock_files_agree() -> None:
    def pins(lock: str) -> dict[str, str]:
        return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))

    runtime, dev = pins("requirements.lock"), pins("requirements-dev.lock")
    assert {name: dev.get(name) for name in runtime} == runtime


def find_python(**environment: str) -> subprocess.CompletedProcess[str]:
    script, env = ROOT / "scripts" / "find-python", {"PATH": os.environ["PATH"], **environment}
    return subprocess.run([str(script)], env=env, capture_output=True, text=True, check=False)


def fake_python(path: Path, version: str) -> str:
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="this Python is not the 3.11 that the script looks for")
def test_python_3_11_is_found_behind_others(tmp_path: Path) -> None:
    other = fake_python(tmp_path / "python3", "3.13")
    assert find_python(PYTHON=f"{tmp_path}/none {other} {sys.executable}").stdout.strip() == sys.executable


def test_another_python_is_one_clear_line(tmp_path: Path) -> None:
    other = fake_python(tmp_path / "python3", "3.9")
    done = find_python(PYTHON=f"{tmp_path}/none {other}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: Python 3.11 is needed, found 3.9 as {other}: install python3.11")
    assert len(done.stderr.splitlines()) == 1

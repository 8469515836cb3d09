"""What `deploy/` starts is there: commands, options, files, values; judged by the tools of each kind where a host has them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from mirror_pipeline.cli.main import app
from mirror_pipeline.errors import UsageError
from tests.support.image import steps_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "mirror.service"


def understood(words: Sequence[str]) -> dict[str, object]:
    """The values of a command line's options. Raises where the command does not take them."""
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    return dict(command.make_context(words[0], list(words[1:])).params)


def tool(name: str) -> str:
    """The tool's path; without it the test is skipped, and says so."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def unit_settings() -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


def test_an_option_that_is_not_there_is_noticed() -> None:
    with pytest.raises(Exception, match="--nonsense"):
        understood(["run", "--nonsense"])


def test_the_unit_starts_a_run_and_lets_it_end() -> None:
    settings = unit_settings()
    (start,) = settings["ExecStart"]
    program, *words = shlex.split(start)
    assert program == "/opt/mirror/bin/mirror"
    assert understood(words)["config"] == Path("/etc/mirror/mirror.yaml")
    assert settings["RestartPreventExitStatus"] == [str(UsageError.exit_code)], "a wrong file waits for a person, nothing else does"
    assert settings["KillMode"] == ["mixed"], "Spark would end before its driver"
    assert "MemoryDenyWriteExecute" not in settings, "Java and LLVM write code and run it"
    state = [value for value in settings["Environment"] if value.startswith("MIRROR_STATE=")]
    assert state == ["MIRROR_STATE=/var/lib/mirror/state"], "systemd makes nothing else writable: StateDirectory=mirror"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/mirror/bin/mirror", tool("true")))  # it looks whether the program is there
    done = subprocess.run([tool("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([tool("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_dockerfile_copies_is_handed_to_the_engine() -> None:
    handed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for what, rest in steps_of(ROOT / "Dockerfile") if what == "COPY" for word in rest.split()[:-1] if "--from" not in rest]
    assert len(copied) > 4
    for name in copied:
        assert (ROOT / name).exists()
        assert any(path == name or path.startswith(f"{name}/") for path in handed), f"{name} is ignored"

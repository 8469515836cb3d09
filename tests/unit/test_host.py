from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from mirror_pipeline import host
from mirror_pipeline.errors import UsageError

NAMES = ("MIRROR_CACHE", "XDG_CACHE_HOME", "HOME", "USER", "LOGNAME")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable says anything, and the password file lists nobody."""

    def unknown(_: object) -> pwd.struct_passwd:
        raise KeyError

    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


def test_a_user_without_a_name_is_its_number() -> None:
    assert host.operator().startswith(f"uid {os.geteuid()}@")


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"USER": "ann", "LOGNAME": "bob"}, "ann"),
        ({"LOGNAME": "bob"}, "bob"),
        ({"USER": " \n", "LOGNAME": "bob"}, "bob"),
        ({"USER": "an\nn\x1b[31m\udcff"}, "ann[31m"),
        ({"USER": "x" * 1000}, "x" * 64),
    ],
)
def test_the_variables_name_the_user(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert host.user_name() == name


def test_without_a_home_a_tilde_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "relative"):
        if value is not None:
            monkeypatch.setenv("HOME", value)
        assert host.home() is None
        with pytest.raises(UsageError, match="~ is the home of nobody here") as raised:
            host.expanded("~/buffer")
        assert "set HOME" in raised.value.hint
    with pytest.raises(UsageError, match="~nobody-at-all is the home"):
        host.expanded("~nobody-at-all/x")


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert host.expanded("~/a b/ü") == Path("/somewhere/a b/ü")
    assert host.expanded(Path("~")) == Path("/somewhere")
    assert host.expanded("a/~") == Path("a/~")
    assert host.expanded("") == Path(".")


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"MIRROR_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/mirror-pipeline"),
    ],
)
def test_variables_name_the_cache(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert host.cache_folder() == Path(folder)


def test_the_cache_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert host.cache_folder() == tmp_path / ".cache" / "mirror-pipeline"


@pytest.mark.parametrize("home", [None, "/dev/null/nowhere", "/nowhere"])
def test_without_a_home_to_write_to_the_cache_is_temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str | None) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert host.cache_folder() == tmp_path / f"mirror-pipeline-{os.geteuid()}"


def test_a_temporary_cache_that_another_user_made_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"mirror-pipeline-{os.geteuid()}"
    (tmp_path / "mine").mkdir()
    folder.symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match="was made by somebody else") as raised:
        host.cache_folder()
    assert "MIRROR_CACHE" in raised.value.hint
    folder.unlink()
    folder.mkdir(0o700)
    assert host.cache_folder() == folder
    another = os.geteuid() + 1
    folder.rename(tmp_path / f"mirror-pipeline-{another}")
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(UsageError, match="was made by somebody else"):
        host.cache_folder()


def test_a_temporary_cache_is_closed_to_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mirror_pipeline.files import private_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        private_folder(host.cache_folder() / "jars")
    finally:
        os.umask(before)
    assert stat.S_IMODE(host.cache_folder().stat().st_mode) == 0o700

"""Machine code, jars and programs in the cache are used only when no other user can have written them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.wan import link
from mirror_pipeline.files import Forgeable, private_folder, read_own, refuse_forgeable
from mirror_pipeline.kafka.records import machine_code
from tests.support.machine_code_places import Place

STRANGER = 4711
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


CODE, NAME = b"machine code", "kernel.total-0123.o"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of machine code in a cache folder."""
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "cache" / "machine-code" / NAME
    machine_code._keep((path.parent,), NAME, CODE)
    assert machine_code._kept((path.parent,), NAME) == CODE
    return path


def given(path: Path) -> None:
    os.chown(path, STRANGER, -1)


FORGED: dict[str, Callable[[Path, Path], object]] = {
    "file, group": lambda file, cache: file.chmod(0o664),
    "file, others": lambda file, cache: file.chmod(0o646),
    "folder, group": lambda file, cache: file.parent.chmod(0o770),
    "cache, others": lambda file, cache: cache.chmod(0o1777),
    "file, owner": lambda file, cache: given(file),
    "folder, owner": lambda file, cache: given(file.parent),
    "cache, owner": lambda file, cache: given(cache),
}


@as_root
@pytest.mark.parametrize("how", FORGED)
def test_code_that_another_user_could_have_written_is_not_loaded(kept: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    FORGED[how](kept, kept.parents[1])
    assert machine_code._kept((kept.parent,), NAME) is None
    assert f"machine code kept in {kept} is not loaded" in caplog.text


@as_root
def test_what_was_open_is_closed_and_used_again(tmp_path: Path) -> None:
    """A cache that was made with a umask of 002 gets one warning, not one at every start."""
    place = Place(tmp_path)
    (place.folder / "__pycache__").touch()
    place.run()
    (path,) = place.kept()
    for opened in (path, path.parent, place.cache):
        opened.chmod(0o777)
    said, warned = place.run()
    assert said == "42 True\n", "compiled anew"
    assert f"machine code kept in {path} is not loaded" in warned
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent, place.cache)] == [0o644, 0o755, 0o755]
    assert place.run() == ("42 False\n", "")


@as_root
def test_a_folder_of_another_user_is_not_written_to_either(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept.unlink()
    given(kept.parent)
    machine_code._keep((kept.parent,), NAME, CODE)
    assert not kept.exists()
    assert "every process compiles it again" in caplog.text


def test_our_own_code_under_another_name_is_not_loaded(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept.rename(kept.with_name("kernel.other-4567.o"))
    assert machine_code._kept((kept.parent,), "kernel.other-4567.o") is None
    assert "is damaged" in caplog.text


def test_a_link_is_not_followed(kept: Path, tmp_path: Path) -> None:
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert machine_code._kept((kept.parent,), NAME) is None


def test_folders_are_made_for_their_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "a" / "cache"))
    before = os.umask(0)
    try:
        private_folder(tmp_path / "a" / "cache" / "b" / "c")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / p).stat().st_mode) for p in ("a", "a/cache", "a/cache/b", "a/cache/b/c")] == [0o700] * 4


def test_what_lies_above_the_cache_folder_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    tmp_path.chmod(0o777)
    private_folder(tmp_path / "cache" / "a")
    (tmp_path / "cache" / "a" / "file").write_bytes(b"x")
    assert read_own(tmp_path / "cache" / "a" / "file") == b"x"
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(Forgeable, match="mode 0777"):
        refuse_forgeable(tmp_path / "file")
    tmp_path.chmod(0o700)


@as_root
@pytest.mark.parametrize("forge", [given, lambda path: path.chmod(0o777)])
def test_the_emulated_link_runs_only_what_it_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forge: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(link, "SOURCE", tmp_path / "link.c")
    (tmp_path / "link.c").write_text("int main(void) { return 0; }\n")
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    path = link.program()
    made = path.stat().st_ino
    assert link.program().stat().st_ino == made
    path.write_text("#!/bin/sh\nexit 3\n")
    forge(path)
    assert link.program().read_bytes().startswith(b"\x7fELF")

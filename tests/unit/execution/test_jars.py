"""Jars are fetched by the real Ivy, here from a folder: checksums, cache, failures."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import threading
from pathlib import Path

import pytest

from mirror_pipeline.errors import UsageError
from mirror_pipeline.execution import ivy, jars
from mirror_pipeline.execution.jars import JarKind, WrongChecksum

CONTENT = {"org.example:one:1.0": b"first jar", "org.example:two:2.0": b"second jar"}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Ivy takes jars from, named by MIRROR_IVY_SETTINGS as a user's own repository is."""
    folder = tmp_path / "repository"
    for coordinate, content in CONTENT.items():
        organisation, name, revision = coordinate.split(":")
        jar = folder / organisation / name / f"{name}-{revision}.jar"
        jar.parent.mkdir(parents=True)
        jar.write_bytes(content)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="r"/><resolvers><filesystem name="r">'
        f'<artifact pattern="{folder}/[organisation]/[artifact]/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setenv("MIRROR_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    return folder


def pinned(**changed: str) -> JarKind:
    sums = {coordinate: hashlib.sha256(content).hexdigest() for coordinate, content in CONTENT.items()}
    return JarKind("example", "Example 1", {**sums, **changed})


@pytest.fixture
def pin(monkeypatch: pytest.MonkeyPatch) -> JarKind:
    """The list of pinned kinds holds ``example`` alone."""
    use(monkeypatch, pinned())
    return pinned()


def use(monkeypatch: pytest.MonkeyPatch, kind: JarKind) -> None:
    monkeypatch.setattr(jars, "kinds", lambda: {kind.name: kind})
    monkeypatch.setattr(jars, "_checked", set())


def test_jars_arrive_once_and_are_counted(repository: Path, pin: JarKind, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = jars.ensure_jars("example", lambda *step: seen.append(step))
    assert folder == tmp_path / "cache" / "jars" / "example"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"one-1.0.jar": b"first jar", "two-2.0.jar": b"second jar"}
    assert seen == [("Example 1", 0, 2), ("Example 1", 1, 2), ("Example 1", 2, 2)]
    assert jars.ensure_jars("example", lambda *step: pytest.fail("fetched twice")) == folder


def test_jars_arrive_in_a_process_with_thousands_of_descriptors(repository: Path, pin: JarKind) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 < hard < 4096 else max(soft, 4096), hard))
    with contextlib.ExitStack() as open_files:
        while (number := os.dup(0)) < 1100:
            open_files.callback(os.close, number)
        open_files.callback(os.close, number)
        assert len(list(jars.ensure_jars("example").iterdir())) == 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_wrong_checksum_is_an_error_and_nothing_stays(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, pinned(**{"org.example:two:2.0": "0" * 64}))
    with pytest.raises(WrongChecksum, match=r"Example 1: two-2\.0\.jar has SHA-256 [0-9a-f]{64}, pinned is 0{64}"):
        jars.ensure_jars("example")
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [".example.lock"]


def test_jar_that_cannot_be_had_is_named_after_some_tries(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, pinned(**{"org.example:three:3.0": "0" * 64}))
    monkeypatch.setattr(jars, "DOWNLOAD_PAUSES", (0.01,))
    with pytest.raises(ivy.FetchFailed, match=r"not found: org\.example#three;3\.0") as caught:
        jars.ensure_jars("example")
    assert "ivysettings.xml" in caught.value.hint
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [".example.lock"]


@pytest.mark.parametrize("damage", ["altered", "missing", "extra"])
def test_damaged_cache_is_fetched_anew(repository: Path, pin: JarKind, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    folder = jars.ensure_jars("example")
    if damage == "missing":
        (folder / "one-1.0.jar").unlink()
    else:
        (folder / ("one-1.0.jar" if damage == "altered" else "stray.jar")).write_bytes(b"not it")
    assert jars.mismatch(pin, folder) != ""
    use(monkeypatch, pin)
    assert jars.mismatch(pin, jars.ensure_jars("example")) == ""


def test_parallel_calls_fetch_once(repository: Path, pin: JarKind) -> None:
    starts: list[int] = []
    threads = [threading.Thread(target=jars.ensure_jars, args=("example", lambda _, done, __: starts.append(done))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert starts.count(0) == 1


def test_settings_file_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch, pin: JarKind, tmp_path: Path) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path))
    monkeypatch.setenv("MIRROR_IVY_SETTINGS", str(tmp_path / "none.xml"))
    with pytest.raises(UsageError, match=r"MIRROR_IVY_SETTINGS names .*none\.xml"):
        jars.ensure_jars("example")


def test_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, pin: JarKind, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="cannot be used"):
        jars.ensure_jars("example")


def test_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no jars are pinned for 'kafka-0\.8'.*kafka-4\.3\.0"):
        jars.ensure_jars("kafka-0.8")


def test_pin_list_is_whole_and_names_no_host() -> None:
    text = (Path(jars.__file__).parent / "jars.json").read_text()
    assert "://" not in text
    for name, entry in json.loads(text).items():
        kind = jars.kinds()[name]
        assert len(kind.files) == len(kind.sha256), f"two jars of {name} share a file name"
        assert set(entry["roots"]) <= set(entry["jars"]), f"a root of {name} is not pinned"
        assert all(len(digest) == 64 and int(digest, 16) for digest in kind.sha256.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("whose", ["jars/example/one-1.0.jar", "jars/example", "jars", "."])
def test_jars_that_another_user_could_exchange_are_refused(repository: Path, pin: JarKind, tmp_path: Path, whose: str) -> None:
    """Their sums are compared before Java opens them."""
    jars.ensure_jars("example")
    os.chown(tmp_path / "cache" / whose, 4711, -1)
    jars._checked.clear()
    with pytest.raises(UsageError, match=r"not safe: .* belongs to user 4711") as caught:
        jars.ensure_jars("example")
    assert "MIRROR_CACHE" in caught.value.hint


def test_jars_of_ours_are_closed_to_the_writing_of_others(repository: Path, pin: JarKind, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = jars.ensure_jars("example")
    finally:
        os.umask(before)
    paths = [tmp_path / "cache", folder.parent, folder, *folder.iterdir()]
    assert [path for path in paths if path.stat().st_mode & 0o022] == []
    for path in paths:
        path.chmod(0o777)
    jars._checked.clear()
    jars.ensure_jars("example")
    assert [path for path in paths if path.stat().st_mode & 0o022] == []


def test_jars_of_an_image_are_used_by_a_user_who_cannot_write_there(
    repository: Path, pin: JarKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = jars.ensure_jars("example")
    use(monkeypatch, pinned())
    monkeypatch.setattr(jars, "file_lock", lambda path: pytest.fail("locked"))
    monkeypatch.setattr(jars, "private_folder", lambda path: pytest.fail("written to"))
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder.parent)
    assert jars.ensure_jars("example") == folder

"""The archive of Spark's classes: used if this user made it, for this Java and this Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from mirror_pipeline.execution import class_archive
from mirror_pipeline.execution.class_archive import archive_options, archive_path
from mirror_pipeline.files import private_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))


def made() -> Path:
    path = archive_path()
    private_folder(path.parent)
    path.write_bytes(b"classes")
    path.chmod(0o600)
    return path


def test_without_an_archive_java_gets_no_option() -> None:
    assert archive_options() == ""


def test_an_archive_is_used() -> None:
    path = made()
    assert f"-XX:SharedArchiveFile={path}" in archive_options()


def test_an_archive_that_another_user_could_have_written_is_not_used() -> None:
    made().chmod(0o666)
    assert archive_options() == ""


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = archive_path()
    other = tmp_path / "jdk" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.write_text("")
    monkeypatch.setattr(class_archive, "find_java", lambda: other)
    assert archive_path() != before


def test_spark_installed_anew_in_the_same_folder_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "jars" / "spark-core.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"classes")
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "__init__.py"))
    before = archive_path()
    os.utime(jar, ns=(0, 0))
    assert archive_path() != before


def test_an_archive_that_java_did_not_write_is_an_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "_train", lambda path: None)
    assert class_archive.main() != 0
    assert [path.name for path in archive_path().parent.iterdir()] == [".lock"]


def test_of_many_installations_the_newest_archives_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = archive_path().parent
    private_folder(folder)
    for age in range(10):
        path = folder / f"spark-{age}.jsa"
        path.write_bytes(b"old")
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    monkeypatch.setattr(class_archive, "_train", lambda path: path.write_bytes(b"classes"))
    built = class_archive.build()
    kept = {f"spark-{age}.jsa" for age in range(class_archive.KEPT_FILES - 1)}
    assert {path.name for path in folder.glob("*.jsa")} == {built.name, *kept}

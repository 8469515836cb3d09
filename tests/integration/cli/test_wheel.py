"""The built wheel, in an environment of its own and outside the checkout: it copies and verifies the demo's topics, on Spark too."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
SOURCES = ("mirror_pipeline", "resources", "dagster_home", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    words = ["wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist")]
    subprocess.run([sys.executable, "-m", "pip", *words, str(folder)], check=True)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the wheel; what it depends on is that of the tests, as the lock file has it."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    where = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    # Lines of a .pth file are added to the path, the .pth files there are not read: the editable installation stays out.
    (Path(where.stdout.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    words = ["--python", python, "install", "--quiet", "--disable-pip-version-check", "--no-deps", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return folder


def mirror(environment: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, from an empty folder; what Python is told by its surroundings is left out."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(environment / "bin" / "mirror"), *words]
    return subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True, check=False, timeout=600)


def test_the_wheel_asks_for_what_the_project_does(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    asked = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata.read_text(), re.MULTILINE)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[=<>~]", each)[0].lower() for each in asked} == {re.split(r"[=<>~]", each)[0].lower() for each in wanted}


def test_it_copies_and_verifies_the_demo_and_does_so_on_spark(environment: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code = "import mirror_pipeline; print(mirror_pipeline.__file__)"
    found = subprocess.run([str(environment / "bin" / "python"), "-c", code], cwd=empty, check=True, capture_output=True, text=True)
    assert found.stdout.startswith(str(environment))
    folder = tmp_path / "demo"
    try:
        demo = mirror(environment, empty, "demo", "--keep", "--dir", str(folder), "--json")
        assert demo.returncode == 0, demo.stderr
        config = yaml.safe_load((folder / "mirror.yaml").read_text())
        config["mirrors"] = [{**config["mirrors"][0], "name": "by-spark", "naming": "spark.{topic}"}]
        config["engine"] = {**config.get("engine", {}), "inline_bytes": 0, "spark_master": "local[2]"}
        config["buffer"] = {"uri": "./by-spark"}
        (folder / "spark.yaml").write_text(yaml.safe_dump(config))
        run = mirror(environment, empty, "run", "--once", "-c", str(folder / "spark.yaml"), "--json")
        assert run.returncode == 0, run.stderr
        (report,) = json.loads(run.stdout)["mirrors"]
        assert report["spark_bytes"] > 0 == report["driver_bytes"] and report["records"] > 0
        verified = mirror(environment, empty, "verify", "-c", str(folder / "spark.yaml"), "--json")
        assert verified.returncode == 0, verified.stderr + verified.stdout
    finally:
        mirror(environment, empty, "clusters", "stop", "--dir", str(folder / "clusters"))
    assert list(empty.iterdir()) == []

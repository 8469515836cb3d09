"""The image, built from the Dockerfile's own steps: as a user without name or home, on a read-only root, it copies and verifies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.local.shapes.fill import fill
from tests.support.image import Stage, build, inside, missing
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400), pytest.mark.skipif(bool(missing()), reason=missing() or "it can be built")]
ROOT = Path(__file__).parents[3]
USER = 12345


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    work = tmp_path_factory.mktemp("image")
    yield build(ROOT / "Dockerfile", work)
    shutil.rmtree(work, ignore_errors=True)


@dataclass(frozen=True)
class Container:
    """The image with a configuration and a volume, started as an engine would: read-only, as the image's user."""

    image: Stage
    config: Path
    volume: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What the command printed, and its exit code; without words the image's own."""
        binds = [(str(self.config), "/etc/mirror", True), (str(self.volume), "/data", False)]
        command = inside(self.image, [*self.image.entry, *words], binds=binds, user=self.image.user, read_only=True)
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)


def container(image: Stage, folder: Path, clusters: ClusterPair, **mirror: Any) -> Container:
    volume = folder / "volume"
    source, target = (cluster.bootstrap_servers for cluster in clusters)
    config = write_config(folder / "config", source, target, ["image-.*"], buffer={"uri": "/data/buffer"}, **mirror)
    shutil.copytree(image.root / "data", volume)  # a new volume begins as the image's folder
    os.chown(volume, *(os.stat(image.root / "data").st_uid,) * 2)
    return Container(image, config.parent, volume)


def test_it_copies_and_verifies_the_demos_topics_and_does_so_on_spark(image: Stage, clusters: ClusterPair, tmp_path: Path) -> None:
    assert image.user == f"{USER}:{USER}"
    fill(clusters[0].bootstrap_servers, scale=300, prefix="image-")
    for name, engine in (("driver", {"inline_bytes": "64MB"}), ("spark", {"inline_bytes": 0, "spark_master": "local[2]"})):
        ours = container(image, tmp_path / name, clusters, engine=engine, naming=f"{name}.{{topic}}")
        run = ours.run(*image.command, "--once", "--json")
        assert run.returncode == 0, run.stderr[-3000:]
        (report,) = json.loads(run.stdout)["mirrors"]
        assert report["records"] > 0
        assert (report["spark_bytes"] > 0) == (name == "spark")
        assert "every process compiles it again" not in run.stderr
        for words in (["verify", "--json"], ["health"]):
            done = ours.run(*words, "--config", "/etc/mirror/mirror.yaml")
            assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]


def test_nothing_of_it_can_be_written_but_the_volume(image: Stage, tmp_path: Path) -> None:
    places = "/ /opt/mirror /usr /etc /var/tmp /run/lock"  # the last two are everybody's where the root can be written
    tries = f'touch /data/x && echo volume; for each in {places}; do touch "$each/x" 2>/dev/null && echo "$each"; done; true'
    assert said(image, ["/bin/sh", "-c", tries], tmp_path) == "volume\n"
    assert said(image, ["/bin/sh", "-c", f"grep -c :{USER}: /etc/passwd || true"], tmp_path) == "0\n", "the user has a name"


def test_sparks_class_archive_fits_the_jars_that_came_with_it(image: Stage, tmp_path: Path) -> None:
    program = "from mirror_pipeline.execution import class_archive; print(class_archive.archive_options())"
    assert "SharedArchiveFile=/opt/mirror/cache/classes/" in said(image, ["/opt/mirror/bin/python", "-c", program], tmp_path)


def said(image: Stage, command: Sequence[str], volume: Path) -> str:
    """What a command prints in the image."""
    os.chown(volume, USER, USER)
    words = inside(image, command, binds=[(str(volume), "/data", False)], user=image.user, read_only=True)
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout

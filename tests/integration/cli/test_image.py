"""The image, built from the Dockerfile's own steps: as a user without name or home, on a read-only root, it copies and verifies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

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


def mirror(image: Stage, volume: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The image's command as an engine would start it: read-only, with one volume, as the image's user."""
    command = inside(image, [*image.entry, *words], binds=[(str(volume), "/data", False)], user=image.user, read_only=True)
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)


def test_it_copies_and_verifies_the_demos_topics_and_does_so_on_spark(image: Stage, clusters: ClusterPair, tmp_path: Path) -> None:
    assert image.user == f"{USER}:{USER}"
    source, target = (cluster.bootstrap_servers for cluster in clusters)
    fill(source, scale=300, prefix="image-")
    for name, engine in (("driver", {"inline_bytes": "64MB"}), ("spark", {"inline_bytes": 0, "spark_master": "local[2]"})):
        volume = tmp_path / name
        write_config(volume, source, target, ["image-.*"], engine=engine, naming=f"{name}.{{topic}}")
        for path in (volume, *volume.rglob("*")):
            os.chown(path, USER, USER)
        run = mirror(image, volume, "run", "--once", "--json")
        assert run.returncode == 0, run.stderr[-3000:]
        (report,) = json.loads(run.stdout)["mirrors"]
        assert report["records"] > 0
        assert (report["spark_bytes"] > 0) == (name == "spark")
        verified = mirror(image, volume, "verify", "--json")
        assert verified.returncode == 0, verified.stderr[-3000:] + verified.stdout[-3000:]
        assert "every process compiles it again" not in run.stderr
        version = mirror(image, volume, "version")
        assert version.returncode == 0


def test_nothing_of_it_can_be_written_but_the_volume(image: Stage, tmp_path: Path) -> None:
    os.chown(tmp_path, USER, USER)
    places = "/ /opt/mirror /usr /etc /var"
    tries = f'touch /data/x && echo volume; for each in {places}; do touch "$each/x" 2>/dev/null && echo "$each"; done; id -un; true'
    command = inside(image, ["/bin/sh", "-c", tries], binds=[(str(tmp_path), "/data", False)], user=image.user, read_only=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["volume"], "the user has no name, so id prints none"

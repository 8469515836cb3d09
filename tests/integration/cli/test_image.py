"""The image, built from the Dockerfile's own steps: as a user without name or home, on a read-only root, it copies and verifies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from mirror_pipeline.local.embedded.ports import free_port
from mirror_pipeline.local.shapes.fill import fill
from tests.integration.processes import wait_until
from tests.support.image import Stage, build, inside, missing
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400), pytest.mark.skipif(bool(missing()), reason=missing() or "it can be built")]
ROOT = Path(__file__).parents[3]
USER = 12345
CONFIG = ["--config", "/etc/mirror/mirror.yaml"]


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

    def command(self, *words: str) -> list[str]:
        binds = [(str(self.config), "/etc/mirror", True), (str(self.volume), "/data", False)]
        return inside(self.image, words, binds=binds, user=self.image.user, read_only=True)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What a command printed, and its exit code."""
        return subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)


def container(image: Stage, folder: Path, clusters: ClusterPair, **mirror: Any) -> Container:
    volume = folder / "volume"
    source, target = (cluster.bootstrap_servers for cluster in clusters)
    config = write_config(folder / "config", source, target, ["image-.*"], buffer={"uri": "/data/buffer"}, **mirror)
    shutil.copytree(image.root / "data", volume)  # a new volume begins as the image's folder
    os.chown(volume, *(os.stat(image.root / "data").st_uid,) * 2)
    return Container(image, config.parent, volume)


def test_the_image_works_for_a_user_without_a_name_on_a_read_only_root(image: Stage, clusters: ClusterPair, tmp_path: Path) -> None:
    """One test: the day's slow test builds the image, which takes minutes."""
    assert (image.user, image.command) == (f"{USER}:{USER}", ["run", *CONFIG])
    fill(clusters[0].bootstrap_servers, scale=300, prefix="image-")
    on_driver = container(image, tmp_path / "driver", clusters, engine={"inline_bytes": "64MB"}, naming="driver.{topic}")
    only_the_volume_can_be_written(on_driver)
    copies_and_verifies(on_driver, on_spark=False)
    the_class_archive_fits(on_driver)
    spark = {"inline_bytes": 0, "spark_master": "local[2]"}
    copies_and_verifies(container(image, tmp_path / "spark", clusters, engine=spark, naming="spark.{topic}"), on_spark=True)
    serves_dagsters_page(on_driver, tmp_path / "up.log")


def only_the_volume_can_be_written(ours: Container) -> None:
    places = "/ /opt/mirror /usr /etc /etc/mirror /var/tmp /run/lock"  # /var/tmp and /run/lock are everybody's
    tries = f'touch /data/x && echo volume; for each in {places}; do touch "$each/x" 2>/dev/null && echo "$each"; done; true'
    assert ours.run("/bin/sh", "-c", tries).stdout == "volume\n"
    assert ours.run("grep", "-c", f":{USER}:", "/etc/passwd").stdout == "0\n", "the user has a name"


def copies_and_verifies(ours: Container, *, on_spark: bool) -> None:
    run = ours.run(*ours.image.entry, *ours.image.command, "--once", "--json")
    assert run.returncode == 0, run.stderr[-3000:]
    (report,) = json.loads(run.stdout)["mirrors"]
    assert report["records"] > 0
    assert (report["spark_bytes"] > 0) == on_spark
    assert "every process compiles it again" not in run.stderr
    for words in (["verify", "--json"], ["health"]):
        done = ours.run(*ours.image.entry, *words, *CONFIG)
        assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]


def the_class_archive_fits(ours: Container) -> None:
    program = "from mirror_pipeline.execution import class_archive; print(class_archive.archive_options())"
    assert "SharedArchiveFile=/opt/mirror/cache/classes/" in ours.run("/opt/mirror/bin/python", "-c", program).stdout


def serves_dagsters_page(ours: Container, log: Path) -> None:
    port = free_port()
    command = ours.command(*ours.image.entry, "up", *CONFIG, "--port", str(port), "--no-metrics")
    with log.open("wb") as file, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as up:
        try:
            wait_until(lambda: up.poll() is not None or b"Dagster UI: " in log.read_bytes(), 180, "the page")
            assert up.poll() is None, log.read_text()
            with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
                assert answer.status == 200
        finally:
            up.terminate()
        assert up.wait(120) == 0, log.read_text()
    assert (ours.volume / "state" / "dagster_home" / "dagster.yaml").is_file()

"""docs/failover.md, followed to the letter on three clusters: its configuration, its commands, and what it says that one sees."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import TopicPartition as Place

from mirror_pipeline.cli.main import main
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.support.groups import commit
from tests.support.mirrors import create_topic, produce
from tests.support.reverse_pair import IN_PROCESS

PAGE = Path(__file__).parents[3] / "docs" / "failover.md"
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.M | re.S)
EXIT_CODE = re.compile(r"  \[exit code \d\]$")
# What differs from run to run: moments, durations, sizes and speeds (producers batch by time), who and where.
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2026-11-24T12:00:00Z"),
    (re.compile(r" by \S+@[\w.-]+"), " by ann@box"),
    (re.compile(r"[\d.,]+ (s|ms)\b"), "N s"),
    (re.compile(r"[\d.,]+ [kM]?B(/s)?(?!\w)"), "N B"),
    (re.compile(r"[─━]+"), "─"),
    (re.compile(r"[ \t]+"), " "),
)
SERVERS = {"east": "east1:9092", "west": "west1:9092", "north": "north1:9092"}


class Scene:
    """The clusters of the page and what happens on them: each comment in a block is one of these events."""

    def __init__(self, folder: Path, clusters: dict[str, LocalCluster]) -> None:
        self.folder, self.clusters = folder, clusters
        self.written = 0
        self.events: dict[str, Callable[[], None]] = {
            "# applications write 100 orders on east": lambda: self.write("east", "orders", 100),
            "# group billing has read 40 of them": lambda: self.commit("east", "orders", 20),
            "# applications write 30 orders on west": lambda: self.write("west", "orders", 30),
            "# applications write 10 orders on east": lambda: self.write("east", "orders", 10),
            "# applications write 6 records to orders-dlq on east": lambda: self.write("east", "orders-dlq", 6),
            "# 20 orders are written on east, then its data centre is gone": self.lose,
            "# east is back": self.clusters["east"].start,
        }

    def servers(self, alias: str) -> str:
        return self.clusters[alias].bootstrap_servers

    def write(self, alias: str, topic: str, count: int) -> None:
        produce(self.servers(alias), topic, count, partitions=2, start=self.written)
        self.written += count

    def commit(self, alias: str, topic: str, offset: int) -> None:
        commit(self.servers(alias), "billing", {Place(topic, 0): offset, Place(topic, 1): offset})

    def lose(self) -> None:
        self.write("east", "orders", 20)
        self.clusters["east"].kill()

    def configure(self, text: str) -> None:
        """The page's mirror.yaml, with the addresses of these clusters."""
        for alias, server in SERVERS.items():
            text = text.replace(server, self.servers(alias))
        body = {**yaml.safe_load(text), "engine": {**IN_PROCESS, "request_timeout": "5s"}}
        (self.folder / "mirror.yaml").write_text(yaml.safe_dump(body))

    def shown(self, text: str) -> str:
        """Output with the page's addresses and folders."""
        for alias, server in SERVERS.items():
            text = text.replace(self.servers(alias), server)
        return text.replace(f"{self.folder}/", "")


@pytest.fixture
def scene(tmp_path: Path, cluster_factory: Callable[..., list[LocalCluster]], monkeypatch: pytest.MonkeyPatch) -> Scene:
    """One broker each: the page is about clusters, not brokers."""
    made = dict(zip(SERVERS, cluster_factory(3, brokers=1), strict=True))
    for alias in ("east", "west"):
        for topic in ("orders", "orders-dlq"):
            create_topic(made[alias].bootstrap_servers, topic, 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "130")
    return Scene(tmp_path, made)


def followed(page: str, scene: Scene, capsys: pytest.CaptureFixture[str]) -> str:
    """The page with its blocks as they come out when their events and commands are done in order."""
    return BLOCK.sub(lambda block: "".join(f"{line}\n" for line in _lines(block[0], scene, capsys)), page)


def _lines(block: str, scene: Scene, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    for line in block.splitlines():
        if line.startswith("# "):
            scene.events.pop(line)()
            yield line
        elif line.startswith("$ mirror "):
            command = EXIT_CODE.sub("", line)
            capsys.readouterr()
            code = main(command.split()[2:])
            out, err = capsys.readouterr()
            yield f"{command}  [exit code {code}]" if code else command
            errors = "".join(f"{text}\n" for text in err.splitlines() if text.startswith(("error: ", "hint: ")))  # without progress
            yield from (text.rstrip() for text in scene.shown(out + errors).splitlines() if text.strip())


def alike(text: str) -> list[str]:
    for pattern, instead in VARYING:
        text = pattern.sub(instead, text)
    return text.splitlines()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_page_says_what_one_sees(scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    configuration = re.search(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    assert configuration is not None
    scene.configure(configuration[1])
    found = followed(page, scene, capsys)
    (tmp_path / "failover.md").write_text(found, encoding="utf-8")
    assert not scene.events, "each happens once"
    differences = "\n".join(difflib.unified_diff(alike(page), alike(found), "docs/failover.md", f"{tmp_path}/failover.md", lineterm=""))
    assert not differences, differences

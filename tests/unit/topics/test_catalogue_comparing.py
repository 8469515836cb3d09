"""Who compares, and what `plan` says of copies of copies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirror_pipeline.config import BufferConfig, ClusterSettings, Config, EngineConfig, MirrorConfig, TopicSelection
from mirror_pipeline.execution.placement import INLINE_BYTES, WORTH_A_START, for_comparing, spark_may_be_needed
from mirror_pipeline.execution.runner import InlineRunner, Runner
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic, save_catalogue
from mirror_pipeline.topics.claims import chained


@pytest.mark.parametrize(
    ("inline_bytes", "offsets", "here"),
    [(None, 0, True), (None, 10_000, True), (None, WORTH_A_START * INLINE_BYTES, False), (0, 1, False), (10**9, 10_000_000, True)],
)
def test_little_is_compared_in_this_process(inline_bytes: int | None, offsets: int, here: bool) -> None:
    started: list[Runner] = []

    def start() -> Runner:
        started.append(InlineRunner())
        return started[0]

    runner = for_comparing(EngineConfig(inline_bytes=inline_bytes), offsets, start)
    assert isinstance(runner, InlineRunner) and bool(started) is not here


def test_java_is_demanded_where_spark_may_be_needed() -> None:
    assert not spark_may_be_needed(EngineConfig(inline_bytes=sys.maxsize))
    assert spark_may_be_needed(EngineConfig(inline_bytes=0)) and spark_may_be_needed(EngineConfig())


def test_plan_tells_what_is_itself_a_copy(tmp_path: Path) -> None:
    clusters = {alias: ClusterSettings(alias, (f"{alias}:1",)) for alias in ("berlin", "paris", "tokyo")}
    names = TopicSelection((".*",))
    mirrors = [
        MirrorConfig("one", "berlin", "paris", names),
        MirrorConfig("two", "paris", "tokyo", names),
        MirrorConfig("same", "tokyo", "paris", names, naming="identity"),
    ]
    config = Config(clusters, mirrors, BufferConfig(str(tmp_path / "buffer")), tmp_path / "mirror.yaml")
    save_catalogue(config, Catalogue("same", 1, "c", (CatalogueTopic("sales", "sales", 1, "id"),), ()))
    found = chained(config, mirrors[1], ["berlin.orders", "sales", "own"])
    assert {topic: [said.split(";")[0] for said in all_said] for topic, all_said in found.items()} == {
        "berlin.orders": ["it is a copy itself: mirror one writes it from cluster berlin"],
        "sales": ["it is a copy itself: mirror same writes it from cluster tokyo"],
    }
    assert chained(config, mirrors[0], ["berlin.orders"]) == {}

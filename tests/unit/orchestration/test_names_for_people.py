"""Jobs, sensors and operations are called by words; mirrors that follow each other are one graph."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

from mirror_pipeline.config.settings import MirrorConfig, TopicSelection
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.project import KnownMirror, KnownTopic, Project, joints, with_words

HASH = re.compile(r"_[0-9a-f]{8}$")


def mirror(name: str, source: str, target: str, *topics: str, prefix: str = "", lanes: int = 1) -> KnownMirror:
    config = MirrorConfig(name, source, target, TopicSelection((".*",)), lanes=lanes)
    return KnownMirror(config, tuple(KnownTopic(t, prefix + t, f"lane-{n % lanes}", 1) for n, t in enumerate(topics)))


def project(*mirrors: KnownMirror) -> Project:
    return Project(Path("mirror.yaml"), with_words(mirrors))


def called(defs: dg.Definitions) -> set[str]:
    """Every name that people see beside the assets."""
    jobs = [job for job in defs.resolve_all_job_defs() if not job.name.startswith("__")]
    found = {job.name for job in jobs} | {node.name for job in jobs for node in job.nodes}
    return found | {s.name for s in defs.sensors or ()} | {s.name for s in defs.schedules or ()}


def test_names_are_words() -> None:
    made = called(build(project(mirror("east-to-west", "east", "west", "orders", "payments.eu", lanes=2, prefix="east."))))
    assert {name for name in made if HASH.search(name)} == set()
    assert {
        "lane_job_east_to_west_0", "lane_east_to_west_1", "lag_east_to_west", "catalogue_east_to_west", "verify_job_east_to_west",
        "verify_hourly_east_to_west", "backfill_job_east_to_west", "backfill_east_to_west_payments_eu",
    } <= made  # fmt: skip


@pytest.mark.parametrize("topics", [("a.b", "a_b", "a-b", "c"), ("x" * 249, "x" * 248 + "y", "c")])
def test_a_hash_tells_apart_what_would_be_called_the_same(topics: tuple[str, ...]) -> None:
    shown = project(mirror("m", "east", "west", *topics, prefix="east.")).mirrors[0]
    operations = [shown.called("backfill", topic) for topic in topics]
    assert len(set(operations)) == len(topics)
    assert [bool(HASH.search(name)) for name in operations] == [True] * (len(topics) - 1) + [False]
    assert shown.called("lag") == "lag_m"
    dg.Definitions.validate_loadable(build(project(mirror("m", "east", "west", *topics, prefix="east."))))


def test_two_mirrors_whose_names_are_alike() -> None:
    first, second = project(mirror("a.b", "east", "west", "t", prefix="1."), mirror("a-b", "east", "west", "t", prefix="2.")).mirrors
    assert first.called("lag") != second.called("lag")
    assert HASH.search(first.called("lag")) and HASH.search(second.called("lag"))


def test_a_chain_of_mirrors_is_one_graph() -> None:
    chain = project(
        mirror("berlin-paris", "berlin", "paris", "orders", prefix="berlin."),
        mirror("paris-tokyo", "paris", "tokyo", "berlin.orders", "own", prefix="paris."),
    )
    graph = build(chain).resolve_asset_graph()
    above = graph.get(names.source_key("paris-tokyo", "berlin.orders")).parent_keys
    assert set(above) == {names.target_key("berlin-paris", "orders")}
    assert not graph.get(names.source_key("paris-tokyo", "own")).parent_keys
    assert not graph.get(names.source_key("berlin-paris", "orders")).parent_keys


def test_a_ring_of_mirrors_stays_loadable() -> None:
    ring = project(mirror("ab", "a", "b", "t"), mirror("bc", "b", "c", "t"), mirror("ca", "c", "a", "t"))
    found = joints(ring.mirrors)
    assert len(found) == 2
    dg.Definitions.validate_loadable(build(ring))


def test_source_and_target_boxes_differ() -> None:
    graph = build(project(mirror("m", "east", "west", "orders", prefix="east."))).resolve_asset_graph()
    source, target = (graph.get(key("m", "orders")) for key in (names.source_key, names.target_key))
    assert source.group_name != target.group_name
    assert "source" in source.kinds and "source" not in target.kinds

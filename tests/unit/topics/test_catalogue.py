"""The saved list of topics."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from mirror_pipeline.config import BufferConfig, ClusterSettings, Config, MirrorConfig, TopicSelection
from mirror_pipeline.reports import Excluded
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic, catalogue_path, load_catalogue, save_catalogue

CATALOGUE = Catalogue(
    "m", 1_700_000_000_000, "cluster", (CatalogueTopic("a", "east.a", 3, "id"),), (Excluded("b", "matches no include regex"),)
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    mirrors = [MirrorConfig(name, source, "west", TopicSelection((".*",))) for name, source in (("m", "east"), ("n", "north"))]
    clusters = {alias: ClusterSettings(alias, ("h:1",)) for alias in ("east", "north", "west")}
    return Config(clusters, mirrors, BufferConfig(str(tmp_path / "b")), tmp_path / "mirror.yaml")


def test_round_trip(config: Config) -> None:
    assert load_catalogue(config, "m") is None
    path = save_catalogue(config, CATALOGUE)
    assert path == config.folder / ".mirror" / "m.catalogue.json"
    assert load_catalogue(config, "m") == CATALOGUE
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "topics": [{}], "excluded": []}'])
def test_a_damaged_file_is_as_good_as_none(config: Config, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = catalogue_path(config, "m")
    path.parent.mkdir()
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert load_catalogue(config, "m") is None
    assert "catalogue unreadable" in caplog.text


def test_another_version_is_made_anew(config: Config) -> None:
    path = save_catalogue(config, CATALOGUE)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    assert load_catalogue(config, "m") is None

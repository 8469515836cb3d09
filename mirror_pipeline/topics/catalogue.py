"""The saved list of a mirror's topics. Dagster's definitions read it at import; only a refresh asks Kafka."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mirror_pipeline.config import Config, MirrorConfig
from mirror_pipeline.files import replace_file
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.reports import Excluded
from mirror_pipeline.topics.lanes import select_topics

_VERSION = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogueTopic:
    """A selected topic; ``topic_id`` in Kafka's URL-safe base64."""

    name: str
    target_topic: str
    partitions: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a mirror copied from, and did not, when the source was last asked (``refreshed_at``: ms since the epoch).

    ``since`` is when it was first asked; 0 where the catalogue is of an older version.
    """

    mirror: str
    refreshed_at: int
    source_cluster_id: str
    topics: tuple[CatalogueTopic, ...]
    excluded: tuple[Excluded, ...]
    since: int = 0


def catalogue_path(config: Config, mirror: str) -> Path:
    """``.mirror/<mirror>.catalogue.json`` beside mirror.yaml."""
    return config.state_folder / f"{mirror}.catalogue.json"


def load_catalogue(config: Config, mirror: str) -> Catalogue | None:
    """The saved catalogue; None when there is none yet, or it cannot be read (it can always be rebuilt)."""
    path = catalogue_path(config, mirror)
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body.pop("version") != _VERSION:
            return None
        topics = tuple(CatalogueTopic(**row) for row in body.pop("topics"))
        excluded = tuple(Excluded(**row) for row in body.pop("excluded"))
        return Catalogue(**body, topics=topics, excluded=excluded)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("catalogue unreadable, refresh it: path=%s cause=%s", path, error)
        return None


def save_catalogue(config: Config, catalogue: Catalogue) -> Path:
    """Write the catalogue; a reader sees the old file or the new one, never half of it."""
    path = catalogue_path(config, catalogue.mirror)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, json.dumps({"version": _VERSION, **asdict(catalogue)}, indent=1), durable=True)
    return path


def build_catalogue(config: Config, mirror: MirrorConfig, admin: Admin, copied: Sequence[CatalogueTopic] = ()) -> Catalogue:
    """Ask the source which topics there are and apply the mirror's selection.

    Args:
        config: the file.
        mirror: one of its mirrors.
        admin: the source.
        copied: selected topics that the mirror has copied: they stay in the catalogue when they are gone from the source, or refused.

    Raises:
        ClusterUnreachable: the source does not answer.
        BufferUnusable: as :func:`select_topics`.
    """
    found = admin.topics()
    selected = select_topics(config, mirror, found)
    topics = [CatalogueTopic(name, target, found[name].partitions, found[name].topic_id) for name, target in selected.topics.items()]
    topics += [topic for topic in copied if topic.name not in found or topic.name in selected.refused]
    ordered = tuple(sorted(topics, key=lambda topic: topic.name))
    return Catalogue(mirror.name, int(time.time() * 1000), admin.cluster_id(), ordered, selected.excluded)


def refresh_catalogue(config: Config, mirror: MirrorConfig, admin: Admin, copied: Sequence[CatalogueTopic] = ()) -> Catalogue:
    """Build the catalogue from the source and save it; see :func:`build_catalogue` for arguments and errors."""
    before, catalogue = load_catalogue(config, mirror.name), build_catalogue(config, mirror, admin, copied)
    catalogue = replace(catalogue, since=catalogue.refreshed_at if before is None else before.since)
    save_catalogue(config, catalogue)
    return catalogue

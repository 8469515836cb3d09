"""The mirrors as mirror.yaml and the saved catalogues describe them, without asking a cluster: the input of the definitions."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirror_pipeline.config import DEFAULT_CONFIG, Config, MirrorConfig, load_config
from mirror_pipeline.config.settings import state_folder
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.files import replace_file
from mirror_pipeline.orchestration import names
from mirror_pipeline.topics.catalogue import load_catalogue
from mirror_pipeline.topics.directions import Directions
from mirror_pipeline.topics.lanes import lane_names, lane_of, with_further

CONFIG_ENV = "MIRROR_CONFIG"
UP_URL_ENV = "MIRROR_UP_URL"
UP_PID_ENV = "MIRROR_UP_PID"
PROJECT_ENV = "MIRROR_PROJECT"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class KnownTopic:
    """A selected topic by the saved catalogue, and the lane that copies it.

    ``state`` is ``promoted`` or ``standby`` while the mirror leaves the topic alone, by the ledgers when the definitions were loaded.
    """

    topic: str
    target_topic: str
    lane: str
    partitions: int = 0
    state: str = ""


@dataclass(frozen=True, slots=True)
class KnownMirror:
    """A mirror and its topics; ``topics`` is None while there is no catalogue.

    ``words`` are the names of its jobs, sensors and operations, by kind and object; ``since`` is when its first catalogue
    was saved, in milliseconds since the epoch (0: unknown). ``project`` is the id of the :class:`Project`.
    """

    config: MirrorConfig
    topics: tuple[KnownTopic, ...] | None
    words: Mapping[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)
    since: int = 0
    project: str = ""

    @property
    def name(self) -> str:
        """The mirror's name."""
        return self.config.name

    def called(self, kind: str, *parts: str) -> str:
        """The name of a job, sensor or operation: ``called("lane", "lane-0")``, ``called("backfill", topic)``."""
        return self.words.get((kind, self.name, *parts)) or names.unique(kind, self.name, *parts)

    @property
    def lanes(self) -> list[str]:
        """Names of its lanes: the configured ones, and earlier ones that still have topics."""
        return with_further(self.config, [topic.lane for topic in self.topics or ()])

    def in_lane(self, lane: str) -> tuple[KnownTopic, ...]:
        """The topics that the lane copies."""
        return tuple(topic for topic in self.topics or () if topic.lane == lane)


@dataclass(frozen=True, slots=True)
class Project:
    """The mirrors of one mirror.yaml; ``problem`` is why it does not load, the mirrors are then those of the file that loaded last."""

    path: Path
    mirrors: tuple[KnownMirror, ...] = ()
    problem: str = ""

    @property
    def id(self) -> str:
        """What its runs are tagged with."""
        return project_id(self.path)


def project_id(path: Path) -> str:
    """What tells the runs of this mirror.yaml from others in a shared Dagster instance: ``$MIRROR_PROJECT``, else a hash of its path.

    Containers that each have a mirror.yaml at the same path need the variable.
    """
    return os.environ.get(PROJECT_ENV) or hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:12]


def config_path() -> Path:
    """The mirror.yaml that the environment names, else the one of the working directory; absolute."""
    return Path(os.environ.get(CONFIG_ENV) or DEFAULT_CONFIG).absolute()


def read_project(path: Path) -> Project:
    """Read mirror.yaml and the catalogues. An invalid file does not raise: a sensor shows the error.

    Its mirrors are then those of the file as it loaded last, so that jobs which run, retry or wait in the queue are still found.
    """
    try:
        config, problem = load_config(path), ""
    except MirrorError as error:
        _log.warning("mirror.yaml does not load: %s", error)
        earlier, problem = _last_loaded(path), str(error)
        if earlier is None:
            return Project(path, problem=problem)
        config = earlier
    else:
        _remember(config)
    return Project(path, with_words(_known(config, mirror) for mirror in config.mirrors), problem)


def _copy_of(path: Path) -> Path:
    """Where the text of the last mirror.yaml that loaded is kept. It names secrets and holds none."""
    return state_folder(path) / f"{path.name}.loaded"


def _remember(config: Config) -> None:
    copy = _copy_of(config.path)
    with suppress(OSError, UnicodeDecodeError):  # a read-only folder: an invalid file then has no mirrors
        text = config.path.read_text(encoding="utf-8-sig")
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(copy, text)


def _last_loaded(path: Path) -> Config | None:
    try:
        return load_config(path, text=_copy_of(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, MirrorError):
        return None


def _known(config: Config, mirror: MirrorConfig) -> KnownMirror:
    catalogue = load_catalogue(config, mirror.name)
    since = catalogue.since if catalogue is not None else 0
    return KnownMirror(mirror, known_topics(config, mirror), since=since, project=project_id(config.path))


def with_words(mirrors: Iterable[KnownMirror]) -> tuple[KnownMirror, ...]:
    """The mirrors of one project with the names of their jobs, sensors and operations; no name occurs twice."""
    known = tuple(mirrors)
    words = names.distinct(parts for mirror in known for parts in _named_objects(mirror))
    return tuple(replace(mirror, words=words) for mirror in known)


def _named_objects(mirror: KnownMirror) -> Iterator[tuple[str, ...]]:
    for kind in ("lag", "catalogue", "verify", "verify_job", "verify_hourly", "backfill_job"):
        yield kind, mirror.name
    for kind in ("failover", "failover_op", "failback", "failback_op"):
        yield kind, mirror.name
    if mirror.config.groups is not None:
        yield "groups", mirror.name
        yield "groups_check", mirror.name
    for lane in mirror.lanes:
        yield "lane", mirror.name, lane
        yield "lane_job", mirror.name, lane
    for topic in mirror.topics or ():
        yield "backfill", mirror.name, topic.topic


def joints(mirrors: Iterable[KnownMirror]) -> dict[tuple[str, str], tuple[str, str]]:
    """Which mirrored topics are the source of others: ``(mirror, topic)`` to the mirror and topic that write it, by cluster and name.

    A cycle (mirrors that write each other's sources) is cut: the asset graph must have none.
    """
    known = tuple(mirrors)
    writers = {(m.config.target, t.target_topic): (m.name, t.topic) for m in known for t in m.topics or ()}
    edges: dict[tuple[str, str], tuple[str, str]] = {}
    for mirror in known:
        for topic in mirror.topics or ():
            reader = mirror.name, topic.topic
            writer = writers.get((mirror.config.source, topic.topic))
            above = writer
            while above is not None and above != reader:
                above = edges.get(above)
            if writer is not None and above is None:
                edges[reader] = writer
    return edges


def known_topics(config: Config, mirror: MirrorConfig) -> tuple[KnownTopic, ...] | None:
    """The topics of the saved catalogue, sorted; None without a catalogue."""
    catalogue = load_catalogue(config, mirror.name)
    if catalogue is None:
        return None
    selected = [topic.name for topic in catalogue.topics]
    try:
        homes = lane_of(config.buffer, mirror, selected)
        states = {name: halt.code for name, halt in Directions(config, mirror).look().refused(selected).items()}
    except MirrorError as error:
        # The ledgers matter only for topics that were assigned before `lanes` was changed.
        _log.warning("lanes of mirror %s by name only: %s", mirror.name, error)
        homes, states = dict.fromkeys(selected, lane_names(mirror)[0]), {}
    known = (KnownTopic(t.name, t.target_topic, homes[t.name], t.partitions, states.get(t.name, "")) for t in catalogue.topics)
    return tuple(sorted(known))

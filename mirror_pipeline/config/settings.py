"""mirror.yaml after validation: frozen, picklable, without secret values."""

from __future__ import annotations

import difflib
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import time
from pathlib import Path
from typing import Generic, TypeVar

from mirror_pipeline.config.naming import NamingRule
from mirror_pipeline.config.secrets import SecretRef, resolved
from mirror_pipeline.config.starts import EARLIEST, Start
from mirror_pipeline.errors import UsageError

V = TypeVar("V")

BATCHES_IN_BUFFER = 4  # micro-batches that it must hold: one is read while one is written, plus space for those that wait in between


class FrozenMap(Mapping[str, V], Generic[V]):
    """A read-only mapping that can be hashed and pickled."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Mapping[str, V] | Iterable[tuple[str, V]] = ()) -> None:
        self._pairs = tuple(sorted(dict(pairs).items()))

    def __getitem__(self, key: str) -> V:
        at = bisect_left(self._pairs, key, key=lambda pair: pair[0])
        if at == len(self._pairs) or self._pairs[at][0] != key:
            raise KeyError(key)
        return self._pairs[at][1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        return f"FrozenMap({dict(self._pairs)!r})"

    def __reduce__(self) -> tuple[type[FrozenMap[V]], tuple[dict[str, V]]]:
        return (FrozenMap, (dict(self._pairs),))


@dataclass(frozen=True, slots=True)
class Security:
    """How to connect: one neutral block for both client stacks. Files are absolute paths (PEM)."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | SecretRef | None = None
    password: SecretRef | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: SecretRef | None = None
    verify_hostname: bool = True

    @property
    def user(self) -> str:
        """The user name, read now where it is a reference; empty without one. Raises ConfigError as :meth:`SecretRef.resolve` does."""
        return resolved(self.username or "")

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether a user name and password are sent."""
        return self.protocol.startswith("SASL_")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One cluster; carries references to secrets, never their values.

    ``client`` is for librdkafka, save ``client.id`` and the sizes of socket buffers. ``cluster_id`` is the id that its brokers must
    have, by a mirror's ledger or its first contact; "" while that is not known. It is no key of mirror.yaml.
    """

    alias: str
    bootstrap_servers: tuple[str, ...]
    security: Security = field(default_factory=Security)
    client: Mapping[str, str | SecretRef] = field(default_factory=FrozenMap)
    cluster_id: str = ""


# MirrorMaker 2's exclusions (Kafka sources, DefaultConfigPropertyFilter), and what concerns the target's own disks: flushing, tiers.
KEPT_BY_TARGET = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
    r"flush\..*",
    r"remote\..*",
    r"local\..*",
)


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """How settings of target topics follow their source's: every ``interval`` seconds, but those that match ``exclude``.

    ``defaults_from``: whose default a setting gets that the source topic does not have of its own, ``target`` or ``source``.
    """

    sync: bool = True
    exclude: tuple[str, ...] = KEPT_BY_TARGET
    defaults_from: str = "target"
    interval: float = 30.0


@dataclass(frozen=True, slots=True)
class TopicAcls:
    """Whether ACLs of target topics follow their source's."""

    sync: bool = False


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Whole-name regexes (``exclude`` wins), whether copies are left out, and what the mirror may do to target topics."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    manage: bool = True
    replication_factor: int | None = None
    configs: TopicConfigs = TopicConfigs()
    originals_only: bool = False
    on_source_delete: str = "halt"
    acls: TopicAcls = TopicAcls()
    follow_trim: bool = False


@dataclass(frozen=True, slots=True)
class GroupSelection:
    """Consumer groups whose offsets are carried over: whole-name regexes (``exclude`` wins), every ``interval`` seconds."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    interval: float = 10.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much is read at a time, and where it runs. Sizes in bytes, times in seconds."""

    micro_batch_bytes: int = 128_000_000
    max_batch_age: float = 10.0
    inline_bytes: int | None = None
    tasks: int | None = None
    fetch_max_bytes: int = 32 * 1024 * 1024
    connections: int | None = None
    bandwidth: int | None = None
    bandwidth_hours: Mapping[str, int] = field(default_factory=FrozenMap)
    request_timeout: float = 30.0
    poll_interval: float = 0.2
    source_wait: float = 60.0
    target_wait: float = 300.0
    lease: float = 60.0
    spark_master: str | None = None
    spark: Mapping[str, str] = field(default_factory=FrozenMap)

    def bandwidth_at(self, moment: time) -> int | None:
        """The limit in bytes a second at a time of the day, None for no limit."""
        now = f"{moment:%H:%M}"
        for hours, limit in self.bandwidth_hours.items():
            start, _, end = hours.partition("-")
            inside = start <= now < end if start < end else now >= start or now < end
            if inside:
                return limit or None
        return self.bandwidth


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """One directed flow."""

    name: str
    source: str
    target: str
    topics: TopicSelection
    naming: NamingRule = "prefix"
    offsets: str = "translated"
    start: Start = EARLIEST
    on_loss: str = "halt"
    lanes: int = 1
    writers: str = "sole"
    reverse_of: str | None = None
    sources: tuple[str, ...] = ()
    groups: GroupSelection | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)

    @property
    def exact(self) -> bool:
        """Whether records get the same offsets on the target."""
        return self.offsets == "exact"

    @property
    def shared(self) -> bool:
        """Whether others may write the target topics too."""
        return self.writers == "shared"


@dataclass(frozen=True, slots=True)
class BufferConfig:
    """Where staged data lies (absolute folder), how long it is kept after it was copied (seconds), and its cap (bytes).

    ``archive``: seconds for which spans are kept in the archive after they were staged; None keeps none.

    ``durable``: files are flushed to the disk before they count. ``lease``: seconds after which a silent run loses its lane, in an
    object store.
    """

    uri: str
    retention: int = 86_400
    max_bytes: int = 50_000_000_000
    durable: bool = True
    lease: float = 30.0
    archive: int | None = None


@dataclass(frozen=True, slots=True)
class NotifyConfig:
    """Who is told of causes that have lasted for ``after`` seconds."""

    urls: tuple[str | SecretRef, ...] = ()
    after: float = 120.0


@dataclass(frozen=True, slots=True)
class PageUser:
    """Somebody who may use the page; ``role`` is ``look`` or ``change``."""

    name: str
    role: str
    token: SecretRef | None = None


@dataclass(frozen=True, slots=True)
class PageConfig:
    """Who may use the page beside its owner; ``user_header`` names the header in which a proxy says who it is."""

    users: tuple[PageUser, ...] = ()
    user_header: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """All of mirror.yaml."""

    clusters: dict[str, ClusterSettings]
    mirrors: list[MirrorConfig]
    buffer: BufferConfig
    path: Path
    notify: NotifyConfig = NotifyConfig()
    page: PageConfig = PageConfig()

    @property
    def folder(self) -> Path:
        """The folder of mirror.yaml, absolute."""
        return self.path.parent

    @property
    def state_folder(self) -> Path:
        """Where small files that can be rebuilt are kept, such as catalogues."""
        return state_folder(self.path)

    def mirror(self, name: str) -> MirrorConfig:
        """The mirror of that name.

        Raises:
            UsageError: no such mirror; the message offers the nearest name.
        """
        for mirror in self.mirrors:
            if mirror.name == name:
                return mirror
        raise UsageError(f'{self.path.name} has no mirror "{name}"', hint=nearest(name, [m.name for m in self.mirrors]))


def state_folder(path: Path) -> Path:
    """The state folder of a mirror.yaml, whether it loads or not: ``$MIRROR_STATE``, else ``.mirror`` beside it."""
    return Path(named).absolute() if (named := os.environ.get("MIRROR_STATE", "")) else path.parent / ".mirror"


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean "x"?``, or the list of what is known when nothing is near."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6) or [n for n in names if n.lower() == word.lower()]
    if close:
        return f'did you mean "{close[0]}"?'
    return "known: " + ", ".join(names) if names else "none is defined"

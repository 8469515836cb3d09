"""What is copied in a comparison: the workloads by name, and filling their source topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.local.shapes.ground import OPEN_TIMES, Ground

KB, MB, GB = 1_000, 1_000_000, 1_000_000_000
COPIES = 3  # of the data: source, buffer, target
LOG_SHARE = 1.1  # bytes of log for one byte of values; at 100 B 1.1, above less
REPEATS = 2  # a value's text stands in it twice: lz4 halves it, as it does with common JSON
ADMIN_SECONDS = 120.0  # a thousand topics created or deleted in one request: 10-30 s on two busy cores
TOPICS_A_REQUEST = 500  # a controller refuses a request that would need more than 10,000 metadata records


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to compare.

    Attributes:
        kind: ``bulk`` (a full topic is copied), ``idle`` (many small topics, then nothing), ``latency`` (a steady trickle).
        record_bytes: bytes of one value; there are no keys.
        batch_bytes: bytes of records in one source batch, before compression; ``record_bytes`` makes one-record batches.
        total_bytes: bytes of all values at scale 1, before compression.
        core: measured in every round; the others in one round less, which saves ten minutes.
        seconds: how long an idle or latency workload is watched.
        large: a bulk copy of which Spark carries most, see docs/scaling.md.
    """

    name: str
    kind: str
    record_bytes: int = 1 * KB
    batch_bytes: int = 16_384
    codec: str = "none"
    partitions: int = 12
    total_bytes: int = 600 * MB
    core: bool = False
    topics: int = 1
    seconds: float = 0.0
    rate_bytes: int = 0
    large: bool = False

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides it says something about: a small copy never starts Spark, and a large one would take MirrorMaker 2 minutes each way."""
        if self.large:
            return ("ours", "inproc", "limit", "tuned")
        return ("ours", *(["limit"] if self.kind == "bulk" else []), "tuned", "default")

    def disk_bytes(self, scale: float) -> int:
        """About how much disk a round takes: the source's log, the buffer's copy and the target's."""
        share = LOG_SHARE if self.codec == "none" else LOG_SHARE / REPEATS
        return int(COPIES * share * self.total_bytes * scale) if self.kind == "bulk" else 0

    @property
    def names(self) -> list[str]:
        """Source topics."""
        return [f"bench-{self.name}"] if self.topics == 1 else [f"bench-{self.name}-{i:04d}" for i in range(self.topics)]

    @property
    def pattern(self) -> str:
        """A regex for exactly these topics."""
        return f"bench-{self.name}" if self.topics == 1 else f"bench-{self.name}-[0-9]+"

    def facts(self) -> dict[str, Any]:
        """Plain values for the results."""
        return asdict(self)


WORKLOADS = (
    Workload("1kb", "bulk", core=True),
    Workload("1kb-lz4", "bulk", codec="lz4", core=True),
    Workload("100b", "bulk", 100, total_bytes=250 * MB, core=True),
    Workload("100b-lz4", "bulk", 100, codec="lz4", total_bytes=250 * MB, core=True),
    Workload("1kb-zstd", "bulk", codec="zstd"),
    Workload("10kb", "bulk", 10 * KB),
    Workload("100kb", "bulk", 100 * KB, 100 * KB),
    Workload("1kb-256k", "bulk", batch_bytes=262_144),
    Workload("1kb-256k-lz4", "bulk", batch_bytes=262_144, codec="lz4"),
    Workload("1kb-1m", "bulk", batch_bytes=1 * MB),
    Workload("1kb-single", "bulk", batch_bytes=1 * KB, total_bytes=150 * MB),
    Workload("1kb-p1", "bulk", partitions=1, total_bytes=300 * MB),
    Workload("1kb-p200", "bulk", partitions=200),
    Workload("1kb-large", "bulk", total_bytes=16 * GB, core=True, large=True),
    Workload("1kb-lz4-large", "bulk", codec="lz4", total_bytes=22 * GB, core=True, large=True),
    Workload("100b-large", "bulk", 100, total_bytes=12 * GB, core=True, large=True),
    Workload("100b-lz4-large", "bulk", 100, codec="lz4", total_bytes=26 * GB, core=True, large=True),
    Workload("latency", "latency", seconds=20.0, rate_bytes=5 * MB),
    Workload("idle-1000", "idle", 100, partitions=1, topics=1_000, seconds=60.0),
)
IDLE_RECORDS = 10
LARGE = "large"
QUICK = ("1kb", "100b-lz4", "latency", "idle-1000")  # what --quick runs unless --only says otherwise


def chosen(only: Iterable[str], known: Sequence[Workload] = WORKLOADS) -> list[Workload]:
    """The workloads of these names, in their usual order; all when none is named. ``large`` names all large ones.

    ``SystemExit`` on an unknown name.
    """
    wanted = set(only)
    if LARGE in wanted:
        wanted = (wanted - {LARGE}) | {w.name for w in known if w.large}
    if unknown := sorted(wanted - {w.name for w in known}):
        raise SystemExit(f"no workload {unknown[0]!r}; there are {', '.join(w.name for w in known)}")
    return [w for w in known if not wanted or w.name in wanted]


def fill(bootstrap: str, workload: Workload, scale: float) -> int:
    """Make and fill the source topics; returns the records in them (a latency topic stays empty)."""
    if workload.kind == "bulk":
        total = max(int(workload.total_bytes * scale), workload.partitions * workload.batch_bytes)
        sizes = (workload.partitions, total, workload.record_bytes, workload.batch_bytes)
        return fill_bulk(bootstrap, workload.names[0], *sizes, workload.codec, repeats=REPEATS)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for chunk in _chunks(workload.names):
        topics = [NewTopic(name, num_partitions=workload.partitions, replication_factor=1, config=OPEN_TIMES) for name in chunk]
        for made in admin.create_topics(topics, operation_timeout=ADMIN_SECONDS, request_timeout=ADMIN_SECONDS).values():
            made.result(ADMIN_SECONDS)
    return _fill_small(bootstrap, workload) if workload.kind == "idle" else 0


def _fill_small(bootstrap: str, workload: Workload) -> int:
    with closing(Ground(bootstrap)) as ground:
        producer = ground.producer()
        for name in workload.names:
            for index in range(IDLE_RECORDS):
                producer.produce(name, ground.value(name, 0, index, workload.record_bytes))
            producer.poll(0)
        ground.flush(producer)
    return IDLE_RECORDS * workload.topics


def remove(bootstrap: str, names: Sequence[str]) -> None:
    """Delete topics and wait until the controller has taken it; ones that do not exist are fine."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for chunk in _chunks(names):
        for gone in admin.delete_topics(chunk, operation_timeout=ADMIN_SECONDS, request_timeout=ADMIN_SECONDS).values():
            gone.exception(ADMIN_SECONDS)


def existing(bootstrap: str) -> list[str]:
    """Every topic of a cluster but Kafka's own."""
    found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=ADMIN_SECONDS).topics
    return [name for name in found if not name.startswith("__")]


def _chunks(names: Sequence[str]) -> list[list[str]]:
    return [list(names[i : i + TOPICS_A_REQUEST]) for i in range(0, len(names), TOPICS_A_REQUEST)]

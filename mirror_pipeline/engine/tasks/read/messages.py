"""What a read task gets and what it returns. Picklable: both cross into Spark's workers and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.longlink.several import Holding
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.halts import Halt
from mirror_pipeline.model import BatchMark, PartFile, Quarantined, TopicPartition

# A garbage collection pause of a healthy broker takes less, and partitions of other brokers should not wait much longer.
SILENT_SECONDS = 1.5
# Over a long link a request takes round trips, and opening a connection with TLS and SASL takes more of them.
PATIENT_ROUND_TRIPS = 10


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Everything one read task needs; picklable, free of secrets.

    ``seconds`` bounds how long the task sends fetch requests, ``memory_bytes`` what it holds before it writes.
    ``connections`` is the number for each broker; None lets the round trip and the throughput decide, shared by ``tasks`` tasks.
    ``bytes_per_second`` is the task's share of a limit. ``avoid`` are brokers that get no request, ``patience`` the seconds
    for those that get more than ``SILENT_SECONDS`` to answer. ``holdings`` are what copies of the source hold of a backlog;
    with ``source_down`` they alone are read.
    """

    store: LaneStore
    cluster: ClusterSettings
    micro_batch: int
    index: int
    rules: tuple[RangeRules, ...]
    fetch_bytes: int
    partition_fetch_bytes: int
    memory_bytes: int
    timeout: float
    seconds: float
    durable: bool
    connections: int | None = None
    tasks: int = 1
    bytes_per_second: float | None = None
    avoid: frozenset[int] = frozenset()
    patience: Mapping[int, float] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()
    source_down: bool = False


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """How far one range came. ``halt`` is final for the topic; ``error`` may pass.

    ``end`` is the last stable offset in the last answer, ``first_epoch`` the leader epoch of the first batch read,
    ``mark`` the last batch read, ``batches`` the number of batches that ``bytes`` counts.
    ``beyond`` says that the broker's log ends before ``next``: it was truncated, or the broker lags.
    """

    topic: str
    partition: int
    next: int
    records: int
    bytes: int
    error: str = ""
    halt: Halt | None = None
    end: int = -1
    first_epoch: int = -1
    mark: BatchMark | None = None
    quarantined: tuple[Quarantined, ...] = ()
    batches: int = 0
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The task's part file (None when nothing was read) and one outcome for each range.

    ``silent`` maps brokers that did not answer in time to the error, ``heard`` the others to the seconds of their slowest answer.
    ``resumed`` says that it began with what an earlier task had read ahead. ``copied`` are the bytes that came from copies of the
    source, by alias, ``left_out`` what was wrong in a copy's partition, ``lost_copies`` those that did not answer, or stood.
    """

    part: PartFile | None
    outcomes: tuple[RangeOutcome, ...]
    seconds: float
    silent: Mapping[int, str] = field(default_factory=dict)
    heard: Mapping[int, float] = field(default_factory=dict)
    resumed: bool = False
    copied: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[tuple[str, TopicPartition], str] = field(default_factory=dict)
    lost_copies: frozenset[str] = frozenset()

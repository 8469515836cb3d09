"""What ``Mirror`` answers: one frozen dataclass per question, each with ``to_json()``.

Other programs rely on the JSON shapes; the CLI prints them unchanged.

Over 300 lines: all JSON shapes are in one file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from mirror_pipeline.model import Gap

RecordSource = Literal["auto", "buffer", "cluster"]
"""Where a backfill's records come from: the source cluster as far as it has them and the buffer for the rest, or only one of them."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What a mirror would do with one selected topic.

    ``state`` is ``ok``, or ``halted`` with its ``code``, its ``reason`` and a ``hint`` that says what ends it.
    """

    topic: str
    target_topic: str
    partitions: int
    records: int
    bytes: int | None
    actions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    state: str = "ok"
    code: str = ""
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Excluded:
    """A topic that is not mirrored, and why."""

    topic: str
    why: str


@dataclass(frozen=True, slots=True)
class PlanPrice:
    """What is to be copied, about: ``bytes`` once, ``target_bytes`` with all replicas, and at most ``buffer_bytes`` of disk on the way.

    ``seconds`` at ``bytes_per_second``, the rate of the last run; None where no run has copied enough to tell.
    """

    bytes: int
    target_bytes: int
    buffer_bytes: int
    bytes_per_second: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How many of the records that are to be copied (by offsets) a cluster of ``sources`` holds; None where it cannot be asked: ``reason``.

    What it holds is read from there only after samples were compared with the source.
    """

    cluster: str
    records: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """Selected and excluded topics of one mirror; ``notes`` has a line for each lane whose last run failed or was interrupted.

    ``price`` leaves out topics whose ``bytes`` are not known.
    """

    mirror: str
    topics: tuple[TopicPlan, ...]
    excluded: tuple[Excluded, ...]
    notes: tuple[str, ...] = ()
    price: PlanPrice | None = None
    copies: tuple[CopyPlan, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """One element of ``plan --json``'s ``mirrors``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FreshCopy:
    """What copying a topic afresh would do: ``deleted`` offsets of the copy go, ``copied`` ones of the source come.

    ``lost``: source offsets of the copy that the source does not have any more.
    """

    mirror: str
    topic: str
    target_topic: str
    target: str
    deleted: int
    copied: int
    lost: int

    def to_json(self) -> dict[str, Any]:
        """The document of ``remirror --dry-run --json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that ``check`` examined."""

    what: str
    ok: bool
    detail: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """One element of ``check --json``'s ``findings``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of a topic in a run: ``ok``, ``behind`` (target not reachable or run ended early) or ``halted``.

    ``positions``: source offset, by partition, up to which everything is on the target or named as missing. ``behind_seconds``:
    how long it had been behind when that was reported.
    """

    topic: str
    state: str
    reason: str = ""
    hint: str = ""
    target_topic: str = ""
    records: int = 0
    bytes: int = 0
    code: str = ""
    positions: dict[int, int] = field(default_factory=dict)
    behind_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunReport:
    """The outcome of one run over one mirror: ``ok`` when every topic is.

    ``lag_records`` are offsets that were not on the target at the end; ``target_down`` and ``source_down`` say why that cluster
    could not be reached at that time. ``copied`` are the bytes read from copies of the source, by alias; ``left_out`` says which copies,
    or topics of copies ("north orders"), are not read, and why. ``spark_bytes`` were read by Spark's tasks, ``driver_bytes`` by the
    mirror's own process.
    """

    mirror: str
    state: str
    records: int
    bytes: int
    seconds: float
    topics: tuple[TopicState, ...]
    micro_batches: int = 0
    staged_records: int = 0
    staged_bytes: int = 0
    session_seconds: float = 0.0
    lag_records: int = 0
    target_down: str = ""
    source_down: str = ""
    copied: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    spark_bytes: int = 0
    driver_bytes: int = 0
    spark_jobs: int = 0

    def to_json(self) -> dict[str, Any]:
        """One element of ``run --json``'s ``mirrors``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BufferUse:
    """The disk space one lane takes, in bytes, and the state of its maintenance; times in seconds since the epoch.

    ``spans_bytes`` includes evicted files that are not removed yet. ``unverified_bytes`` are on the target but not yet compared with
    it, so they cannot be evicted. While ``full_since`` is set, staging waits because of ``full_reason``. ``archive_bytes`` are those of
    the archive, which ``buffer.max_bytes`` does not limit; ``archive_oldest`` is the UTC day on which its oldest spans were staged.
    """

    spans_bytes: int = 0
    ledger_bytes: int = 0
    log_bytes: int = 0
    other_bytes: int = 0
    log_files: int = 0
    live_files: int = 0
    live_spans: int = 0
    unverified_bytes: int = 0
    oldest_staged: float | None = None
    full_since: float | None = None
    full_reason: str = ""
    last_upkeep: float | None = None
    upkeep_error: str = ""
    archive_bytes: int = 0
    archive_spans: int = 0
    archive_oldest: str = ""

    @property
    def disk_bytes(self) -> int:
        """Everything in the lane's folder but the archive."""
        return self.spans_bytes + self.ledger_bytes + self.log_bytes + self.other_bytes


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """A lane as its run last described it (``state``: running, finished, failed, stale, never run).

    ``decided`` is when a halt was last accepted by ``mirror resolve``; a topic whose halt was accepted since is ``accepted``.
    ``exit_code`` is that of the error that ended a failed run. ``lag_records`` are the offsets that were not on the target then, the
    oldest ``lag_seconds`` old; ``time_up``: the run ended because its time was over, or because it was idle. ``copied`` and ``left_out``
    are those of :class:`RunReport`.
    """

    lane: str
    state: str
    heartbeat: float | None
    pid: int | None
    host: str
    started: float | None
    topics: tuple[TopicState, ...]
    micro_batches: int
    records: int
    bytes: int
    records_per_second: float
    bytes_per_second: float
    target_down_since: float | None = None
    message: str = ""
    buffer: BufferUse | None = None
    decided: float | None = None
    source_down: str = ""
    exit_code: int = 0
    source_down_since: float | None = None
    lag_records: int = 0
    lag_seconds: float | None = None
    time_up: bool = False
    copied: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """Lanes, buffer and gaps of one mirror; ``buffer_total_bytes`` is what all mirrors take, which the cap limits.

    ``gaps`` are those that `mirror gaps` lists. ``verified_at`` is the time of the last comparison with the source or with
    staged data (None: never), ``different`` are the topics that differed then. ``offsets`` is the setting: exact or translated.
    """

    mirror: str
    source: str
    target: str
    lanes: tuple[LaneStatus, ...]
    buffer_bytes: int
    buffer_max_bytes: int
    staged_records: int
    staged_bytes: int
    gaps: int
    buffer_total_bytes: int | None = None
    verified_at: float | None = None
    different: tuple[str, ...] = ()
    offsets: str = "translated"

    def to_json(self) -> dict[str, Any]:
        """One element of ``status --json``'s ``mirrors``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HaltedTopic:
    """A topic that cannot continue, as the lane's last run reported it.

    ``start`` and ``end`` are the source offsets concerned, if any. ``accept`` is the command that lets the mirror
    continue without a fix, "" when only fixing the cause helps.
    """

    mirror: str
    lane: str
    topic: str
    partition: int | None
    code: str
    reason: str
    hint: str
    start: int | None
    end: int | None
    accept: str

    def to_json(self) -> dict[str, Any]:
        """One element of ``resolve --json``'s ``halts``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class QuarantinedRecords:
    """A record, or a batch, that was left out of the copy: source offsets ``[start, end)``; ``readable`` unless it is damaged."""

    mirror: str
    lane: str
    topic: str
    partition: int
    start: int
    end: int
    reason: str
    bytes: int
    readable: bool

    def to_json(self) -> dict[str, Any]:
        """One element of ``quarantine … --json``'s ``quarantined``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PauseReport:
    """A topic, or with None a whole mirror, was paused or resumed at ``at`` (seconds since the epoch).

    ``stood``: it, or a part of it, was paused before.
    """

    mirror: str
    topic: str | None
    paused: bool
    decided_by: str
    at: float
    stood: bool

    def to_json(self) -> dict[str, Any]:
        """One element of ``pause --json``'s ``mirrors``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Resolution:
    """A halt that an operator accepted: ``spans`` are source offsets by partition, ``meaning`` says what the next run does."""

    mirror: str
    topic: str
    accepted: str
    meaning: str
    spans: dict[int, tuple[int, int]]
    decided_by: str

    def to_json(self) -> dict[str, Any]:
        """The document of ``resolve --accept … --json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Translation:
    """One offset on both sides; the one that was not asked for is None while it has no translation.

    ``state`` is ``record``, ``skipped``, ``before_start``, ``end``, ``not_there_yet``, ``ended`` or ``below_log_start``; ``note``
    says it in words, "" for ``record``. ``generation`` counts the topic's generations from 1.
    """

    mirror: str
    topic: str
    target_topic: str
    partition: int
    generation: int
    source_offset: int | None
    target_offset: int | None
    state: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """One element of ``offsets translate --json``'s ``offsets``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MappedRange:
    """What the ledger knows of one partition in one generation of its topic: ends are exclusive, ``runs`` linear pieces hold ``records``.

    ``current`` is False for a generation that another one has followed. ``bound_at`` is milliseconds since the epoch.
    """

    mirror: str
    topic: str
    target_topic: str
    partition: int
    generation: int
    current: bool
    bound_at: int
    source_start: int
    source_end: int
    target_start: int
    target_end: int
    records: int
    runs: int

    def to_json(self) -> dict[str, Any]:
        """One element of ``offsets show --json``'s ``partitions``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CarriedGroup:
    """A consumer group's committed offset in one partition; a group that is not carried over has no partition.

    ``behind`` are the target's records between its offset and the one that the source's commit means, None while that is not copied.
    ``written_at`` (milliseconds since the epoch) is when the mirror wrote the target's offset. ``state`` is ``in_step``, ``pending``,
    ``not_copied_yet``, ``ahead``, ``active_on_target``, ``moved``, ``both_sides`` or ``not_carried``; ``why`` says it in words.
    """

    mirror: str
    group: str
    topic: str
    partition: int | None
    source_offset: int | None
    target_offset: int | None
    behind: int | None
    written_at: int | None
    state: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class GroupsReport:
    """The consumer groups of one mirror; times are seconds since the epoch.

    ``last_round`` is None before the first round, ``source_down_since`` while the source answers: otherwise its offsets are those
    that were seen there last.
    """

    mirror: str
    groups: tuple[CarriedGroup, ...]
    notes: tuple[str, ...] = ()
    last_round: float | None = None
    source_down_since: float | None = None

    def to_json(self) -> dict[str, Any]:
        """One element of ``groups --json``'s ``mirrors``."""
        return asdict(self)


class ImportOutcome(StrEnum):
    """What became of a key of another tool's configuration.

    ``carried``: the same setting. ``changed``: another one, or another value. ``default``: not in the file; what that tool does without
    it. ``not_needed``: nothing here corresponds to it, and nothing is lost. ``refused``: it cannot be carried.
    """

    CARRIED = "carried"
    CHANGED = "changed"
    DEFAULT = "default"
    NOT_NEEDED = "not_needed"
    REFUSED = "refused"

    @property
    def shows_value(self) -> bool:
        """Whether the value is repeated in the report; what is refused may be a secret under a key that is not known."""
        return self is not ImportOutcome.REFUSED


@dataclass(frozen=True, slots=True)
class ImportedKey:
    """One key; ``line`` is None for a default, ``value`` empty where it may be secret, ``became`` names keys of mirror.yaml."""

    key: str
    line: int | None
    value: str
    outcome: str
    became: str
    why: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """A configuration made from that of MirrorMaker 2. ``path`` is None when nothing was written.

    ``secrets``: environment variables that the new file refers to, each with the key that holds the value now.
    """

    properties: str
    path: str | None
    mirrors: tuple[str, ...]
    keys: tuple[ImportedKey, ...]
    secrets: dict[str, str]

    @property
    def refused(self) -> tuple[ImportedKey, ...]:
        """What cannot be carried."""
        return tuple(key for key in self.keys if key.outcome == ImportOutcome.REFUSED)

    def to_json(self) -> dict[str, Any]:
        """The document of ``import-mm2 --json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The outcome of a backfill of source records with ``from <= time < to``.

    ``ranges`` are source offsets by partition, ``from_buffer`` those of them that are read from the buffer and its archive.
    """

    mirror: str
    topic: str
    target_topic: str
    from_time: int
    to_time: int
    ranges: dict[int, tuple[int, int]]
    run: RunReport
    from_buffer: dict[int, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document of ``backfill --json``."""
        return asdict(self)


def gap_json(gap: Gap) -> dict[str, Any]:
    """One element of ``gaps --json``'s ``gaps``."""
    return {
        "mirror": gap.mirror,
        "topic": gap.topic,
        "partition": gap.partition,
        "start": gap.start,
        "end": gap.end,
        "cause": gap.cause.value,
        "decided_by": gap.decided_by,
        "at": gap.at,
    }


LATENCY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86_400.0)
"""Upper bounds by which the latencies of records are counted; one more count is for those above."""


@dataclass(slots=True)
class Latency:
    """How long records took from their own time to the confirmation by the target: of each span, as long as its oldest one."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_SECONDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float, records: int) -> None:
        """Count a span's records."""
        self.counts[bisect_left(LATENCY_SECONDS, seconds)] += records
        self.seconds += seconds * records


@dataclass(slots=True)
class Progress:
    """A snapshot of a run, handed to an observer a few times a second; counters are cumulative since the run began.

    ``latency`` are the counts of :class:`Latency`, ``latency_seconds`` their sum. ``confirmed_at`` (seconds since the epoch) is when the
    target last confirmed records; None if it did not in this run. ``ahead``: while the source is down, offsets that a copy of it holds
    and the target lacks, by alias.
    """

    mirror: str
    lane: str
    records: int = 0
    bytes: int = 0
    staged_records: int = 0
    staged_bytes: int = 0
    total_records: int = 0
    lag_records: int = 0
    lag_seconds: float | None = None
    micro_batches: int = 0
    gaps: int = 0
    seconds: float = 0.0
    seconds_staging: float = 0.0
    seconds_producing: float = 0.0
    target_down: str = ""
    source_down: str = ""
    buffer_full: str = ""
    search_failure: str = ""
    copied: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)
    spark_bytes: int = 0
    spark_jobs: int = 0
    confirmed_at: float | None = None
    latency: list[int] = field(default_factory=list)
    latency_seconds: float = 0.0
    topics: dict[str, TopicProgress] = field(default_factory=dict)


# Called with the progress of a run, from the thread that started it.
Observer = Callable[[Progress], None]


@dataclass(slots=True)
class TopicProgress:
    """One topic inside a :class:`Progress`; ``marks`` are offset, CRC and leader epoch of the last batches read.

    ``ends_known``: the source has reported every ``end``. ``behind_seconds``: how long the topic has been in state behind.
    """

    target_topic: str
    records: int = 0
    bytes: int = 0
    lag_records: int = 0
    position: dict[int, int] = field(default_factory=dict)
    end: dict[int, int] = field(default_factory=dict)
    state: str = "ok"
    reason: str = ""
    hint: str = ""
    code: str = ""
    halted_partition: int | None = None
    halted_span: tuple[int, int] | None = None
    incarnation: str = ""
    max_batch_bytes: int = 0
    marks: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    ends_known: bool = False
    behind_seconds: float = 0.0

"""The lag of a mirror, and warnings about its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mirror_pipeline.halts import DIRECTED

EXPIRES_SOON_SECONDS = 86_400.0
LONG_TRANSACTION_SECONDS = 60.0
# States of a topic that is not copied now, by a halt or because it waits for a cluster.
HALTED, BEHIND = "halted", "behind"
LASTING_SECONDS = 30.0
"""A topic that has waited for this long has a problem: leaders of new topics, and those that move, are there within seconds."""
HANGING_SECONDS = 900.0
"""Kafka's default of transaction.max.timeout.ms: a transaction that is open for longer hangs (KIP-664)."""


def _words(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes} m" if minutes < 120 else f"{minutes // 60} h {minutes % 60} m"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """``position`` and ``end`` are source offsets; ``staged`` the end of what the buffer holds; ``lag`` in records of offset distance."""

    partition: int
    position: int
    end: int
    staged: int
    lag: int


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Lag of one topic, per partition.

    ``expires_seconds`` is how soon the source's retention may delete unread records (None: not by time, or nothing is
    unread), ``held_records`` the offsets that an open transaction has held back for ``held_seconds``.
    ``state`` is ``ok``, ``behind`` where a lane at work says for what the topic waits, or ``halted``, with its ``code``; both
    have the ``reason`` and, as ``hint``, what to do.
    ``unread_seconds`` is the age of the oldest record that no buffer holds yet (None: unknown): with the source gone, such records are
    lost. ``lag_seconds_at_least``: not every partition's oldest record is known, and the lag may be longer.
    """

    topic: str
    target_topic: str
    partitions: tuple[PartitionLag, ...]
    lag_seconds: float | None = None
    expires_seconds: float | None = None
    held_records: int = 0
    held_seconds: float | None = None
    state: str = "ok"
    code: str = ""
    reason: str = ""
    hint: str = ""
    lag_seconds_at_least: bool = False
    unread_seconds: float | None = None

    @property
    def lag_records(self) -> int:
        """Offsets between position and end, summed."""
        return sum(p.lag for p in self.partitions)

    @property
    def unread_records(self) -> int:
        """Offsets between what is staged and the end, summed: what a failover would not bring over if the source were gone now."""
        return sum(max(0, p.end - p.staged) for p in self.partitions)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems to expect on the source, one sentence each."""
        texts = []
        if self.expires_seconds is not None and self.expires_seconds < EXPIRES_SOON_SECONDS:
            texts.append(f"source deletes unread data in {_words(self.expires_seconds)}")
        if self.held_seconds is not None and self.held_seconds > LONG_TRANSACTION_SECONDS:
            hangs = "; it is hanging: see kafka-transactions.sh find-hanging" if self.held_seconds > HANGING_SECONDS else ""
            texts.append(f"an open transaction has held back {self.held_records:,} offsets for {_words(self.held_seconds)}{hangs}")
        return tuple(texts)


@dataclass(frozen=True, slots=True)
class MirrorLag:
    """Lag of one mirror; ``lag_seconds`` is the age of the oldest record not yet on the target, None when unknown, or that it has
    ``at_least``.

    ``notes`` has a line for each lane whose last run failed or was interrupted. ``source_down_since`` (seconds since the epoch) is
    known where the lag is read without the source: no run has reached it since.
    """

    mirror: str
    topics: tuple[TopicLag, ...]
    lag_seconds: float | None
    notes: tuple[str, ...] = ()
    source_down_since: float | None = None
    lag_seconds_at_least: bool = False

    @property
    def lag_records(self) -> int:
        """Offsets between position and end, summed over topics."""
        return sum(t.lag_records for t in self.topics)

    @property
    def unread_records(self) -> int:
        """Those that are not staged either, summed over the topics that are copied to the target: a failover would lose them."""
        return sum(t.unread_records for t in self._at_stake)

    @property
    def unread_seconds(self) -> float | None:
        """The age of the oldest of them; 0 if there are none, None if it is unknown."""
        unread = [t.unread_seconds for t in self._at_stake if t.unread_records]
        known = [seconds for seconds in unread if seconds is not None]
        return max(known, default=None) if unread else 0.0

    @property
    def _at_stake(self) -> list[TopicLag]:
        """Without those that applications write to on the target already."""
        return [topic for topic in self.topics if topic.state not in DIRECTED]

    @property
    def halted(self) -> tuple[TopicLag, ...]:
        """The topics that cannot continue."""
        return tuple(topic for topic in self.topics if topic.state == HALTED)

    def to_json(self) -> dict[str, Any]:
        """One element of ``lag --json``'s ``mirrors``."""
        body = asdict(self)
        for topic, row in zip(self.topics, body["topics"], strict=True):
            row["lag_records"] = topic.lag_records
            row["unread_records"] = topic.unread_records
            row["warnings"] = list(topic.warnings)
        return {
            "mirror": self.mirror,
            "lag_records": self.lag_records,
            "lag_seconds": self.lag_seconds,
            "lag_seconds_at_least": self.lag_seconds_at_least,
            "unread_records": self.unread_records,
            "unread_seconds": self.unread_seconds,
            "halted": len(self.halted),
            "notes": list(self.notes),
            "topics": body["topics"],
        }


@dataclass(frozen=True, slots=True)
class DelayHour:
    """One hour of a topic; ``at`` is its begin in milliseconds.

    The delays are from a record's timestamp until it was known to be on the target, in milliseconds; None where no row of the hour has
    one. The ledger has the longest delay of each row, which counts for all records of the row: after ten minutes that is a partition's
    hour.
    """

    at: int
    records: int
    delay_p50_ms: int | None
    delay_p99_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicDelays:
    """The hours of one topic, all of the period, oldest first."""

    topic: str
    hours: tuple[DelayHour, ...]


@dataclass(frozen=True, slots=True)
class MirrorDelays:
    """``lag --history`` of one mirror: topics of which something was sent in the period."""

    mirror: str
    topics: tuple[TopicDelays, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of ``mirror lag --history --json``."""
        return asdict(self)

"""The answers of a verification; other programs rely on their JSON shapes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

IDENTICAL, DIFFERENT, UNREADABLE, REPAIRED = "identical", "different", "unreadable", "repaired"


@dataclass(frozen=True, slots=True)
class Difference:
    """One record that differs.

    ``kind`` is missing, extra, altered, duplicate or order. Offsets are None where that side has no such record.
    ``detail`` names fields, places and lengths, never contents. Partition -1 stands for the topic as a whole.
    """

    kind: str
    topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PartitionVerdict:
    """One partition: the compared source offsets and the roots of both sides' trees.

    Roots also differ, without a different record, where batches were re-encoded or compaction was running.
    ``expired`` records were copied and then deleted by the target's retention.
    """

    partition: int
    start: int
    end: int
    records: int
    leaves: int
    root: str
    target_root: str
    expired: int = 0


@dataclass(frozen=True, slots=True)
class TopicVerdict:
    """One topic; ``note`` names what limits the verdict.

    ``repaired`` counts records that are missing in the mirrored topic and are in the side topic of `mirror repair`.
    """

    mirror: str
    topic: str
    target_topic: str
    verdict: str
    records: int
    leaves: int
    bytes: int
    expired: int
    differences: int
    partitions: tuple[PartitionVerdict, ...]
    note: str = ""
    repaired: int = 0

    @property
    def ok(self) -> bool:
        """Whether the topic could be read and is identical on both sides, except for repaired records."""
        return self.verdict in (IDENTICAL, REPAIRED)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of a verification. ``more`` says that some partition has more differences than are listed.

    ``repaired`` are differences whose record is in the side topic; they are not among ``differences``.
    """

    topics: tuple[TopicVerdict, ...]
    differences: tuple[Difference, ...]
    seconds: float
    sampled: float = 1.0
    more: bool = False
    repaired: tuple[Difference, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything compared could be read and is identical on both sides, or was repaired."""
        return not self.differences and all(topic.ok for topic in self.topics)

    @property
    def records(self) -> int:
        """Source records compared."""
        return sum(topic.records for topic in self.topics)

    @property
    def leaves(self) -> int:
        """Leaves compared."""
        return sum(topic.leaves for topic in self.topics)

    @property
    def bytes(self) -> int:
        """Bytes of the source's log compared."""
        return sum(topic.bytes for topic in self.topics)

    def to_json(self) -> dict[str, Any]:
        """Plain values for printing as JSON."""
        return {
            "ok": self.ok,
            "records": self.records,
            "leaves": self.leaves,
            "differences": [difference_json(d) for d in self.differences],
            "repaired": [difference_json(d) for d in self.repaired],
            "more": self.more,
            "bytes": self.bytes,
            "expired": sum(topic.expired for topic in self.topics),
            "seconds": round(self.seconds, 3),
            "sampled": self.sampled,
            "topics": [asdict(topic) for topic in self.topics],
        }


def difference_json(difference: Difference) -> dict[str, Any]:
    """One difference; ``detail`` names fields, places and lengths, never contents."""
    return {
        "topic": difference.topic,
        "partition": difference.partition,
        "source_offset": difference.source_offset,
        "target_offset": difference.target_offset,
        "kind": difference.kind,
        "detail": difference.detail,
    }


@dataclass(slots=True)
class VerifyProgress:
    """A running verification; ``offsets`` of ``total`` source offsets are compared. ``stage`` is the current step."""

    total: int
    offsets: int = 0
    records: int = 0
    bytes: int = 0
    suspects: int = 0
    stage: str = "digests"

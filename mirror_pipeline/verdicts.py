"""The answer of a verification, in a shape for other programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

IDENTICAL, DIFFERENT, UNREADABLE, REPAIRED = "identical", "different", "unreadable", "repaired"


@dataclass(frozen=True, slots=True)
class Difference:
    """One record that is not as it must be.

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
    """One partition: which source offsets were compared, what the roots of both sides' trees are.

    Roots differ, without a difference between records, where batches were re-encoded or compaction was running.
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
    """One topic; ``note`` says in words what limits the verdict.

    ``repaired`` of its records are not in the mirrored topic and lie in the side topic that `mirror repair` writes.
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
        """The topic could be read and is the same on both sides, but for records that a repair put beside it."""
        return self.verdict in (IDENTICAL, REPAIRED)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification found. ``more`` says that some partition has more differences than are listed.

    ``repaired`` are differences whose record lies in the side topic: they are known, and none of ``differences``.
    """

    topics: tuple[TopicVerdict, ...]
    differences: tuple[Difference, ...]
    seconds: float
    sampled: float = 1.0
    more: bool = False
    repaired: tuple[Difference, ...] = ()

    @property
    def ok(self) -> bool:
        """Everything that was looked at could be read and is the same on both sides, or was repaired."""
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
    """A running verification; ``offsets`` of ``total`` source offsets are compared. ``stage`` says at what it is."""

    total: int
    offsets: int = 0
    records: int = 0
    bytes: int = 0
    suspects: int = 0
    stage: str = "digests"

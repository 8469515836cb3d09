"""What applications need to know after a failover; the same document is printed, written to a file and rebuilt from the ledger."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

PLANNED, UNPLANNED = "planned", "unplanned"


@dataclass(frozen=True, slots=True)
class FailoverOptions:
    """What was asked for.

    ``topics``: only these source topics. ``unplanned``: do not ask the source, even if it answers; ``planned``: refuse while it does not
    answer, instead of doing without it. ``wait``: seconds until a planned failover gives up while the source is still written to.
    ``accept_differences``: promote although the verification found some.
    """

    topics: Collection[str] | None = None
    dry_run: bool = False
    unplanned: bool = False
    planned: bool = False
    wait: float = 60.0
    accept_differences: bool = False


@dataclass(frozen=True, slots=True)
class HandedPartition:
    """A partition: every source offset before ``source_offset`` is on the target before ``target_offset``, or named as missing."""

    partition: int
    source_offset: int
    target_offset: int


@dataclass(frozen=True, slots=True)
class HandedTopic:
    """A topic that applications use on the target from now on."""

    topic: str
    target_topic: str
    partitions: tuple[HandedPartition, ...]


@dataclass(frozen=True, slots=True)
class HandedGroup:
    """Where a consumer group continues on the target; ``offset`` is None where nothing is committed there, ``why`` says why not."""

    group: str
    target_topic: str
    partition: int
    offset: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """Source offsets ``[start, end)`` that are not on the target; ``end`` None: up to an end that is not known."""

    topic: str
    partition: int
    start: int
    end: int | None
    why: str


@dataclass(frozen=True, slots=True)
class FailoverReport:
    """A failover, or with ``dry_run`` what one would find now; ``number`` counts the mirror's failovers and failbacks.

    ``state`` is ``promoted``, or ``ready`` for a dry run. ``producing`` has a line for each partition that is still written on the
    source, ``file`` is where this document was written.
    """

    mirror: str
    number: int
    state: str
    mode: str
    dry_run: bool
    source: str
    target: str
    bootstrap_servers: tuple[str, ...]
    topics: tuple[HandedTopic, ...]
    groups: tuple[HandedGroup, ...] = ()
    missing: tuple[Missing, ...] = ()
    producing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    resumed: bool = False
    file: str = ""

    def to_json(self) -> dict[str, Any]:
        """The document of ``failover --json``."""
        return asdict(self)


LEAVE, COPY_ASIDE, REBUILD = "leave", "copy-aside", "rebuild"
TAILS = (LEAVE, COPY_ASIDE, REBUILD)
"""What may become of records that never came over."""


@dataclass(frozen=True, slots=True)
class FailbackOptions:
    """What was asked for.

    ``topics``: only these promoted topics. ``tail``: one of ``TAILS``, None while there is nothing to decide. ``may_rebuild``: whether
    records of the old source may be deleted, also by a failback that is only continued.
    """

    topics: Collection[str] | None = None
    dry_run: bool = False
    tail: str | None = None
    may_rebuild: bool = True


@dataclass(frozen=True, slots=True)
class TailPartition:
    """Offsets ``[start, end)`` of the old source that never came over; ``lost`` of them its log has deleted meanwhile."""

    topic: str
    partition: int
    start: int
    end: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class OpenedTopic:
    """A promoted topic, and the topic that the other mirror copies from now on, with its name on the old source.

    ``comes_back``: that name is the promoted topic itself. The other mirror continues in it, or, ``rebuilt``, copies it afresh.
    """

    topic: str
    copied: str
    target_topic: str
    comes_back: bool = False
    rebuilt: bool = False


@dataclass(frozen=True, slots=True)
class FailbackReport:
    """A failback, or with ``dry_run`` what one would find now.

    ``mirror`` was failed over, ``reverse`` is the mirror that is opened. ``state`` is ``open``, or ``ready`` for a dry run. ``aside`` are
    the topics on the new primary that hold the tail, by old topic.
    """

    mirror: str
    reverse: str
    number: int
    state: str
    dry_run: bool
    topics: tuple[OpenedTopic, ...]
    tail: tuple[TailPartition, ...] = ()
    choice: str | None = None
    aside: tuple[tuple[str, str], ...] = ()
    resumed: bool = False

    def to_json(self) -> dict[str, Any]:
        """The document of ``failback --json``."""
        return asdict(self)

"""What to do with one committed offset of one group. Pure.

The rules, first match first:

1. The target holds an offset that this mirror did not write: it is never overwritten. The group moved to the target if its commit on
   the source has not changed since; otherwise it committed on both sides. After a failover and a way back the group has done so
   rightly: its offset is moved forward from there.
2. The source's commit is beyond what is copied, or its translation beyond the target's log: it waits.
3. The target holds it already.
4. It lies before what the target holds: only if the source's commit itself went back.
5. The target's group has members: it waits until they have left; the coordinator would refuse it too.
6. It is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from mirror_pipeline.buffer.ledger.translation import Translated
from mirror_pipeline.features.groups.group_offsets import NO_OFFSET, CarriedOffset, GroupPartition
from mirror_pipeline.kafka.groups.group_client import Commit


class GroupState(StrEnum):
    """How a group's offset stands in one partition."""

    IN_STEP = "in_step"
    WRITE = "pending"
    NOT_COPIED_YET = "not_copied_yet"
    AHEAD = "ahead"
    ACTIVE = "active_on_target"
    MOVED = "moved"
    BOTH = "both_sides"
    NOT_CARRIED = "not_carried"


@dataclass(frozen=True, slots=True)
class Sides:
    """One commit on both sides: ``start`` and ``end`` bound the target's log; ``active`` when the target's group has members."""

    source: Commit
    target: Commit | None
    translated: Translated
    start: int
    end: int
    active: bool


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """The outcome: ``offset`` is what the target should hold (None while unknown), ``row`` what the ledger should say."""

    state: GroupState
    offset: int | None
    row: CarriedOffset | None
    why: str = ""


def decide(key: GroupPartition, sides: Sides, known: CarriedOffset | None, now: int, *, opened: int = NO_OFFSET) -> GroupDecision:
    """Apply the rules.

    Args:
        key: which group and partition.
        sides: what both clusters say.
        known: the ledger's row.
        now: milliseconds since the epoch, for a new row.
        opened: the revision at which the topic was opened again after a promotion. Later than that of ``known``, it says that what the
            target holds dates from the time in between.
    """
    wanted = None if sides.translated.offset is None else max(sides.translated.offset, sides.start)
    reopened = opened > (NO_OFFSET if known is None else known.opened)
    onward = reopened and sides.target is not None and wanted is not None and wanted >= sides.target.offset
    if not onward and not _ours(sides.target, known, wanted):
        return _foreign(sides, known, wanted)
    went_back = known is not None and (sides.source.offset < known.source_offset or known.moved_back)
    held = NO_OFFSET if sides.target is None else sides.target.offset
    if wanted is None or wanted > sides.end:
        row = _row(key, sides, NO_OFFSET, held, went_back, known, now, opened)
        why = f"the target's log ends at {sides.end}" if wanted is not None else "its record is not copied yet"
        return GroupDecision(GroupState.NOT_COPIED_YET, None, row, why)
    if sides.target is not None and held == wanted and sides.target.metadata == sides.source.metadata:
        return GroupDecision(GroupState.IN_STEP, wanted, _row(key, sides, wanted, held, False, known, now, opened))
    if wanted < held and not went_back:
        why = f"the target's offset {held} is further, and the source's did not go back"
        return GroupDecision(GroupState.AHEAD, wanted, None, why)
    if sides.active:  # nothing is written, so nothing is named: what appears there is the members' own
        row = _row(key, sides, NO_OFFSET, held, went_back, known, now, opened)
        return GroupDecision(GroupState.ACTIVE, wanted, row, "the group has members on the target; stop them there or on the source")
    row = _row(key, sides, wanted, held, went_back, known, now, opened)
    return GroupDecision(GroupState.WRITE, wanted, row, "the next round writes it")


def seen_only(key: GroupPartition, source: Commit, known: CarriedOffset | None, now: int) -> CarriedOffset | None:
    """The new row while the target is not known; None where the ledger has the commit already.

    What was written on the target, and when, stays noted: what it holds besides is somebody else's.
    """
    if known is None:
        return CarriedOffset(key, source.offset, source.metadata, NO_OFFSET, NO_OFFSET, False, now)
    if (source.offset, source.metadata) == (known.source_offset, known.metadata):
        return None
    went_back = source.offset < known.source_offset or known.moved_back
    return replace(known, source_offset=source.offset, metadata=source.metadata, moved_back=went_back)


def _ours(target: Commit | None, known: CarriedOffset | None, wanted: int | None) -> bool:
    if target is None or target.offset == wanted:
        return True
    return known is not None and target.offset in (known.target_offset, known.previous_offset)


def _foreign(sides: Sides, known: CarriedOffset | None, wanted: int | None) -> GroupDecision:
    assert sides.target is not None  # noqa: S101 - what is missing is never foreign
    if known is not None and known.source_offset == sides.source.offset:
        return GroupDecision(GroupState.MOVED, wanted, None, f"the group continued on the target, at {sides.target.offset}")
    hint = "delete its offsets on the target to carry the source's over again"
    return GroupDecision(GroupState.BOTH, wanted, None, f"the group committed {sides.target.offset} on the target itself; {hint}")


def _row(
    key: GroupPartition, sides: Sides, target: int, held: int, back: bool, known: CarriedOffset | None, now: int, opened: int
) -> CarriedOffset | None:
    """The new row; None where the ledger says so already."""
    row = CarriedOffset(key, sides.source.offset, sides.source.metadata, target, held, back, now, opened)
    return None if known is not None and replace(known, at=now) == row else row

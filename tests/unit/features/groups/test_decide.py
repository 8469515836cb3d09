"""What a round does with one offset of one group, and that a crash between any two steps changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.ledger.translation import OffsetState, Translated
from mirror_pipeline.config import GroupSelection
from mirror_pipeline.features.groups.decide import GroupDecision, GroupState, Sides, decide, seen_only
from mirror_pipeline.features.groups.group_offsets import CarriedOffset, GroupPartition
from mirror_pipeline.features.groups.group_round import selected, why_left_out
from mirror_pipeline.features.groups.seen_groups import SeenGroups
from mirror_pipeline.kafka.groups.group_client import Commit, ListedGroup
from mirror_pipeline.model import TopicPartition

KEY = GroupPartition("billing", "orders", 0)
COPIED = 50
"""The copy shifts offsets by 1,000, up to source offset 50."""


def sides(source: int, target: int | None, *, end: int = 1_000 + COPIED, start: int = 0, active: bool = False, note: str = "") -> Sides:
    found = Translated(1_000 + source, OffsetState.RECORD, 1) if source <= COPIED else Translated(None, OffsetState.NOT_THERE_YET, 1)
    return Sides(Commit(source, note), None if target is None else Commit(target, note), found, start, end, active)


def row(source: int, target: int, previous: int = -1, *, back: bool = False) -> CarriedOffset:
    return CarriedOffset(KEY, source, "", target, previous, back, 0)


def outcome(found: Sides, known: CarriedOffset | None = None) -> tuple[GroupState, int | None]:
    decision = decide(KEY, found, known, 7)
    return decision.state, decision.offset


def test_a_new_commit_is_written_and_named_before() -> None:
    decision = decide(KEY, sides(20, None), None, 7)
    assert decision == GroupDecision(GroupState.WRITE, 1_020, CarriedOffset(KEY, 20, "", 1_020, -1, False, 7), decision.why)


def test_one_that_is_there_is_in_step() -> None:
    assert outcome(sides(20, 1_020)) == (GroupState.IN_STEP, 1_020)
    assert decide(KEY, sides(20, 1_020), row(20, 1_020, 1_010), 7).row == replace(row(20, 1_020, 1_020), at=7), "known to be written"
    assert decide(KEY, sides(20, 1_020), row(20, 1_020, 1_020), 8).row is None


def test_an_older_offset_is_ours_only_while_the_write_is_unconfirmed() -> None:
    named = decide(KEY, sides(30, 1_020), row(20, 1_020, 1_020), 7).row
    assert named == replace(row(30, 1_030, 1_020), at=7)
    assert outcome(sides(30, 1_020), named) == (GroupState.WRITE, 1_030), "killed between naming and writing"
    for confirmed in (named.settled(written=True), decide(KEY, sides(30, 1_030), named, 8).row):
        assert confirmed is not None
        assert outcome(sides(30, 1_020), confirmed)[0] is GroupState.MOVED, "the group was reset to where it had been"
        assert outcome(sides(35, 1_020), confirmed)[0] is GroupState.BOTH
        waits = decide(KEY, sides(51, 1_030), confirmed, 9)
        assert waits.state is GroupState.NOT_COPIED_YET and waits.row is not None
        assert outcome(sides(51, 1_020), waits.row)[0] is GroupState.MOVED
        assert outcome(sides(45, 1_020), waits.row)[0] is GroupState.BOTH
    refused = named.settled(written=False)
    assert outcome(sides(40, 1_030), refused)[0] is GroupState.BOTH, "it was not ours"
    assert outcome(sides(40, 1_020), refused) == (GroupState.WRITE, 1_040)


def test_what_members_commit_where_nothing_was_written_is_theirs() -> None:
    active = decide(KEY, sides(30, 1_020, active=True), row(20, 1_020, 1_020), 7)
    assert active.state is GroupState.ACTIVE and active.row is not None
    assert outcome(sides(40, 1_030), active.row)[0] is GroupState.BOTH
    assert outcome(sides(40, 1_020), active.row) == (GroupState.WRITE, 1_040)


def test_one_beyond_the_copy_waits_and_so_does_one_beyond_the_targets_log() -> None:
    assert outcome(sides(51, 1_020), row(20, 1_020)) == (GroupState.NOT_COPIED_YET, None)
    assert outcome(sides(40, 1_020, end=1_039), row(20, 1_020)) == (GroupState.NOT_COPIED_YET, None)


def test_deleted_records_of_the_target_are_skipped() -> None:
    assert outcome(sides(20, None, start=1_030)) == (GroupState.WRITE, 1_030)


def test_backwards_only_after_the_source() -> None:
    assert outcome(sides(10, 1_020), row(20, 1_020)) == (GroupState.WRITE, 1_010)
    assert outcome(sides(20, 1_025), row(19, 1_025)) == (GroupState.AHEAD, 1_020)


def test_a_step_back_that_was_not_written_is_still_owed() -> None:
    first = decide(KEY, sides(10, 1_020, active=True), row(20, 1_020), 7)
    assert first.state is GroupState.ACTIVE and first.row is not None
    assert outcome(sides(10, 1_020), first.row) == (GroupState.WRITE, 1_010)
    done = decide(KEY, sides(10, 1_010), first.row, 8)
    assert done.state is GroupState.IN_STEP and done.row is not None and not done.row.moved_back


def test_a_group_that_went_on_on_the_target_is_left_alone() -> None:
    assert outcome(sides(20, 1_033), row(20, 1_020))[0] is GroupState.MOVED
    assert outcome(sides(21, 1_033), row(20, 1_020))[0] is GroupState.BOTH
    assert outcome(sides(20, 1_033))[0] is GroupState.BOTH
    assert decide(KEY, sides(21, 1_033), row(20, 1_020), 7).row is None  # it stays reported


def test_members_on_the_target_are_not_disturbed() -> None:
    assert outcome(sides(20, 1_010, active=True), row(10, 1_010)) == (GroupState.ACTIVE, 1_020)
    assert outcome(sides(20, 1_020, active=True), row(20, 1_020))[0] is GroupState.IN_STEP


def test_a_note_alone_is_carried_too() -> None:
    found = replace(sides(20, 1_020), source=Commit(20, "new"))
    decision = decide(KEY, found, row(20, 1_020), 7)
    assert decision.state is GroupState.WRITE and decision.row is not None and decision.row.metadata == "new"


ENDS = st.sampled_from(["whole", "killed_before_ledger", "killed_before_write", "killed_after_write", "active"])


@given(st.lists(st.tuples(st.integers(0, 60), ENDS), max_size=30))
def test_a_killed_round_never_looks_like_a_commit_of_somebody_else(steps: list[tuple[int, str]]) -> None:
    """Whatever the order of commits and kills: nothing is foreign, and one whole round brings the target into step."""
    known: CarriedOffset | None = None
    target: int | None = None
    for source, end in [*steps, (30, "whole")]:
        decision = decide(KEY, sides(source, target, active=end == "active"), known, 7)
        assert decision.state not in (GroupState.MOVED, GroupState.BOTH)
        if end == "killed_before_ledger":
            continue
        known = decision.row or known
        if end in ("whole", "killed_after_write") and decision.state is GroupState.WRITE:
            target = decision.offset
            known = known.settled(written=True) if known is not None and end == "whole" else known
        assert target is None or target <= 1_000 + COPIED
    assert target == 1_030


def test_groups_are_selected_by_whole_names_and_share_groups_are_named() -> None:
    groups = {name: ListedGroup(name, "Empty", "classic") for name in ("shop-1", "shop-2", "my-shop-1", "shop-test")}
    chosen = selected(groups, GroupSelection(("shop-.*", "my"), ("shop-t.*",)))
    assert sorted(chosen) == ["shop-1", "shop-2"]
    assert why_left_out(ListedGroup("s", "Empty", "share")).startswith("share group: ")
    assert [why_left_out(ListedGroup("s", "Empty", kind)) for kind in ("classic", "consumer", "streams")] == [""] * 3


def test_after_a_failover_and_a_way_back_a_group_is_moved_forward_from_where_it_stood() -> None:
    """It committed 1,030 on the target while applications were there; its row is from before."""

    def found(source: int) -> GroupDecision:
        return decide(KEY, sides(source, 1_030), row(20, 1_020), 7, opened=4)

    assert (found(40).state, found(40).offset) == (GroupState.WRITE, 1_040)
    assert found(40).row == CarriedOffset(KEY, 40, "", 1_040, 1_030, False, 7, 4)
    in_step = decide(KEY, sides(30, 1_030), row(30, 1_030, 1_030), 7, opened=4)
    assert in_step.row is not None and in_step.row.opened == 4, "noted, or a later commit on the target would be moved too"
    assert decide(KEY, sides(40, 1_035), in_step.row, 8, opened=4).state is GroupState.BOTH
    assert found(25).state is GroupState.BOTH, "never back: it has read those records"
    assert found(60).state is GroupState.BOTH, "its record is not copied yet"
    assert decide(KEY, sides(40, 1_030), row(20, 1_020), 7).state is GroupState.BOTH, "without a way back it is a split"


def test_a_commit_that_is_seen_without_the_target_is_noted_and_what_was_written_there_stays_known() -> None:
    assert seen_only(KEY, Commit(20, "x"), None, 7) == CarriedOffset(KEY, 20, "x", -1, -1, False, 7)
    known = row(20, 1_020, 1_010)
    assert seen_only(KEY, Commit(20), known, 7) is None
    forward = seen_only(KEY, Commit(30), known, 7)
    assert forward == CarriedOffset(KEY, 30, "", 1_020, 1_010, False, known.at), "what was written stays known"
    assert outcome(sides(30, 1_020), forward) == (GroupState.WRITE, 1_030), "the target's offset is still known as ours"
    back = seen_only(KEY, Commit(10), known, 7)
    assert back is not None and back.moved_back
    assert outcome(sides(10, 1_020), back) == (GroupState.WRITE, 1_010)
    again = seen_only(KEY, Commit(12), back, 8)
    assert again is not None and again.moved_back, "still below what the target holds"


def test_groups_of_a_silent_source_are_those_of_which_a_commit_was_seen() -> None:
    other = GroupPartition("shop", "orders", 3)
    rows = {KEY: row(20, 1_020), other: CarriedOffset(other, 7, "note", -1, -1, False, 0)}
    seen = SeenGroups(cast(Any, None), rows=rows)
    assert sorted(seen.listed()) == ["billing", "shop"]
    assert seen.committed(["billing", "shop", "gone"]) == {
        "billing": {TopicPartition("orders", 0): Commit(20)}, "shop": {TopicPartition("orders", 3): Commit(7, "note")}, "gone": {},
    }  # fmt: skip

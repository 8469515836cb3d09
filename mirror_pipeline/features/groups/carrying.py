"""Rounds over the consumer groups while a mirror runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.errors import LaneBusy, MirrorError
from mirror_pipeline.features.groups.decide import GroupState
from mirror_pipeline.features.groups.group_offsets import GROUPS_LANE, GroupOffsets
from mirror_pipeline.features.groups.group_round import GroupRounds, RoundOutcome
from mirror_pipeline.features.groups.last_round import LastRound, read_last_round, write_last_round
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.groups.group_client import GroupClient
from mirror_pipeline.operations.background import BackgroundRounds, RunEnd

log = logging.getLogger(__name__)

# How long the end of a run waits for a round in progress, which may be abandoned at any point.
GROUPS_END_SECONDS = 30.0
# At most one maintenance of the table in this many rounds.
GROUPS_MAINTAIN_EVERY = 30
SAID = (GroupState.ACTIVE, GroupState.BOTH)


def open_rounds(flow: Flow, stack: ExitStack, store: LaneStore | None) -> GroupRounds:
    """Rounds with clients of their own, which the stack closes; ``store`` is None before the first."""
    assert flow.settings.groups is not None  # noqa: S101 - callers know
    source, target = stack.enter_context(flow.source_client()), stack.enter_context(flow.target_client())
    table = GroupOffsets(store, durable=flow.config.buffer.durable)
    return GroupRounds(flow, table, GroupClient(source), GroupClient(target), flow.settings.groups)


@contextmanager
def carrying_groups(flow: Flow, *, ask_source: bool = True) -> Iterator[None]:
    """Carry groups over while the block runs, and once more at its end; nothing where the mirror has no groups.

    While the source does not answer, and without ``ask_source``, the commits that were seen there last are carried over. An error of
    a round is logged and shown by `mirror groups`; it does not end the run.
    """
    if flow.settings.groups is None or not flow.settings.groups.include:
        yield
        return
    interval = flow.settings.groups.interval

    def rounds(store: LaneStore, ended: RunEnd) -> None:
        with ExitStack() as stack:
            _rounds(open_rounds(flow, stack, store), store, interval, ended, ask_source=ask_source)

    with BackgroundRounds(flow, "groups", GROUPS_LANE, rounds, interval, GROUPS_END_SECONDS, at_end=True).beside():
        yield


def one_round(flow: Flow) -> RoundOutcome | None:
    """One round now; None when another run of the mirror carries the groups. Raises as :meth:`GroupRounds.run`."""
    store = open_lane(flow.config.buffer, flow.name, GROUPS_LANE)
    try:
        with lane_lock(store, patience=0.0), ExitStack() as stack:
            began = time.time()
            outcome = open_rounds(flow, stack, store).run()
            write_last_round(store, _done(began, outcome, read_last_round(store)))
    except LaneBusy:
        return None
    return outcome


def _done(began: float, outcome: RoundOutcome, last: LastRound | None, error: str = "", *, asked: bool = True) -> LastRound:
    """The round as others see it. A round that does not ask the source leaves it as the last one found it."""
    known = 0.0 if last is None else last.source_down_since
    since = known if not asked or error else (known or began) if outcome.source_down else 0.0
    return LastRound(began, time.time() - began, outcome.groups, outcome.written, error, since)


def _rounds(rounds: GroupRounds, store: LaneStore, interval: float, ended: RunEnd, *, ask_source: bool = True) -> None:
    """Rounds until the run has ended, and one after that, unless the last one failed: its cluster will not answer now either.

    For the same reason the one at the end does not ask a source that did not answer the one before.
    """
    said: set[str] = set()
    count, last, down = 0, False, False
    while not last:
        last = ended.is_set()
        began, error, outcome = time.time(), "", RoundOutcome()
        asks = ask_source and not (last and down)
        try:
            outcome = rounds.run(ask_source=asks)
            down = bool(outcome.source_down)
            if count % GROUPS_MAINTAIN_EVERY == 0:
                rounds.table.maintain()
        except MirrorError as failed:
            error = str(failed)
        write_last_round(store, _done(began, outcome, read_last_round(store), error, asked=asks))
        if not (error or outcome.source_down) or ended.may_say():
            for text in [line for line in (error, *_messages(outcome)) if line and line not in said]:
                log.warning("groups mirror=%s: %s", store.mirror, text)
                said.add(text)
        count += 1
        last = last or (bool(error) and ended.is_set())
        if not last:
            ended.wait(interval)


def _messages(outcome: RoundOutcome) -> list[str]:
    """What an operator should know, one line for each group."""
    stuck = {key.group: decision.why for key, (_, decision) in outcome.decisions.items() if decision.state in SAID}
    lines = {**outcome.left_out, **stuck}
    seen = "the commits that were seen there last are carried over as their records arrive"
    silent = [f"{outcome.source_down}; {seen}"] if outcome.source_down else []
    return [*silent, *outcome.notes, *(f"group {name} is not carried over: {why}" for name, why in sorted(lines.items()))]

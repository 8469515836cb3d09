"""Progress and report of a running lane."""

from __future__ import annotations

import time

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.state import LaneState, TopicRun
from mirror_pipeline.halts import ENDED, Halt, accept_hint
from mirror_pipeline.lags import BEHIND, HALTED
from mirror_pipeline.reports import Progress, RunReport, TopicProgress, TopicState
from mirror_pipeline.text import SHOWN_NAMES, duration


def progress_of(context: LaneContext, *, seconds: float, marks: bool = False) -> Progress:
    """The lane's progress now; with ``marks`` also the last batches read, which the next run needs."""
    state = context.state
    with state.lock:
        topics = {run.topic: _topic_progress(context, run, marks) for run in state.topics.values() if not run.left_out}
        for name, halt in state.refused.items():
            topics[name] = _halted(TopicProgress(""), context, halt)
        for name, why in state.unready.items():
            topic = topics.setdefault(name, TopicProgress(""))
            if topic.state == "ok":
                topic.state, topic.reason = BEHIND, why
        _note_waiting(state, topics)
        return Progress(
            mirror=context.mirror.name,
            lane=context.lane,
            records=state.records,
            bytes=state.bytes,
            staged_records=state.staged_records,
            staged_bytes=state.staged_bytes,
            lag_records=sum(t.lag_records for t in topics.values()),
            lag_seconds=_lag_seconds(state),
            micro_batches=state.micro_batches,
            gaps=state.gaps,
            seconds=seconds,
            seconds_staging=state.seconds_staging,
            seconds_producing=state.seconds_producing,
            target_down=state.target_down,
            source_down=state.source_down,
            buffer_full=state.buffer_full,
            search_failure=state.search_failure,
            copied=dict(state.copied),
            left_out=dict(state.left_out),
            ahead=dict(state.ahead),
            spark_bytes=state.spark_bytes,
            spark_jobs=state.spark_jobs,
            confirmed_at=state.confirmed_at,
            latency=list(state.latency.counts),
            latency_seconds=state.latency.seconds,
            topics=topics,
        )


def _note_waiting(state: LaneState, topics: dict[str, TopicProgress]) -> None:
    """Since when each topic has been waiting, and what to do about it."""
    now = time.monotonic()
    waiting = {name: state.behind_since.get(name, now) for name, topic in topics.items() if topic.state == BEHIND}
    state.behind_since = waiting
    side = "target" if state.target_down else "source" if state.source_down else "clusters"
    goes_on = "reading goes on, and " if state.target_down else ""
    for name, since in waiting.items():
        topics[name].behind_seconds = now - since
        topics[name].hint = f"`mirror check` says what the {side} lacks; {goes_on}the topic is copied once it can be"


def _lag_seconds(state: LaneState) -> float | None:
    """Age of the oldest staged record that is not on the target; 0 without lag, None while nothing of the lag is staged."""
    live = state.live()
    if not any(part.lag for part in live):
        return 0.0
    oldest = [part.pending[0].min_timestamp for part in live if part.pending and part.pending[0].min_timestamp > 0]
    return max(0.0, time.time() - min(oldest) / 1000) if oldest else None


def _topic_progress(context: LaneContext, run: TopicRun, marks: bool) -> TopicProgress:
    lag = sum(p.lag for p in run.partitions.values())
    unsent = next((p.writing.error for p in run.partitions.values() if p.writing.error and (p.lag or p.pending)), "")
    error = _left(run) or unsent or run.waits
    error = error or _waits_for(context.state, run, lag)
    progress = TopicProgress(
        run.target_topic,
        records=run.records,
        bytes=run.bytes,
        lag_records=lag,
        position={n: p.writing.position.source_next for n, p in run.partitions.items()},
        end={n: p.reading.seen_end for n, p in run.partitions.items()},
        state=BEHIND if error else "ok",
        reason=error,
        incarnation=run.incarnation,
        max_batch_bytes=run.max_batch_bytes,
        ends_known=all(p.reading.end_known or p.reading.end_was_known for p in run.partitions.values()),
        marks={n: (mark.offset, mark.crc, mark.epoch) for n, p in run.partitions.items() if marks and (mark := p.reading.mark) is not None},
    )
    if run.halted is not None and run.halted.code == ENDED and any(p.pending for p in run.partitions.values()):
        progress.state, progress.reason = (BEHIND, error) if error else _drained(run)
        return progress
    left = lag or any(p.pending for p in run.partitions.values())
    unproven = run.trial.halt if left or not context.stop.is_set() else None  # at the end of a run that has copied all it is over
    halt = run.halted or unproven
    return progress if halt is None else _halted(progress, context, halt, _next_trial(context, run, halt))


def _next_trial(context: LaneContext, run: TopicRun, halt: Halt) -> str:
    """When the topic is tried again; "" where that needs another run, or an operator."""
    if not halt.again or context.once or context.stop.is_set():
        return ""
    return f"tried again in {duration(run.trial.at - time.monotonic())}" if run.halted else "being tried again"


def _left(run: TopicRun) -> str:
    """Which partitions a ``once`` run has given up, and why; "" if none."""
    left = [part for _, part in sorted(run.partitions.items()) if part.writing.left]
    names = ", ".join(str(part.target) for part in left[:SHOWN_NAMES])
    more = f" and {len(left) - SHOWN_NAMES} more" if len(left) > SHOWN_NAMES else ""
    why = "the target took nothing within target_wait, what is staged waits for the next run"
    return f"{names}{more}: {why}: {left[0].writing.left}" if left else ""


def _waits_for(state: LaneState, run: TopicRun, lag: int) -> str:
    """Which cluster a topic waits for, and why; "" if it waits for none."""
    staged = any(p.pending for p in run.partitions.values())
    if state.target_down and (lag or staged):
        return f"{lag:,} offsets are not on the target: {state.target_down}"
    unread = next((p for p in run.partitions.values() if p.reading.unread and (p.unfinished or p.reading.read_failures > 1)), None)
    if unread is not None and run.halted is None:
        return f"{unread.source} cannot be read: {unread.reading.unread}"
    if state.source_down and (lag or not all(p.reading.end_known for p in run.partitions.values())):
        return f"the source cannot be read: {state.source_down}"
    return ""


def _halted(progress: TopicProgress, context: LaneContext, halt: Halt, next_trial: str = "") -> TopicProgress:
    progress.state, progress.reason, progress.code = halt.state, halt.message, halt.code
    hints = (halt.hint, accept_hint(context.mirror.name, halt.topic, halt.code), next_trial)
    progress.hint = "; ".join(part for part in hints if part)
    progress.halted_partition, progress.halted_span = halt.partition, halt.span
    return progress


def _drained(run: TopicRun) -> tuple[str, str]:
    left = sum(span.records for part in run.partitions.values() for span in part.pending)
    return (BEHIND, f"{left:,} staged records are not on the target yet") if left else ("ok", "")


def report_of(context: LaneContext, *, seconds: float) -> RunReport:
    """The outcome of a run that has ended."""
    progress = progress_of(context, seconds=seconds)
    rows = []
    for name, topic in sorted(progress.topics.items()):
        state, reason = topic.state, topic.reason
        if state == "ok" and context.drain:
            state, reason = _drained(context.state.topics[name])
        elif state == "ok" and context.once:
            if topic.lag_records:
                state, reason = BEHIND, reason or f"{topic.lag_records:,} offsets are not on the target yet"
            elif not all(part.reading.end_known for part in context.state.topics[name].partitions.values()):
                state, reason = BEHIND, "the source has not reported its end offset yet"
        rows.append(
            TopicState(
                name, state, reason, topic.hint, topic.target_topic, topic.records, topic.bytes, topic.code, dict(topic.position)
            )
        )
    states = {row.state for row in rows}
    return RunReport(
        mirror=context.mirror.name,
        state=HALTED if HALTED in states else BEHIND if BEHIND in states else "ok",
        records=progress.records,
        bytes=progress.bytes,
        seconds=seconds,
        topics=tuple(rows),
        micro_batches=progress.micro_batches,
        staged_records=progress.staged_records,
        staged_bytes=progress.staged_bytes,
        lag_records=progress.lag_records,
        target_down=progress.target_down,
        source_down=progress.source_down,
        copied=progress.copied,
        left_out=progress.left_out,
        spark_bytes=progress.spark_bytes,
        driver_bytes=progress.staged_bytes - progress.spark_bytes,
        spark_jobs=progress.spark_jobs,
    )

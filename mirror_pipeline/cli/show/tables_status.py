"""Lag, status and the rows of queries as text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mirror_pipeline.cli.show.tables import STYLES, cells, halts, state, table, title
from mirror_pipeline.lags import BEHIND, MirrorDelays, MirrorLag, TopicLag
from mirror_pipeline.operations.state.health import FINE, PROBLEM_STATE, Health
from mirror_pipeline.reports import BufferUse, LaneStatus, MirrorStatus
from mirror_pipeline.text import clock, count, duration, plural, rate, since, size, sparkline

HISTORY = 20
"""Values kept for the sparkline of ``lag --watch``; a wide terminal has room for twice as many."""
WIDE = 120
NUMBER_COLUMNS = ["partitions", "lag", "staged", "behind by"]
SQL_NUMBERS = frozenset(("int", "bigint", "double", "float"))
GUTTER = 3
"""Between two columns of a table."""


class LagHistory:
    """The last ``shown`` values of each topic's lag."""

    def __init__(self, shown: int = HISTORY) -> None:
        self._shown = shown
        self._lags: dict[tuple[str, str], deque[int]] = {}

    def add(self, lag: MirrorLag) -> None:
        """Add one answer."""
        for topic in lag.topics:
            self._lags.setdefault((lag.mirror, topic.topic), deque(maxlen=self._shown)).append(topic.lag_records)

    def line(self, mirror: str, topic: str, room: int) -> str:
        """The sparkline of one topic, the newest value on the right."""
        return sparkline(list(self._lags.get((mirror, topic), ()))[-room:])


def lag(answer: MirrorLag, history: LagHistory | None = None, *, partitions: bool = False, width: int = WIDE) -> RenderableType:
    """``lag`` of one mirror: a row per topic or partition. A history takes the part of ``width`` that the names leave."""
    if partitions:
        return Group(title(answer.mirror), _by_partition(answer), *_below(answer))
    rows = [_lag_row(topic) for topic in answer.topics]
    narrow, room = _fitted(rows, width) if history else (False, 0)
    grid = table(["topic"] if narrow else ["topic", "target"], NUMBER_COLUMNS)
    if room:
        grid.add_column("history", no_wrap=True)
    for topic, row in zip(answer.topics, rows, strict=True):
        line = [Text(history.line(answer.mirror, topic.topic, room), "cyan")] if history and room else []
        grid.add_row(*cells(*(row[:1] + row[2:] if narrow else row), *line))
    return Group(title(answer.mirror), grid, *_below(answer))


def delays(answer: MirrorDelays, width: int = WIDE) -> RenderableType:
    """``lag --history`` of one mirror: a row per topic; each bar of a sparkline stands for equally many hours, the newest on the right."""
    if not answer.topics:
        return Group(title(answer.mirror), Text("nothing was sent in that time", "yellow"))
    room = max(8, (width - max(len(topic.topic) for topic in answer.topics) - 48) // 2)
    grid = table(["topic"], ["records", "p50", "p99", "worst hour"])
    for name in ("records by time", "p99 by time"):
        grid.add_column(name, no_wrap=True)
    for topic in answer.topics:
        known = [hour for hour in topic.hours if hour.delay_p99_ms is not None]
        worst = max((hour.delay_p99_ms or 0 for hour in known), default=None)
        newest = (known[-1].delay_p50_ms, known[-1].delay_p99_ms) if known else (None, None)
        numbers = [_delay(each) for each in (*newest, worst)]
        bars = (_bars([hour.records for hour in topic.hours], room), _bars([hour.delay_p99_ms or 0 for hour in topic.hours], room))
        records = count(sum(hour.records for hour in topic.hours))
        grid.add_row(*cells(topic.topic, records, *numbers, *(Text(each, "cyan") for each in bars)))
    return Group(title(answer.mirror), grid, Text("p50 and p99 of the last hour with records; each bar: the greatest of its hours", "dim"))


def _delay(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds} ms" if milliseconds < 1000 else duration(milliseconds / 1000)


def _bars(values: Sequence[int], room: int) -> str:
    """A sparkline of at most ``room`` bars, each the greatest of equally many values."""
    size = -(-len(values) // room)
    return sparkline([max(values[at : at + size]) for at in range(0, len(values), size)])


def undelivered(answer: MirrorLag, *, partitions: bool = False) -> RenderableType:
    """``lag`` of one mirror whose source is unreachable: positions and staged records by ledger and buffer."""
    grid = table(["topic", "partition"], ["position", "staged to", "staged"]) if partitions else table(["topic", "target"], ["staged"])
    for topic in answer.topics:
        if partitions:
            for row in topic.partitions:
                numbers = (count(row.position), count(row.staged), _lagging(row.lag))
                grid.add_row(*cells(topic.topic, str(row.partition), *numbers))
        else:
            grid.add_row(*cells(topic.topic, topic.target_topic, _lagging(topic.lag_records)))
    staged = f"{plural(answer.lag_records, 'record')} staged and not on the target yet"
    said = "; ".join([f"{answer.mirror}: source unreachable{since(answer.source_down_since)}, lag unknown", staged, *answer.notes])
    return Group(title(answer.mirror), grid, Text(said, "red"))


def _lag_row(topic: TopicLag) -> list[str | Text]:
    usual = _behind(topic) if topic.lag_records else ""
    behind = usual if topic.state in ("ok", BEHIND) else Text(topic.state, STYLES.get(topic.state, ""))
    partitions, staged = count(len(topic.partitions)), count(_staged(topic))
    return [topic.topic, topic.target_topic, partitions, _lagging(topic.lag_records), staged, behind]


def _behind(lag: TopicLag | MirrorLag) -> str:
    return f"{'more than ' if lag.lag_seconds_at_least else ''}{duration(lag.lag_seconds)}"


def _fitted(rows: Sequence[Sequence[str | Text]], width: int) -> tuple[bool, int]:
    """Whether to drop the target column, and how many values the history may show (0: none), so that names are not cut."""
    heads = ["topic", "target", *NUMBER_COLUMNS]
    widths = [max([len(head), *(len(row[at]) for row in rows)]) + GUTTER for at, head in enumerate(heads)]
    for narrow in (False, True):
        room = width - sum(widths) + (widths[1] if narrow else 0) - GUTTER
        if room >= len("history"):
            return narrow, room
    return True, 0


def _below(answer: MirrorLag) -> list[Text]:
    """The lines below the table: halts, warnings, how the last runs ended, the totals."""
    return [*halts(answer.topics), *_outlook(answer), *(Text(note, "yellow") for note in answer.notes), _lag_sum(answer)]


def _outlook(answer: MirrorLag) -> list[Text]:
    """Warnings about the source."""
    return [Text(f"{topic.topic}: {warning}", "yellow") for topic in answer.topics for warning in topic.warnings]


def _by_partition(answer: MirrorLag) -> Table:
    grid = table(["topic", "partition"], ["position", "end", "staged to", "lag"])
    for topic in answer.topics:
        for row in topic.partitions:
            numbers = (count(row.position), count(row.end), count(row.staged))
            grid.add_row(*cells(topic.topic, str(row.partition), *numbers, _lagging(row.lag)))
    return grid


def _staged(topic: TopicLag) -> int:
    """Offsets in the buffer that are not on the target yet."""
    return sum(max(0, row.staged - row.position) for row in topic.partitions)


def _lagging(number: int) -> Text:
    return Text(count(number), "yellow" if number else "green")


def _lag_sum(answer: MirrorLag) -> Text:
    if not answer.topics:
        return Text(f"{answer.mirror}: no topic is selected", "yellow")
    stopped = len(answer.halted)
    if not answer.lag_records and not stopped:
        return Text(f"{answer.mirror}: up to date", "green")
    behind = f", the oldest {_behind(answer)} old" if answer.lag_seconds is not None else ""
    others = len(answer.topics) - stopped
    togo = f"{plural(answer.lag_records, 'record')} to go{behind}" if answer.lag_records else "the others up to date" if others else ""
    if not stopped:
        return Text(f"{answer.mirror}: {togo}", "yellow")
    return Text(f"{answer.mirror}: {plural(stopped, 'topic')} halted" + (f", {togo}" if togo else ""), "red")


def status(answer: MirrorStatus, now: float) -> RenderableType:
    """``status`` of one mirror: its lanes as they last reported, buffer and gaps; ``now`` in seconds since the epoch."""
    head = title(f"{answer.mirror}: {answer.source} to {answer.target}{', exact offsets' if answer.offsets == 'exact' else ''}")
    if not answer.lanes:
        return Group(head, Text("it has never run: `mirror run` copies, `mirror plan` shows what", "yellow"), _buffer(answer))
    grid = table(["lane", "state"], ["heartbeat", "lag", "behind by", "records", "size", "mean speed"])
    for lane in answer.lanes:
        seen = f"{duration(max(0.0, now - lane.heartbeat))} ago" if lane.heartbeat is not None else "never"
        speed = rate(lane.bytes_per_second) if lane.state == "running" else ""
        behind = duration(lane.lag_seconds) if lane.lag_records else ""
        numbers = (seen, _lagging(lane.lag_records), behind, count(lane.records), size(lane.bytes), speed)
        grid.add_row(*cells(lane.lane, state(lane.state), *numbers))
    lines = [line for lane in answer.lanes for line in _lane_notes(lane, now)]
    end = (_buffer(answer), _verified(answer, now), _gaps(answer.gaps))
    return Group(head, grid, *lines, *end)


def health(found: Sequence[Health], state: str, now: float) -> Text:
    """``health`` in one line; ``now`` in seconds since the epoch."""
    style = {FINE: "green", PROBLEM_STATE: "red"}.get(state, "yellow")
    if state == FINE:
        lanes, topics = sum(answer.lanes for answer in found), sum(answer.topics for answer in found)
        what = f"{plural(len(found), 'mirror')}, {plural(lanes, 'lane')}, {plural(topics, 'topic')}"
        return Text(f"{state}: {what}{_copied(found, now)}", style)
    return Text(f"{state}: " + "; ".join(f"{answer.mirror}: {problem}" for answer in found for problem in answer.problems), style)


def _copied(found: Sequence[Health], now: float) -> str:
    """Up to when everything is copied, in the mirror that is furthest behind."""
    records = sum(answer.lag_records for answer in found)
    more = f", {plural(records, 'record')} to go" if records else ""
    if any(answer.copied_to is None for answer in found):
        return more
    moment = min(answer.copied_to for answer in found if answer.copied_to is not None)
    age = f" ({duration(now - moment)} ago)" if now - moment >= 60 else ""
    return f", copied up to {clock(moment)}{age}{more}"


def _lane_notes(lane: LaneStatus, now: float) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if lane.state == "running" and lane.pid is not None:
        lines.append(Text(f"{lane.lane}: process {lane.pid} on {lane.host or 'this machine'}{_since(lane, now)}", "dim"))
    if lane.message:
        lines.append(Text(f"{lane.lane}: {lane.message}", STYLES.get(lane.state, "")))
    if lane.buffer is not None:
        lines += _lane_buffer(lane.lane, lane.buffer, now)
    if lane.target_down_since is not None:
        down = f"{clock(lane.target_down_since)} ({duration(max(0.0, now - lane.target_down_since))})"
        lines.append(Text(f"{lane.lane}: target down since {down}; staging continues", "yellow"))
    if lane.copied:
        by_copy = ", ".join(f"{size(read)} from {alias}" for alias, read in sorted(lane.copied.items()))
        lines.append(Text(f"{lane.lane}: read from copies of the source: {by_copy}", "dim"))
    lines += [Text(f"{lane.lane}: {what} is left out: {why}", "yellow") for what, why in sorted(lane.left_out.items())]
    return [*lines, *halts(lane.topics)]


def _lane_buffer(lane: str, use: BufferUse, now: float) -> list[RenderableType]:
    """The disk space of a lane, and what prevents eviction."""
    lines: list[RenderableType] = []
    if use.full_since is not None:
        waits = f"{lane}: buffer full, staging has waited for {duration(max(0.0, now - use.full_since))}: {use.full_reason}"
        lines.append(Text(waits, "red"))
    if use.disk_bytes:
        facts = [
            f"spans {size(use.spans_bytes)} in {plural(use.live_files, 'file')}",
            f"ledger {size(use.ledger_bytes)}",
            f"logs {size(use.log_bytes)} in {plural(use.log_files, 'file')}",
        ]
        if use.unverified_bytes:
            facts.append(f"{size(use.unverified_bytes)} to be verified")
        if use.oldest_staged is not None:
            facts.append(f"oldest {duration(max(0.0, now - use.oldest_staged))} old")
        lines.append(Text(f"{lane}: {', '.join(facts)}", "dim"))
    if use.archive_bytes:
        since = f", since {use.archive_oldest}" if use.archive_oldest else ""
        lines.append(Text(f"{lane}: archive {size(use.archive_bytes)} in {plural(use.archive_spans, 'span')}{since}", "dim"))
    if use.upkeep_error:
        lines.append(Text(f"{lane}: maintenance: {use.upkeep_error}", "yellow"))
    return lines


def _since(lane: LaneStatus, now: float) -> str:
    return f", for {duration(max(0.0, now - lane.started))}" if lane.started is not None else ""


def _buffer(answer: MirrorStatus) -> RenderableType:
    whole = answer.buffer_total_bytes if answer.buffer_total_bytes is not None else answer.buffer_bytes
    share = whole / answer.buffer_max_bytes if answer.buffer_max_bytes else 0.0
    row = Table.grid(padding=(0, 1))
    colour = "red" if share >= 0.9 else "cyan"
    text = f"{size(whole)} of {size(answer.buffer_max_bytes)}"
    if whole > answer.buffer_bytes:
        text += f" ({size(answer.buffer_bytes)} by this mirror)"
    if answer.staged_records:
        text += f", {plural(answer.staged_records, 'record')} ({size(answer.staged_bytes)}) not yet on the target"
    row.add_row(Text("buffer"), ProgressBar(total=1.0, completed=min(1.0, share), width=20, complete_style=colour), Text(text))
    return row


def _verified(answer: MirrorStatus, now: float) -> Text:
    if answer.verified_at is None:
        return Text("nothing has been verified yet: see 'mirror verify'", "dim")
    last = f"last verification {duration(max(0.0, now - answer.verified_at))} ago"
    if not answer.different:
        return Text(f"{last}: no differences", "green")
    return Text(f"{last}; different when last compared: {', '.join(answer.different)}; see 'mirror verify'", "red")


def _gaps(number: int) -> Text:
    return Text(f"{plural(number, 'gap')}: see 'mirror gaps'", "red") if number else Text("no gaps", "green")


def each(parts: Sequence[RenderableType]) -> RenderableType:
    """Several mirrors, separated by empty lines."""
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [part, Text("")] if part is not parts[-1] else [part]
    return Group(*spaced)


def rows(columns: Sequence[tuple[str, str]], found: Iterable[Mapping[str, Any]]) -> RenderableType:
    """``sql``: rows under their columns, each with its name and Spark's type; numbers to the right."""
    grid = table([name for name, _ in columns])
    for column, (_, kind) in zip(grid.columns, columns, strict=True):
        column.justify = "right" if kind in SQL_NUMBERS else "left"
    for row in found:
        grid.add_row(*cells(*(_cell(value) for value in row.values())))
    return grid


def _cell(value: Any) -> str:
    return "" if value is None else count(value) if isinstance(value, int) and not isinstance(value, bool) else str(plain(value))


def plain(value: Any) -> Any:
    """A value of Spark's as JSON has it: bytes by their length, times as text."""
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)

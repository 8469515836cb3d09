"""Answers as text: tables and the lines below them. Every function returns something rich can print."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mirror_pipeline.lags import HALTED
from mirror_pipeline.model import Gap
from mirror_pipeline.reports import BackfillReport, Excluded, Finding, MirrorPlan, PlanPrice, RunReport, TopicPlan
from mirror_pipeline.text import clock, count, duration, instant, plural, rate, size
from mirror_pipeline.units import format_duration

Row = TypeVar("Row")

SHOWN_EXCLUDED = 20
SHOWN_ALIKE = 3
"""Topics of which the same is said are named one by one up to this many."""
WORTH_SAYING = 100_000.0
"""Bytes per second below which a speed would be shown as ``0.0 MB/s``."""
STYLES = {
    "ok": "green", "behind": "yellow", "halted": "red", "failed": "red", "running": "green", "finished": "green", "stale": "yellow",
    "promoted": "cyan", "standby": "cyan", "ended": "cyan",
}  # fmt: skip


def title(text: str) -> Text:
    """The line above a table; rich's own titles wrap at the width of the table."""
    return Text(text, "bold")


def table(left: Sequence[str], right: Sequence[str] = (), last: Sequence[str] = ()) -> Table:
    """An empty table; ``left`` columns hold words, ``right`` ones numbers, ``last`` words again, free to wrap."""
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in left:
        grid.add_column(name, overflow="fold")
    for name in right:
        grid.add_column(name, justify="right", no_wrap=True)
    for name in last:
        grid.add_column(name, overflow="fold")
    return grid


def cells(*values: str | Text) -> tuple[Text, ...]:
    """Plain text cells: a topic or an error message is never taken for markup."""
    return tuple(value if isinstance(value, Text) else Text(value) for value in values)


def state(word: str) -> Text:
    """A state in its colour."""
    return Text(word, style=STYLES.get(word, ""))


def findings(found: Sequence[tuple[str, Finding]]) -> RenderableType:
    """``check``: the findings of each mirror, with hints for those that are wrong; topics of which the same is said share a row."""
    grid = table(["mirror", "check", ""], last=["finding"])
    for (mirror, finding), others in _alike(found, _finding_kind):
        what = f"{finding.what}{_and_more([_topic(row[1]) for row in others])}"
        detail = f"{finding.detail}; the others likewise, --json lists each" if others else finding.detail
        detail = f"{detail}\n{finding.hint}" if finding.hint and not finding.ok else detail
        grid.add_row(*cells(mirror, what, Text("ok", "green") if finding.ok else Text("wrong", "red"), detail))
    wrong = sum(1 for _, finding in found if not finding.ok)
    end = Text(f"{count(wrong)} of {plural(len(found), 'finding')} wrong", "red") if wrong else Text("everything is in order", "green")
    return Group(grid, end)


def _finding_kind(row: tuple[str, Finding]) -> Hashable:
    """Findings on topics that differ in names and numbers only are of one kind; every other finding is its own."""
    mirror, finding = row
    name = _topic(finding)
    return (mirror, finding.ok, re.sub(r"\d[\d,.]*", "#", _unnamed(finding.detail, name)), finding.hint) if name else row


def _topic(finding: Finding) -> str:
    """The topic that a finding is about; "" for others."""
    return finding.what.removeprefix("topic ") if finding.what.startswith("topic ") else ""


def _unnamed(text: str, *names: str) -> str:
    """A text without topic names, and words that end in one, such as a target topic's name."""
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-])(?:[\w.-]*[._-])?{re.escape(name)}(?![\w.-]*\w)", "?", text)
    return text


def _alike(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> list[tuple[Row, list[Row]]]:
    """The first row of each kind, with the others of that kind if there are so many that saying it once is better."""
    kinds: dict[Hashable, list[Row]] = {}
    for row in rows:
        kinds.setdefault(key(row), []).append(row)
    joined = {id(row): same[1:] for same in kinds.values() if len(same) > SHOWN_ALIKE for row in same[:1]}
    left_out = {id(row) for same in joined.values() for row in same}
    return [(row, joined.get(id(row), [])) for row in rows if id(row) not in left_out]


def _and_more(names: Sequence[str]) -> str:
    """``, b, c and 7 more topics``."""
    shown, more = names[: SHOWN_ALIKE - 1], len(names) - SHOWN_ALIKE + 1
    return "".join(f", {name}" for name in shown) + (f" and {plural(more, 'more topic')}" if more > 0 else "")


def plan(answer: MirrorPlan) -> RenderableType:
    """``plan`` of one mirror: topics, actions, excluded topics and why."""
    parts: list[RenderableType] = [title(answer.mirror)]
    if answer.topics:
        sized = any(topic.bytes is not None for topic in answer.topics)
        grid = table(["topic", "target"], ["partitions", "records", *(["size"] if sized else [])])
        for topic in answer.topics:
            amounts = [count(topic.partitions), count(topic.records), *([size(topic.bytes)] if sized else [])]
            grid.add_row(*cells(topic.topic, topic.target_topic, *amounts))
        parts += [grid, *halts(answer.topics), Text(_plan_sum(answer.topics)), *_copies(answer), *_price(answer.price)]
        parts += [Padding(line, (0, 0, 0, 2)) for topic, others in _alike(answer.topics, _todo_kind) for line in _todo(topic, others)]
    else:
        parts.append(Text("the selection matches no topic", "red"))
    return Group(*parts, *(Text(note, "yellow") for note in answer.notes), *_excluded(answer.excluded))


class _Stated(Protocol):
    """The state of a topic: a row of ``plan``, ``lag``, ``run`` or ``status``."""

    @property
    def topic(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def code(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def hint(self) -> str: ...


def halts(topics: Iterable[_Stated]) -> list[Text]:
    """Lines for topics that are not ok: state, code, reason, and what ends it."""
    lines = []
    for topic in topics:
        if topic.state != "ok":
            code = f" ({topic.code})" if topic.code else ""
            lines.append(Text(f"{topic.topic} {topic.state}{code}: {topic.reason or 'no reason given'}", STYLES.get(topic.state, "")))
            if topic.hint:
                lines.append(Text(f"  hint: {topic.hint}"))
    return lines


def _todo_kind(topic: TopicPlan) -> Hashable:
    """Topics of one kind are to be created with the same settings, or have the same trouble; every topic without either is its own."""
    texts = (topic.blockers, topic.warnings, topic.actions)
    said = tuple(tuple(_unnamed(text, topic.topic, topic.target_topic) for text in group) for group in texts)
    return said if any(said) else topic.topic


def _todo(topic: TopicPlan, others: Sequence[TopicPlan]) -> list[Text]:
    """Blockers, warnings and actions of a topic; Kafka's largest number is shown as unlimited."""
    lines = [Text(f"{topic.topic} blocked: {text}", "red") for text in topic.blockers]
    lines += [Text(f"{topic.topic} warning: {text}", "yellow") for text in topic.warnings]
    lines += [Text(text.replace(str(2**63 - 1), "unlimited"), "dim") for text in topic.actions]
    if others:
        lines.append(Text(f"  the same for {_and_more([other.topic for other in others]).removeprefix(', ')}", "dim"))
    return lines


def _copies(answer: MirrorPlan) -> list[Text]:
    wanted = sum(topic.records for topic in answer.topics)
    return [
        Text(f"{copy.cluster} does not answer: {copy.reason}", "yellow") if copy.records is None
        else Text(f"{copy.cluster} holds {copy.records:,} of the {plural(wanted, 'record')}; it is read once samples were compared", "dim")
        for copy in answer.copies
    ]  # fmt: skip


def _price(price: PlanPrice | None) -> list[Text]:
    if price is None or not price.bytes:
        return []
    disk = f"{size(price.target_bytes)} on the target with its replicas, at most {size(price.buffer_bytes)} of buffer"
    if price.seconds is None or price.bytes_per_second is None:
        return [Text(f"about {disk}; how long it takes is known after a first run, `mirror doctor` measures the links", "dim")]
    return [Text(f"about {duration(price.seconds)} at the last run's {rate(price.bytes_per_second)}; {disk}", "dim")]


def _plan_sum(topics: Sequence[TopicPlan]) -> str:
    sizes = [topic.bytes for topic in topics]
    known = [number for number in sizes if number is not None]
    total = f", {size(sum(known))}" if len(known) == len(sizes) else ""
    partitions = sum(topic.partitions for topic in topics)
    blocked = sum(1 for topic in topics if topic.blockers)
    records = sum(topic.records for topic in topics)
    text = f"{plural(len(topics), 'topic')}, {plural(partitions, 'partition')}, {plural(records, 'record')}{total} to copy"
    stopped = sum(1 for topic in topics if topic.state == HALTED)
    return text + (f"; {stopped} halted" if stopped else "") + (f"; {blocked} blocked" if blocked else "")


def _excluded(left_out: Sequence[Excluded]) -> list[RenderableType]:
    if not left_out:
        return []
    grid = table(["topic"], last=["why"])
    for row in left_out[:SHOWN_EXCLUDED]:
        grid.add_row(*cells(row.topic, row.why))
    more = len(left_out) - SHOWN_EXCLUDED
    end = [Text(f"and {plural(more, 'more topic')}; --json lists all", "dim")] if more > 0 else []
    return [title(f"not mirrored ({count(len(left_out))})"), grid, *end]


def run(report: RunReport, *, speed: bool = True, positions: bool = False) -> RenderableType:
    """``run`` of one mirror: a row per topic, the reasons below the table, target positions if requested, a line of totals."""
    grid = table(["topic", "target", "state"], ["records", "size"])
    for topic in report.topics:
        grid.add_row(*cells(topic.topic, topic.target_topic, state(topic.state), count(topic.records), size(topic.bytes)))
    stands = _positions(report) if positions and report.topics else []
    return Group(title(report.mirror), grid, *halts(report.topics), *stands, Text(run_sum(report, speed=speed)))


def _positions(report: RunReport) -> list[RenderableType]:
    """The source offsets up to which the target has everything."""
    grid = table(["topic"], last=["on the target up to source offset, by partition"])
    for topic in report.topics:
        ends = ", ".join(f"{number}: {count(offset)}" for number, offset in sorted(topic.positions.items()))
        grid.add_row(*cells(topic.topic, ends or "not known"))
    return [grid]


def run_sum(report: RunReport, *, speed: bool = True) -> str:
    """The totals in one line, without ``speed`` for a run that waited for records.

    The time Spark took to start is not in ``seconds`` and is shown separately, because it is spent once.
    """
    text = f"{report.mirror}: {plural(report.records, 'record')}, {size(report.bytes)} in {duration(report.seconds)}"
    if speed and report.seconds > 0 and report.bytes / report.seconds >= WORTH_SAYING:
        text += f" ({rate(report.bytes / report.seconds)})"
    if report.session_seconds >= 0.1:
        text += f", after {duration(report.session_seconds)} to start Spark"
    if report.copied:
        text += "; from copies of the source: " + ", ".join(f"{size(count)} from {alias}" for alias, count in sorted(report.copied.items()))
    if report.spark_bytes:
        text += f"; Spark read {size(report.spark_bytes)}, this process {size(report.driver_bytes)}"
    left = _left(report)
    if left or report.records or report.state != "ok":
        return f"{text}; {left}" if left else text
    return f"{report.mirror}: nothing new to copy"


def _left(report: RunReport) -> str:
    """What a run has not copied, and which cluster it waited for."""
    parts = [f"{plural(report.lag_records, 'offset')} not on the target yet"] if report.lag_records else []
    parts += [f"target down: {report.target_down}"] if report.target_down else []
    parts += [f"source down: {report.source_down}"] if report.source_down else []
    return "; ".join(parts)


def backfill(report: BackfillReport) -> RenderableType:
    """``backfill``: the offsets of the time range, then the run."""
    head = f"{report.topic} from {instant(report.from_time)} to {instant(report.to_time)}"
    if report.from_buffer:
        head += f", {plural(sum(end - start for start, end in report.from_buffer.values()), 'offset')} of it from the buffer"
    grid = table(["partition"], ["from offset", "to offset"])
    for partition, (start, end) in sorted(report.ranges.items()):
        grid.add_row(str(partition), count(start), count(end))
    return Group(title(head), grid, run(report.run))


def gaps(found: Sequence[Gap]) -> RenderableType:
    """``gaps``: what is permanently missing on the target, and who decided so."""
    if not found:
        return Text("no gaps: every record up to each position is on its target", "green")
    grid = table(["mirror", "topic", "partition"], ["from offset", "to offset", "offsets"], ["cause", "decided by", "at"])
    for gap in found:
        numbers = (count(gap.start), count(gap.end), count(gap.end - gap.start))
        words = (gap.cause.value.replace("_", " "), gap.decided_by, instant(gap.at))
        grid.add_row(*cells(gap.mirror, gap.topic, str(gap.partition), *numbers, *words))
    return Group(grid, Text(f"{plural(len(found), 'gap')}, {plural(sum(g.end - g.start for g in found), 'source offset')}"))


def evicted(rows: Sequence[tuple[str, list[dict[str, Any]]]], now: float) -> RenderableType:
    """``evict``: what each lane of each mirror freed, and what stays; ``now`` in seconds since the epoch."""
    lines = []
    for mirror, lanes in rows:
        lines += [Text(f"{mirror}, {answer.get('lane', '?')}: {'; '.join(_eviction(answer, now))}") for answer in lanes]
        if not lanes:
            lines.append(Text(f"{mirror}: nothing has been copied yet, so there is nothing to remove"))
    return Group(*lines)


def _eviction(answer: Mapping[str, Any], now: float) -> list[str]:
    said = [f"freed {size(answer['freed_bytes'])}" if answer.get("freed_bytes") else "nothing to free"]
    if answer.get("verified_records"):
        said.append(f"verified {plural(answer['verified_records'], 'record')}")
    if answer.get("kept_bytes"):
        said.append(f"{size(answer['kept_bytes'])} are due and not verified yet")
    if answer.get("unarchived_bytes"):
        said.append(f"{size(answer['unarchived_bytes'])} left without a copy in the archive")
    if answer.get("staying_bytes"):
        until = answer.get("stays_until") or 0.0
        rule = f", the oldest until {clock(until)} (buffer.retention {format_duration(answer['retention'])})" if until > now else ""
        said.append(f"{size(answer['staying_bytes'])} stay{rule}")
    return [*said, answer["note"]] if answer.get("note") else said

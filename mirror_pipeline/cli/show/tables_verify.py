"""Render the answers of ``verify`` and ``repair``, and join several mirrors into one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mirror_pipeline.cli.show.tables import cells, table
from mirror_pipeline.text import count, duration, plural, rate, size

SHOWN_DIFFERENCES = 20
COLOURS = {"identical": "green", "repaired": "green", "different": "red", "unreadable": "yellow"}


def joined(reports: Sequence[Any]) -> dict[str, Any]:
    """``verify --json``: the answers of several mirrors as one."""
    documents = [report.to_json() for report in reports]
    whole: dict[str, Any] = {"ok": bool(documents) and all(document["ok"] for document in documents)}
    for name in ("records", "leaves"):
        whole[name] = sum(document[name] for document in documents)
    whole["differences"] = [difference for document in documents for difference in document["differences"]]
    whole["repaired"] = [difference for document in documents for difference in document["repaired"]]
    whole["more"] = any(document["more"] for document in documents)
    for name in ("bytes", "expired"):
        whole[name] = sum(document[name] for document in documents)
    whole["seconds"] = round(sum(document["seconds"] for document in documents), 3)
    whole["sampled"] = min((document["sampled"] for document in documents), default=1.0)
    whole["topics"] = [topic for document in documents for topic in document["topics"]]
    return whole


def verdict(document: dict[str, Any], *, everything: bool = False) -> RenderableType:
    """A row per topic, a line per difference (all of them with ``everything``), and the totals."""
    grid = table(["topic", "target"], ["partitions", "records", "leaves"], last=["verdict"])
    for topic in document["topics"]:
        grid.add_row(*cells(topic["topic"], topic["target_topic"], *_numbers(topic), _verdict(topic)))
    found = document["differences"]
    lines = [_difference(difference) for difference in (found if everything else found[:SHOWN_DIFFERENCES])]
    if len(found) > len(lines):
        lines.append(Text(f"… and {count(len(found) - len(lines))} more: --all or --json", "red"))
    if document["more"]:
        lines.append(Text("there are more: only the first of each partition are listed", "red"))
    return Group(grid, *lines, _sum(document))


def _numbers(topic: dict[str, Any]) -> list[str]:
    return [count(len(topic["partitions"])), count(topic["records"]), count(topic["leaves"]) if topic["leaves"] else "-"]


def _verdict(topic: dict[str, Any]) -> Text:
    said = [topic["verdict"]]
    if topic["differences"]:
        said.append(plural(topic["differences"], "difference"))
    if topic["repaired"]:
        said.append(f"{plural(topic['repaired'], 'record')} in {topic['target_topic']}.repair")
    if topic["expired"]:
        said.append(f"{plural(topic['expired'], 'record')} deleted by the target's retention")
    if topic["note"]:
        said.append(topic["note"])
    return Text("; ".join(said), COLOURS.get(topic["verdict"], ""))


def _difference(difference: dict[str, Any]) -> Text:
    places = [
        f"{side} offset {difference[key]}"
        for side, key in (("source", "source_offset"), ("target", "target_offset"))
        if difference[key] is not None
    ]
    place = f"{difference['topic']}[{difference['partition']}] {', '.join(places)}"
    detail = f": {difference['detail']}" if difference["detail"] else ""
    return Text(f"{difference['kind']:<9} {place}{detail}")


def _sum(document: dict[str, Any]) -> Text:
    seconds = document["seconds"]
    speed = f", {rate(document['bytes'] / seconds)}" if seconds > 0 and document["bytes"] else ""
    sampled = f" (a sample of {document['sampled']:.1%})" if document["sampled"] < 1 else ""
    facts = f"{plural(document['records'], 'record')}{sampled}, {size(document['bytes'])} in {duration(seconds)}{speed}"
    if not document["topics"]:
        return Text("nothing was compared: the mirror has copied no topic", "yellow")
    if document["ok"]:
        but = f", except for {plural(len(document['repaired']), 'record')} in side topics" if document["repaired"] else ""
        return Text(f"{facts}: identical on both sides{but}", "green")
    return Text(f"{facts}: {plural(len(document['differences']), 'difference')}", "red")


def repaired(document: dict[str, Any], *, everything: bool = False) -> RenderableType:
    """``repair``: a line per record (all of them with ``everything``), where it is, and why there."""
    records = document["records"]
    if not records and document["others"]:
        others = plural(document["others"], "difference")
        return Text(f"no record of {document['topic']} is missing or altered; its {others} of other kinds cannot be repaired", "yellow")
    if not records:
        return Text(f"nothing to repair: every record of {document['topic']} is unaltered on the target", "green")
    lines = []
    for record in records if everything else records[:SHOWN_DIFFERENCES]:
        place = "" if record["target_offset"] is None else f" at offset {record['target_offset']}"
        source = f"{document['topic']}[{record['partition']}] source offset {record['source_offset']}"
        lines.append(Text(f"{record['kind']:<9} {source}: {record['state']}{place}", "red" if record["state"] == "lost" else ""))
    if len(records) > len(lines):
        lines.append(Text(f"… and {count(len(records) - len(lines))} more: --all or --json"))
    states = ("written", "already_there", "would_be_written", "lost")
    facts = ", ".join(f"{count(document[state])} {state.replace('_', ' ')}" for state in states if document[state])
    more = "; there are further differences: repair again" if document["more"] else ""
    end = Text(f"{facts}; side topic {document['side_topic']}{more}", "green" if document["ok"] else "yellow")
    return Group(*lines, end, Text(document["why"], "dim"))

"""What the page shows, from what the watches know: plain rows for the templates."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from mirror_pipeline.config import Config
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.exporter.causes import Cause, causes
from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.exporter.history import History, Point
from mirror_pipeline.exporter.watch import Watch
from mirror_pipeline.halts import ACCEPTABLE, MEANING, PAUSED
from mirror_pipeline.lags import HALTED, TopicLag
from mirror_pipeline.mirror import Mirror
from mirror_pipeline.page.headline import TONES, Headline, headline
from mirror_pipeline.reports import MirrorPlan
from mirror_pipeline.text import plural, rate

TOPICS_A_PAGE = 100
SPARK_WIDTH, SPARK_HEIGHT = 90.0, 18.0
_NODE_WIDTH, _NODE_HEIGHT, _RADIUS, _SIDE = 120.0, 44.0, 150.0, 8.0


@dataclass(frozen=True, slots=True)
class MirrorRow:
    """One mirror: what is said of it first, and what is known."""

    name: str
    source: str
    target: str
    head: Headline
    facts: Facts
    history: History
    paused: bool


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic; ``lags`` and ``rates`` are the points of lines, ``acceptable`` whether its halt can be accepted."""

    lag: TopicLag
    lags: str
    rates: str
    speed: float
    acceptable: bool
    asset: str


@dataclass(frozen=True, slots=True)
class TopicsPage:
    """Some of a mirror's topics, those in trouble first; ``found`` is how many there are in all."""

    rows: tuple[TopicRow, ...]
    found: int
    number: int
    pages: int


def mirror_row(watch: Watch, config: Config) -> MirrorRow:
    """A mirror as it was at the last look."""
    facts, settings = watch.facts, config.mirror(watch.facts.mirror)
    topics = facts.lag.topics if facts.lag is not None else ()
    return MirrorRow(
        facts.mirror, settings.source, settings.target, headline(facts, watch.history), facts, watch.history,
        paused=bool(topics) and all(topic.state == PAUSED for topic in topics),
    )  # fmt: skip


def acceptable(watch: Watch) -> list[tuple[TopicLag, str]]:
    """The topics whose halt can be accepted, each with what that means."""
    lag = watch.facts.lag
    return [(topic, MEANING[topic.code]) for topic in (lag.topics if lag is not None else ()) if _acceptable(topic)]


def other_causes(watch: Watch) -> list[Cause]:
    """What is wrong beside the halts that can be accepted."""
    shown = {f"{topic.topic} {topic.code}" for topic, _ in acceptable(watch)}
    return [cause for cause in causes(watch.facts) if cause.kind != "halted" or cause.subject not in shown]


def _acceptable(topic: TopicLag) -> bool:
    return topic.state == HALTED and topic.code in ACCEPTABLE


def topics(watch: Watch, *, find: str, number: str) -> TopicsPage:
    """A page of the topics whose name holds ``find``."""
    lag = watch.facts.lag
    matching = [topic for topic in (lag.topics if lag is not None else ()) if find.lower() in topic.topic.lower()]
    matching.sort(key=lambda topic: (topic.state != HALTED, -topic.lag_records, topic.topic))
    pages = max(1, math.ceil(len(matching) / TOPICS_A_PAGE))
    at = min(max(1, int(number) if number.isdecimal() and number.isascii() else 1), pages)
    shown = matching[(at - 1) * TOPICS_A_PAGE : at * TOPICS_A_PAGE]
    return TopicsPage(tuple(_topic(watch, topic) for topic in shown), len(matching), at, pages)


def _topic(watch: Watch, topic: TopicLag) -> TopicRow:
    points: Sequence[Point] = tuple(watch.history.topics.get(topic.topic, ()))
    asset = "/".join(quote(part, safe="") for part in (watch.facts.mirror, "target", topic.topic))
    speed = points[-1].bytes_per_second if points else 0.0
    lags, rates = line([point.lag_records for point in points]), line([point.bytes_per_second for point in points])
    return TopicRow(topic, lags, rates, speed, _acceptable(topic), asset)


def line(values: Sequence[float]) -> str:
    """The points of an SVG polyline, from zero to the greatest value; "" for fewer than two."""
    if len(values) < 2:
        return ""
    top, step = max(values) or 1.0, SPARK_WIDTH / (len(values) - 1)
    return " ".join(f"{n * step:.0f},{SPARK_HEIGHT - 1 - value / top * (SPARK_HEIGHT - 2):.1f}" for n, value in enumerate(values))


@dataclass(frozen=True, slots=True)
class Node:
    """A cluster of the picture, by its centre."""

    name: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """The mirrors from one cluster to another, as the worst of them is, with their text at a point beside the arrow."""

    mirrors: str
    tone: str
    x1: float
    y1: float
    x2: float
    y2: float
    text: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Clusters and the flows between them."""

    width: float
    height: float
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]


def picture(rows: Sequence[MirrorRow]) -> Picture:
    """Two clusters stand beside each other, more in a circle."""
    names = list(dict.fromkeys(name for row in rows for name in (row.source, row.target)))
    flat = len(names) <= 2
    width, height = 2 * _RADIUS + _NODE_WIDTH + 160, _NODE_HEIGHT + 60 if flat else 2 * _RADIUS + _NODE_HEIGHT + 20
    turn = 2 * math.pi / max(1, len(names))
    places = {
        name: Node(name, width / 2 - (_RADIUS + 60) * math.cos(turn * n), height / 2 - (0 if flat else _RADIUS * math.sin(turn * n)))
        for n, name in enumerate(names)
    }
    ways: dict[tuple[str, str], list[MirrorRow]] = {}
    for row in rows:
        ways.setdefault((row.source, row.target), []).append(row)
    arrows = tuple(_arrow(found, places[source], places[target]) for (source, target), found in ways.items())
    return Picture(width, height, tuple(places.values()), arrows)


def _arrow(rows: Sequence[MirrorRow], source: Node, target: Node) -> Arrow:
    """From edge to edge; the one that leads back lies on the other side."""
    dx, dy = target.x - source.x, target.y - source.y
    length = math.hypot(dx, dy) or 1.0
    ux, uy = dx / length, dy / length
    edge = min(_NODE_WIDTH / 2 / max(1e-6, abs(ux)), _NODE_HEIGHT / 2 / max(1e-6, abs(uy))) + 4
    ox, oy = -uy * _SIDE, ux * _SIDE
    x, y = (source.x + target.x) / 2 + ox * 2.2, (source.y + target.y) / 2 + oy * 2.2
    begin, end = (source.x + ux * edge + ox, source.y + uy * edge + oy), (target.x - ux * edge + ox, target.y - uy * edge + oy)
    tone = max((row.head.tone for row in rows), key=TONES.index)
    return Arrow(", ".join(row.name for row in rows), tone, *begin, *end, _flow(rows), x, y + 4)


def _flow(rows: Sequence[MirrorRow]) -> str:
    lags = [row.facts.lag for row in rows if row.facts.lag is not None]
    if not lags:
        return "not known yet"
    several = f"{plural(len(rows), 'mirror')} · " if len(rows) > 1 else ""
    speed = sum(row.facts.bytes_per_second for row in rows)
    return f"{several}{sum(lag.lag_records for lag in lags):,} behind" + (f" · {rate(speed)}" if speed else "")


def planned(config: Config, name: str) -> tuple[MirrorPlan | None, str]:
    """What a mirror would do, or why that cannot be said."""
    try:
        return Mirror(config, name).plan(), ""
    except MirrorError as error:
        return None, error.message


def changes(before: str, after: str) -> list[tuple[str, str]]:
    """The lines that a change adds and removes, with ``+`` or ``-``."""
    diff: Iterable[str] = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return [(text[:1], text[1:]) for text in diff if text[:1] in "+- " and not text.startswith(("+++", "---"))]

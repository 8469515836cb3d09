"""``mirror demo``: two clusters, topics with every record-format edge case, a mirror between them, a comparison record by record."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_pipeline.local.demo.live import Live
from mirror_pipeline.local.demo.place import BROKERS, EAST, MIRROR, WEST, DemoFolder, open_place
from mirror_pipeline.local.demo.screen import Screen
from mirror_pipeline.local.demo.ui import DEFAULT_URL, WebPage
from mirror_pipeline.local.shapes.fill import SHAPES, SeededTopic, fill
from mirror_pipeline.local.shapes.ground import CODECS
from mirror_pipeline.verdicts import IDENTICAL, Difference
from mirror_pipeline.verify.compare import TopicComparison, compare_topics

if TYPE_CHECKING:
    from mirror_pipeline import Mirror
    from mirror_pipeline.reports import Progress, RunReport

DEFAULT_KAFKA = "4.4.0"
DEFAULT_SCALE = 20_000
LIVE_SECONDS = 10.0
LIVE_RATE = 500.0
# The live run ends when it was idle this long, at the latest some time after the last record was written.
LIVE_IDLE_SECONDS = 3.0
LIVE_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DemoRow:
    """One topic of the result. ``seconds`` is the time from the start of the first run until the topic was on the target."""

    topic: str
    target_topic: str
    partitions: int
    records: int
    bytes: int
    seconds: float | None
    verdict: str
    description: str
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result of a demo; ``ok`` if every topic is identical on both sides."""

    rows: tuple[DemoRow, ...]
    live_records: int
    seconds_mirroring: float
    directory: str
    config: str
    kept: bool
    clusters: dict[str, str]
    web_page: str

    @property
    def ok(self) -> bool:
        """Whether there are topics and all of them are identical."""
        return bool(self.rows) and all(row.verdict == IDENTICAL for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 when ``ok``, otherwise 1."""
        return 0 if self.ok else 1

    @property
    def records(self) -> int:
        """Records compared."""
        return sum(row.records for row in self.rows)

    @property
    def bytes(self) -> int:
        """Bytes compared, as stored on the source."""
        return sum(row.bytes for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain values for printing as JSON."""
        return {**asdict(self), "ok": self.ok, "records": self.records, "bytes": self.bytes}


def run_demo(
    directory: Path | None = None,
    *,
    keep: bool = False,
    kafka_version: str = DEFAULT_KAFKA,
    ui: bool = False,
    screen: Screen | None = None,
    scale: int = DEFAULT_SCALE,
    live_seconds: float = LIVE_SECONDS,
) -> DemoReport:
    """Run the whole demo and show it.

    Args:
        directory: folder to work in, empty or missing; None creates a temporary one.
        keep: leave clusters and files; otherwise all is stopped and removed, also on Ctrl-C and errors.
        kafka_version: version of the embedded clusters.
        ui: start Dagster's web page too; with ``keep`` it is left running, otherwise the demo ends on Ctrl-C.
        screen: where steps and result are shown.
        scale: records in each of the five plain topics.
        live_seconds: how long new records are written while the mirror runs.

    Returns:
        The result; its ``exit_code`` is 0 when all topics are identical.

    Raises:
        UsageError: the folder is not empty, or the Kafka version is unknown.
        MirrorError: something could not be started, filled or mirrored.
    """
    screen = screen or Screen()
    with open_place(directory, keep=keep) as place, ExitStack() as stack:
        try:
            report = _Demo(place, screen).run(kafka_version, scale, live_seconds)
            screen.result(report)
            page = _open_page(place, screen, stack) if ui else None
        except BaseException:
            if keep:
                screen.say(f"kept: {place.directory}; `mirror clusters stop --dir {place.clusters_directory}` stops the clusters")
            raise
        if page is not None:
            report = replace(report, web_page=page.url)
        screen.advice(_advice(report, place, page))
        if page is not None and not keep:
            page.wait()
        return report


def _open_page(place: DemoFolder, screen: Screen, stack: ExitStack) -> WebPage:
    page = WebPage(place.config, place.directory / "up.log")
    if not place.keep:
        stack.callback(page.end)
    with screen.step("starting Dagster's web page") as step:
        step.done = page.start()
    return page


class _Demo:
    """The steps in order, and the state that they share."""

    def __init__(self, place: DemoFolder, screen: Screen) -> None:
        self.place, self.screen = place, screen
        self.arrived: dict[str, float] = {}

    def run(self, kafka_version: str, scale: int, live_seconds: float) -> DemoReport:
        from mirror_pipeline import Mirror, load_config

        with self.screen.step(f"two embedded Kafka {kafka_version} clusters of {BROKERS} brokers") as step:
            self.place.start(kafka_version, lambda what, have, total: step.show(have, total, what))
            step.done = ", ".join(f"{c.name} {c.bootstrap_servers}" for c in self.place.clusters)
        seeded = self._fill(scale)
        mirror = Mirror(load_config(self.place.config), MIRROR)
        began = time.monotonic()
        self._run_once(mirror, "mirroring the existing records")
        live = self._live(mirror, [t.name for t in seeded if t.live], live_seconds)
        self._run_once(mirror, "catching up")
        mirrored = time.monotonic() - began
        rows = self._compare(mirror, seeded)
        return DemoReport(
            rows=tuple(rows),
            live_records=live,
            seconds_mirroring=mirrored,
            directory=str(self.place.directory),
            config=str(self.place.config),
            kept=self.place.keep,
            clusters={c.name: c.bootstrap_servers for c in self.place.clusters},
            web_page=DEFAULT_URL,
        )

    def _fill(self, scale: int) -> list[SeededTopic]:
        total = len(SHAPES) + len(CODECS) + 1
        seen: list[SeededTopic] = []
        with self.screen.step(f"filling {EAST} with edge-case records") as step:

            def filled(topic: SeededTopic) -> None:
                seen.append(topic)
                step.show(len(seen), total, topic.name)

            seeded = fill(self.place.bootstrap(EAST), scale, progress=filled)
            records, size = sum(t.records_committed for t in seeded), sum(t.bytes for t in seeded)
            step.done = f"{len(seeded)} topics, {records:,} records, {size / 1e6:,.1f} MB"
        return seeded

    def _run_once(self, mirror: Mirror, title: str) -> None:
        with self.screen.step(title) as step:
            step.show(0, 0, "starting Spark")

            def observe(progress: Progress) -> None:
                self._note_arrivals(progress)
                read, copied = max(progress.staged_records, progress.records), progress.records
                step.show(read + copied, 2 * progress.total_records, f"{read:,} records read, {copied:,} copied")

            report = mirror.run(once=True, observer=observe)
            step.done = _facts(report, speed=True) if report.records else "nothing left to copy"
        self._show_halts(report)

    def _note_arrivals(self, progress: Progress) -> None:
        for name, topic in progress.topics.items():
            if topic.end and all(topic.position.get(p, 0) >= end for p, end in topic.end.items()):
                self.arrived.setdefault(name, progress.seconds)

    def _live(self, mirror: Mirror, topics: list[str], seconds: float) -> int:
        title = f"mirroring while {LIVE_RATE:.0f} records a second are written to {len(topics)} topics"
        with self.screen.step(title) as step, Live(self.place.bootstrap(EAST), topics, LIVE_RATE, seconds) as live:

            def observe(progress: Progress) -> None:
                live.count_down()
                step.show(min(live.seconds, seconds), seconds, f"{progress.records:,} records copied, lag {progress.lag_records:,}")

            step.show(0, seconds, "starting")
            report = mirror.run(seconds=seconds + LIVE_GRACE_SECONDS, idle_seconds=LIVE_IDLE_SECONDS, observer=observe)
            written = live.finish()
            step.done = f"{written:,} written; copied {_facts(report)}"
        self._show_halts(report)
        return written

    def _show_halts(self, report: RunReport) -> None:
        for topic in report.topics:
            if topic.state != "ok":
                self.screen.say(f"{topic.topic} {topic.state}: {topic.reason} {topic.hint}".rstrip())

    def _compare(self, mirror: Mirror, seeded: list[SeededTopic]) -> list[DemoRow]:
        targets = {t.topic: t.target_topic for t in mirror.plan().topics}
        pairs = {t.name: targets.get(t.name, f"{EAST}.{t.name}") for t in seeded}
        with self.screen.step(f"comparing {EAST} and {WEST} record by record") as step:

            def show(topic: str, partition: int, records: int, size: int) -> None:
                step.show(list(pairs).index(topic), len(pairs), f"{topic}[{partition}] {records:,} records")

            comparisons = compare_topics(mirror.flow.source, mirror.flow.target, pairs, progress=show)
            step.done = f"{sum(c.records for c in comparisons):,} records"
        return list(self._rows(comparisons, {t.name: t.description for t in seeded}))

    def _rows(self, comparisons: Iterable[TopicComparison], descriptions: dict[str, str]) -> Iterable[DemoRow]:
        for c in comparisons:
            seconds = self.arrived.get(c.topic)
            yield DemoRow(
                c.topic, c.target_topic, c.partitions, c.records, c.bytes, seconds, c.verdict, descriptions[c.topic], c.differences
            )


def _facts(report: RunReport, *, speed: bool = False) -> str:
    batches = f"{report.micro_batches} micro-batch{'' if report.micro_batches == 1 else 'es'}"
    fast = f", {report.bytes / 1e6 / report.seconds:,.1f} MB/s" if speed and report.seconds > 0 else ""
    spark = f", {report.spark_bytes / 1e6:,.1f} MB of it by Spark in {report.spark_jobs} jobs" if report.spark_jobs else ""
    return f"{report.records:,} records, {report.bytes / 1e6:,.1f} MB{fast}, {batches}{spark}"


def _advice(report: DemoReport, place: DemoFolder, page: WebPage | None) -> list[str]:
    if page is not None and not report.kept:
        return [f"Dagster's web page: {page.url}  (Ctrl-C ends the demo)"]
    if not report.kept:
        return [
            "Everything is stopped and removed. To explore Dagster's web page:",
            "  mirror demo --keep, then the command that it prints",
        ]
    addresses = ", ".join(f"{name} {address}" for name, address in report.clusters.items())
    up = f"mirror -c {place.config} up, then open the address it prints" if page is None else f"{page.url}  (kill {page.pid} stops it)"
    return [
        f"Left running:        {addresses}",
        f"Dagster's web page:  {up}",
        f"Use the mirror:      mirror -c {place.config} run --once; also lag, status, plan",
        f"Stop the clusters:   mirror clusters stop --dir {place.clusters_directory}; then remove {place.directory}",
    ]

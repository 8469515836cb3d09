"""A mirror's facts as metrics. Their names never change; docs/metrics.md has each with its meaning."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from mirror_pipeline import __version__
from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.lags import TopicLag
from mirror_pipeline.reports import LATENCY_SECONDS

# Topics of a mirror that get series of their own; of more only the sums are given.
MOST_TOPICS = 5_000
UNKNOWN = float("nan")

Rows = Iterable[tuple[Sequence[str], float | None]]


class MirrorCollector(Collector):
    """Hands out what the watches know; asks nobody.

    Args:
        facts: returns the last look at each mirror.
        partitions: lag also by partition.
    """

    def __init__(self, facts: Callable[[], Sequence[Facts]], *, partitions: bool = False) -> None:
        self._facts = facts
        self._partitions = partitions

    def collect(self) -> Iterator[Metric]:
        """All families; those without a series too, so that a name is known before it has a value."""
        facts = self._facts()
        yield InfoMetricFamily("mirror_build", "Version of the exporter.", {"version": __version__})
        yield from _of_looks(facts)
        yield from _of_lag(facts, partitions=self._partitions)
        yield from _of_lanes(facts)
        yield from _of_ledger(facts)
        yield from _of_groups(facts)


def _gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    """What is not known is not a number."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def _counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Metric:
    for values, number in rows:
        family.add_metric(list(values), UNKNOWN if number is None else number)
    return family


def _topics(facts: Iterable[Facts]) -> list[tuple[Facts, TopicLag]]:
    found = [(each, each.lag.topics) for each in facts if each.lag is not None]
    return [(each, topic) for each, topics in found if len(topics) <= MOST_TOPICS for topic in topics]


def _of_looks(facts: Sequence[Facts]) -> Iterator[Metric]:
    now = time.time()
    yield _gauge(
        "mirror_look_age_seconds", "Age of the figures that come from the clusters.", ["mirror"],
        [([each.mirror], now - each.lag_at if each.lag_at is not None else None) for each in facts],
    )  # fmt: skip
    yield _gauge(
        "mirror_look_failed", "1 while the clusters, or the mirror's files, cannot be read.", ["mirror"],
        [([each.mirror], bool(each.error)) for each in facts],
    )  # fmt: skip


def _of_lag(facts: Sequence[Facts], *, partitions: bool) -> Iterator[Metric]:
    topics, whole = _topics(facts), [(each, each.lag) for each in facts if each.lag is not None]
    yield _gauge(
        "mirror_lag_records", "Source offsets that are not on the target.", ["mirror", "topic"],
        [([each.mirror, topic.topic], topic.lag_records) for each, topic in topics],
    )  # fmt: skip
    yield _gauge(
        "mirror_partition_lag_records", "The same by partition; with --partitions.", ["mirror", "topic", "partition"],
        [([each.mirror, t.topic, str(p.partition)], p.lag) for each, t in topics if partitions for p in t.partitions],
    )  # fmt: skip
    yield _gauge(
        "mirror_lag_seconds", "Age of the oldest record that the target lacks.", ["mirror", "topic"],
        [([each.mirror, topic.topic], topic.lag_seconds) for each, topic in topics],
    )  # fmt: skip
    yield _gauge(
        "mirror_unreplicated_since_timestamp_seconds", "When the oldest record was written that the target lacks; 0 if there is none.",
        ["mirror"], [([each.mirror], _since(lag.lag_seconds, each.lag_at)) for each, lag in whole],
    )  # fmt: skip
    yield _gauge(
        "mirror_failover_loss_records", "Source offsets that would be missing if the source were lost now: neither copied nor staged.",
        ["mirror"], [([each.mirror], lag.unread_records) for each, lag in whole],
    )  # fmt: skip
    yield _gauge(
        "mirror_failover_loss_seconds", "Age of the oldest of them.", ["mirror"],
        [([each.mirror], lag.unread_seconds) for each, lag in whole],
    )  # fmt: skip
    yield _gauge(
        "mirror_expires_seconds", "How soon the source's retention may delete what is not read yet.", ["mirror", "topic"],
        [([each.mirror, topic.topic], topic.expires_seconds) for each, topic in topics if topic.expires_seconds is not None],
    )  # fmt: skip
    states = Counter((each.mirror, topic.state) for each, lag in whole for topic in lag.topics)
    yield _gauge("mirror_topics", "Topics by state.", ["mirror", "state"], sorted(states.items()))
    halts = Counter((each.mirror, topic.code or "none") for each, lag in whole for topic in lag.halted)
    yield _gauge("mirror_halts", "Halted topics by code.", ["mirror", "code"], sorted(halts.items()))


def _since(seconds: float | None, at: float | None) -> float | None:
    return None if seconds is None or at is None else at - seconds if seconds else 0.0


def _of_lanes(facts: Sequence[Facts]) -> Iterator[Metric]:
    files = [(each, file) for each in facts for file in each.files]
    topics = [(each.mirror, name, topic) for each, file in files if len(file.topics) <= MOST_TOPICS for name, topic in file.topics.items()]
    yield _counter(
        "mirror_records", "Records confirmed by the target, since the run began.", ["mirror", "topic"],
        [([mirror, name], topic.records) for mirror, name, topic in topics],
    )  # fmt: skip
    yield _counter(
        "mirror_bytes", "Their bytes, compressed as sent.", ["mirror", "topic"],
        [([mirror, name], topic.bytes) for mirror, name, topic in topics],
    )  # fmt: skip
    copied: Counter[tuple[str, str]] = Counter()
    for each, file in files:
        copied.update({(each.mirror, alias): read for alias, read in file.progress.copied.items()})
    yield _counter(
        "mirror_copied_bytes", "Bytes read from a copy of the source instead of from the source, since the run began.",
        ["mirror", "cluster"], sorted(copied.items()),
    )  # fmt: skip
    latency = HistogramMetricFamily(
        "mirror_replication_latency_seconds", "From a record's time to its confirmation by the target, at most.", labels=["mirror"]
    )
    for each in facts:
        counted = [file.progress for file in each.files if file.progress.latency]
        if counted:
            sums = list(accumulate(map(sum, zip(*(progress.latency for progress in counted), strict=True))))
            bounds = [*map(str, LATENCY_SECONDS), "+Inf"]
            latency.add_metric([each.mirror], list(zip(bounds, sums, strict=True)), sum(p.latency_seconds for p in counted))
    yield latency
    confirmed = {each.mirror: [f.progress.confirmed_at for f in each.files if f.progress.confirmed_at] for each in facts}
    yield _gauge(
        "mirror_last_confirmed_timestamp_seconds", "When the target last confirmed records.", ["mirror"],
        [([mirror], max(times)) for mirror, times in confirmed.items() if times],
    )  # fmt: skip
    lanes = [(each, lane) for each in facts if each.status is not None for lane in each.status.lanes]
    yield _gauge(
        "mirror_run_heartbeat_timestamp_seconds", "When a lane's run last said that it is there.", ["mirror", "lane"],
        [([each.mirror, lane.lane], lane.heartbeat) for each, lane in lanes if lane.heartbeat is not None],
    )  # fmt: skip
    yield _gauge(
        "mirror_lanes_running", "Lanes at work.", ["mirror"],
        [([each.mirror], sum(lane.state == "running" for lane in each.status.lanes)) for each in facts if each.status is not None],
    )  # fmt: skip


def _of_ledger(facts: Sequence[Facts]) -> Iterator[Metric]:
    known = [(each, each.status) for each in facts if each.status is not None]
    yield _counter(
        "mirror_gap_records", "Source offsets that are missing on the target for good.", ["mirror"],
        [([each.mirror], each.gap_records) for each, _ in known],
    )  # fmt: skip
    yield _counter(
        "mirror_quarantined", "Records and batches in quarantine.", ["mirror"], [([each.mirror], each.quarantined) for each, _ in known]
    )
    yield _gauge(
        "mirror_buffer_bytes", "What the mirror's buffer takes on its disk.", ["mirror"],
        [([each.mirror], status.buffer_bytes) for each, status in known],
    )  # fmt: skip
    yield _gauge(
        "mirror_buffer_max_bytes", "What the buffers of all mirrors may take (buffer.max_bytes).", ["mirror"],
        [([each.mirror], status.buffer_max_bytes) for each, status in known],
    )  # fmt: skip
    yield _gauge(
        "mirror_buffer_full", "1 while reading waits because the buffer is full.", ["mirror"],
        [([each.mirror], float(any(lane.buffer and lane.buffer.full_since for lane in status.lanes))) for each, status in known],
    )  # fmt: skip
    yield _gauge(
        "mirror_verified_timestamp_seconds", "When something was last compared with the source.", ["mirror"],
        [([each.mirror], status.verified_at) for each, status in known if status.verified_at is not None],
    )  # fmt: skip
    yield _gauge(
        "mirror_topics_different", "Topics that differed when they were last compared.", ["mirror"],
        [([each.mirror], len(status.different)) for each, status in known],
    )  # fmt: skip
    yield _gauge(
        "mirror_promoted", "Topics that were handed over to applications.", ["mirror"],
        [([each.mirror], len(each.promoted)) for each, _ in known],
    )  # fmt: skip


def _of_groups(facts: Sequence[Facts]) -> Iterator[Metric]:
    rows = [(each.mirror, row) for each in facts if each.groups is not None for row in each.groups.groups]
    behind: Counter[tuple[str, str]] = Counter()
    for mirror, row in rows:
        if row.behind is not None:
            behind[mirror, row.group] += row.behind
    yield _gauge(
        "mirror_group_lag_records", "Target records between a group's offset and what its source offset means.", ["mirror", "group"],
        sorted(behind.items()),
    )  # fmt: skip
    counts = Counter((mirror, state) for mirror, _, state in {(mirror, row.group, row.state) for mirror, row in rows})
    yield _gauge("mirror_groups", "Groups with a partition in this state.", ["mirror", "state"], sorted(counts.items()))

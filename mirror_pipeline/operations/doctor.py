"""``doctor``: what both links and this host can carry, measured, and what to change."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.longlink.connection_count import ConnectionCount
from mirror_pipeline.errors import BrokerError, MirrorError
from mirror_pipeline.flow import Flow
from mirror_pipeline.host import FILES
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_ranges
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.reports import Finding
from mirror_pipeline.text import duration, plural, rate
from mirror_pipeline.topics.lanes import lane_names, select_topics
from mirror_pipeline.units import rounded_size
from mirror_pipeline.verify.log_walk import LogWalk

MEASURE_SECONDS = 3.0
# Connections that read at the same time to see what the line carries.
MOST_LINES = 32
# Of the time of a measurement, for a look at how much one connection has under way.
PROBE_SHARE = 0.5
LEAST_WARM_UP, WARM_UP_TRIPS = 0.3, 15
ANSWER_BYTES = 1 << 20
DEFAULT_BUFFER = 102_400
SLOW_DISK, DISK_BYTES = 100e6, 64 << 20
CLOCK_SECONDS, FEW_FILES = 2.0, 1024


@dataclass(frozen=True, slots=True)
class LinkReport:
    """A cluster as it is reached from here: seconds, bytes, bytes a second; None where it could not be measured.

    ``predicted`` is what one connection can carry by B·D/(B·RTT + D), with ``bandwidth`` as B and ``in_flight`` as D: what was seen to be
    under way in a round trip. That is not the broker's socket buffer, which a broker without TLS exceeds: it sends files by sendfile(2).
    ``measured`` is what one connection then carried. ``connections`` is how many a reading task begins with.
    """

    cluster: str
    side: str
    round_trip: float
    send_buffer: int | None
    receive_buffer: int | None
    in_flight: int | None = None
    bandwidth: float | None = None
    predicted: float | None = None
    measured: float | None = None
    connections: int = 1

    @property
    def expected(self) -> float | None:
        """What all connections carry together."""
        if self.predicted is None or self.bandwidth is None:
            return None
        return min(self.bandwidth, self.predicted * self.connections)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Both links, and findings about them and this host."""

    mirror: str
    links: tuple[LinkReport, ...]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """One element of ``doctor --json``'s ``mirrors``."""
        return asdict(self) | {"links": [asdict(link) | {"expected": link.expected} for link in self.links]}


def one_connection(bandwidth: float, round_trip: float, in_flight: float) -> float:
    """Bytes a second that one connection carries over a line of ``bandwidth``: D bytes in a round trip and the time that they take.

    TP = D / (RTT + D/B) = B·D / (B·RTT + D), for a window of D bytes (RFC 1323, section 1.1, has the case of B without a limit).
    """
    return bandwidth * in_flight / (bandwidth * round_trip + in_flight)


def under_way(bandwidth: float, round_trip: float, rate: float) -> float:
    """The D of :func:`one_connection` that goes with a ``rate``."""
    return rate * round_trip / max(1e-6, 1 - rate / bandwidth)  # a line that one connection fills shows no window


def doctor(flow: Flow, *, seconds: float = MEASURE_SECONDS, bandwidth: float | None = None) -> DoctorReport:
    """See :meth:`Mirror.doctor`."""
    links, findings = list[LinkReport](), list[Finding]()
    for side, cluster in (("source", flow.source), ("target", flow.target)):
        try:
            link = _link(flow, side, cluster, seconds, bandwidth)
        except MirrorError as error:
            findings.append(Finding(f"{side} {cluster.alias}", False, error.message, error.hint or ""))
            continue
        links.append(link)
        findings.append(judged(link))
    store = open_lane(flow.config.buffer, flow.name, lane_names(flow.settings)[0])
    findings += [_disk(store), _clock(store), _files(), _zone()]
    return DoctorReport(flow.name, tuple(links), tuple(findings))


def _link(flow: Flow, side: str, cluster: ClusterSettings, seconds: float, bandwidth: float | None) -> LinkReport:
    with Admin(cluster) as admin, WireClient(cluster, timeout=flow.settings.engine.request_timeout) as client:
        try:
            configs = admin.broker_configs()
        except BrokerError:  # no right to see them
            configs = {}
        buffers = [_number(configs.get(f"socket.{kind}.buffer.bytes")) for kind in ("send", "receive")]
        for node in client.brokers().up:
            client.connection(node)
        trip = client.round_trip
        rates = _read_rates(flow, admin, client, seconds, trip) if side == "source" else None
    count = ConnectionCount().now(trip, flow.settings.engine.connections) or 2
    link = LinkReport(cluster.alias, side, trip, buffers[0], buffers[1], connections=count)
    if rates is None:
        return link
    probe, one, many = rates
    line = bandwidth or max(probe, one, many)
    flight = under_way(line, trip, probe)
    return replace(link, in_flight=int(flight), bandwidth=line, predicted=one_connection(line, trip, flight), measured=one)


def _number(value: Any) -> int | None:
    with suppress(TypeError, ValueError, AttributeError):
        return int(value.value)
    return None


def _read_rates(flow: Flow, admin: Admin, client: WireClient, seconds: float, trip: float) -> tuple[float, float, float] | None:
    """Bytes a second over one connection, briefly and for longer, and over many: of the partition with most records, None without any."""
    selected = select_topics(flow.config, flow.settings, admin.topics()).topics
    metadata = client.metadata(selected)
    parts = [TopicPartition(topic.name, number) for topic in metadata.topics.values() if not topic.error for number in topic.partitions]
    known = log_ranges(client, parts, isolation=0).items()
    ranges = {tp: found for tp, found in known if not isinstance(found, BrokerError) and found[1] > found[0]}
    if not ranges:
        return None
    tp = max(ranges, key=lambda found: ranges[found][1] - ranges[found][0])
    probe, one = (_rate(flow.source, [(tp, *ranges[tp])], wanted, trip) for wanted in (seconds * PROBE_SHARE, seconds))
    lines = max(4, min(MOST_LINES, ConnectionCount().now(trip, None)))
    start, end = ranges[tp]
    step = max(1, (end - start) // lines)
    return probe, one, _rate(flow.source, [(tp, at, end) for at in range(start, end, step)][:lines], seconds, trip)


def _rate(cluster: ClusterSettings, reads: list[tuple[TopicPartition, int, int]], seconds: float, trip: float) -> float:
    """Bytes a second, from answer to answer, once connections have found their pace (TCP's slow start). Each read has one of its own."""
    rates, errors = [0.0] * len(reads), list[MirrorError]()
    settled = time.monotonic() + LEAST_WARM_UP + WARM_UP_TRIPS * trip
    until = settled + seconds

    def read(number: int, tp: TopicPartition, start: int, end: int) -> None:
        try:
            with WireClient(cluster) as client:
                client.metadata([tp.topic])
                first, last, size = 0.0, 0.0, 0
                while last < until:
                    walk = LogWalk(client, tp, start, end, isolation=0, size=ANSWER_BYTES)
                    while last < until and (answer := walk.read()) is not None:
                        last = time.monotonic()
                        if first:
                            size += len(answer.records)
                        elif last >= settled:
                            first = last
                    walk.close()
                rates[number] = size / (last - first) if last > first else 0.0
        except MirrorError as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(number, *what), daemon=True) for number, what in enumerate(reads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(rates)


def judged(link: LinkReport) -> Finding:
    what = f"{link.side} {link.cluster}"
    text = f"round trip {link.round_trip * 1000:.1f} ms, {plural(link.connections, 'connection')} for each reading task to begin with"
    if link.predicted is not None and link.bandwidth is not None and link.in_flight is not None:
        numbers = f"B {rate(link.bandwidth)}, RTT {link.round_trip * 1000:.1f} ms, D {rounded_size(link.in_flight)}"
        text += f"; one connection can carry {rate(link.predicted)} = B*D/(B*RTT + D) with {numbers}"
    if link.measured is not None:
        text += f"; measured {rate(link.measured)}"
    if link.expected is not None:
        text += f"; together about {rate(link.expected)}"
    if link.send_buffer == DEFAULT_BUFFER and link.round_trip > 0.03:
        text += "; socket.send.buffer.bytes=-1 on the brokers, instead of Kafka's default, would let one connection carry more"
    return Finding(what, True, text)


def _disk(store: LaneStore) -> Finding:
    if not store.local:
        return Finding("disk", True, f"{store.uri} is an object store: not measured")
    block, took = os.urandom(1 << 20), []
    try:
        with tempfile.TemporaryFile(dir=Path(store.uri).parent if not Path(store.uri).exists() else store.uri) as file:
            began = time.monotonic()
            for _ in range(DISK_BYTES >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            speed = DISK_BYTES / (time.monotonic() - began)
            for _ in range(20):
                file.write(b"x")
                file.flush()
                at = time.monotonic()
                os.fsync(file.fileno())
                took.append(time.monotonic() - at)
    except OSError as error:
        return Finding("disk", False, f"{store.uri} cannot be written: {error.strerror}", "choose another place with buffer.uri")
    text = f"the buffer's disk writes {rate(speed)}, a flush takes {sorted(took)[10] * 1000:.1f} ms"
    return Finding(
        "disk", speed >= SLOW_DISK, text, "" if speed >= SLOW_DISK else "staging cannot be faster: put buffer.uri on a faster disk"
    )


def _clock(store: LaneStore) -> Finding:
    apart = store.now() - time.time()
    good = abs(apart) <= CLOCK_SECONDS
    text = f"this host's and the buffer's clock are {duration(abs(apart))} apart"
    return Finding("clock", good, text, "" if good else "let NTP set both: ages in `lag` and `status` compare them")


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = hard == resource.RLIM_INFINITY or hard >= FEW_FILES
    hint = f"at least {FILES} are needed; with many brokers and long links more: LimitNOFILE= of the service, or ulimit -n"
    return Finding("open files", good, f"{soft:,} may be open, at most {hard:,}", "" if good else hint)


def _zone() -> Finding:
    return Finding("time zone", True, f"{time.strftime('%Z, UTC%z')}: `bandwidth_hours` and times in tables are in it; the ledger has UTC")

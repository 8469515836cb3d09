"""Latency from a producer on the source to a consumer on the target, each a process of its own.

    python -m benchmarks.latency produce BOOTSTRAP TOPIC PARTITIONS RECORD_BYTES BYTES_A_SECOND SECONDS
    python -m benchmarks.latency consume BOOTSTRAP TOPIC PARTITIONS SECONDS

A record begins with the nanosecond (of this machine's clock, which both read) at which it was handed to the producer.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.measure import Tree
from benchmarks.workloads import Workload

WARM_SECONDS = 10.0  # records flow, and are not counted: connections, compilers, caches
ARRIVE_SECONDS = 30.0  # until the consumer has the first record, which is on the target already
DRAIN_SECONDS = 5.0  # producing continues this long after the measured time, so that the load is constant to its end
TICK_SECONDS = 0.005
STAMP_BYTES = 20


class NothingArrived(Exception):
    """The consumer saw too little to say anything."""


def produce(bootstrap: str, topic: str, partitions: int, record_bytes: int, rate: int, seconds: float) -> None:
    """Send records at a steady rate, spread over ticks of 5 ms and all partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all", "log_level": 0, "enable.idempotence": True})
    filler = b"x" * (record_bytes - STAMP_BYTES)
    begin, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < seconds:
        for number in range(sent, int(elapsed * rate / record_bytes)):
            producer.produce(topic, b"%020d" % time.time_ns() + filler, partition=number % partitions)
            sent += 1
        producer.poll(0)
        time.sleep(TICK_SECONDS)
    producer.flush(30)


def prime(bootstrap: str, topic: str, workload: Workload) -> None:
    """One record in every partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for partition in range(workload.partitions):
        producer.produce(topic, b"%020d" % time.time_ns(), partition=partition)
    producer.flush(ARRIVE_SECONDS)


def consume(bootstrap: str, topic: str, partitions: int, seconds: float) -> None:
    """Read from the beginning; from WARM_SECONDS after the first record on, for ``seconds``, note every record's age."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench-latency", "enable.auto.commit": False, "log_level": 0, "fetch.wait.max.ms": 100}
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    ages: list[int] = []
    first, limit = 0.0, time.monotonic() + ARRIVE_SECONDS
    while time.monotonic() < limit:
        message = consumer.poll(0.2)
        if message is None or message.error() or (value := message.value()) is None:
            continue
        now = time.time_ns()
        if not first:
            first = time.monotonic()
            limit = first + WARM_SECONDS + seconds
        elif time.monotonic() - first > WARM_SECONDS:
            ages.append(now - int(value[:STAMP_BYTES]))
    consumer.close()
    print(json.dumps(ages_summary(ages)))


def ages_summary(ages: Sequence[int]) -> dict[str, float]:
    """Percentiles in milliseconds of ages in nanoseconds; nothing but the count when there are none."""
    ordered = sorted(ages)
    if not ordered:
        return {"records": 0}

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6

    shares = {"p50_ms": 0.50, "p90_ms": 0.90, "p99_ms": 0.99, "p999_ms": 0.999}
    return {"records": len(ordered), **{key: at(share) for key, share in shares.items()}, "max_ms": ordered[-1] / 1e6}


def measure(
    source: str, topic: str, target: str, copy: str, workload: Workload, mirror: subprocess.Popen[bytes] | psutil.Process | None
) -> dict[str, Any]:
    """Run producer and consumer; CPU of the mirror's process tree is counted over the measured seconds, with a little of the warm-up's end.

    Raises:
        NothingArrived: hardly a record came through.
    """
    length = WARM_SECONDS + workload.seconds + DRAIN_SECONDS + ARRIVE_SECONDS
    reader = _start("consume", target, copy, workload.partitions, workload.seconds)
    sender = _start("produce", source, topic, workload.partitions, workload.record_bytes, workload.rate_bytes, length)
    try:
        tree = Tree(mirror.pid) if mirror else None
        figures = _follow(reader, tree, workload)
    finally:
        for process in (sender, reader):
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
    expected = workload.seconds * workload.rate_bytes / workload.record_bytes
    if figures["records"] < expected / 2:
        raise NothingArrived(f"{figures['records']} records arrived in {workload.seconds:.0f} s, {expected:.0f} were sent")
    return figures


def _follow(reader: subprocess.Popen[str], tree: Tree | None, workload: Workload) -> dict[str, Any]:
    marks: list[tuple[float, float]] = []
    while reader.poll() is None:
        if tree is not None:
            with contextlib.suppress(psutil.Error):
                marks.append((time.monotonic(), tree.cpu()))
        time.sleep(0.5)
    assert reader.stdout is not None
    lines = reader.stdout.read().splitlines()
    figures: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {"records": 0}
    inside = [mark for mark in marks if mark[0] >= marks[-1][0] - workload.seconds]
    if len(inside) > 1:
        figures["cpu_share"] = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
    return figures


def _start(*arguments: object) -> subprocess.Popen[str]:
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "benchmarks.latency", *map(str, arguments)]
    return subprocess.Popen(command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def main(arguments: list[str]) -> None:
    """``produce`` or ``consume``."""
    what, bootstrap, topic, *numbers = arguments
    if what == "produce":
        produce(bootstrap, topic, int(numbers[0]), int(numbers[1]), int(numbers[2]), float(numbers[3]))
    else:
        consume(bootstrap, topic, int(numbers[0]), float(numbers[1]))


if __name__ == "__main__":
    main(sys.argv[1:])

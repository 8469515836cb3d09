"""What carrying consumer groups over costs: seconds and CPU-seconds of a round, and the share of a core at the default interval.

    python -m benchmarks.groups                              # 1,000 groups of 10 partitions
    python -m benchmarks.groups --groups 200 --save          # fewer; and put the figures into benchmarks/results/groups.json

Starts two clusters of one broker each, copies a topic, and commits offsets of every group on the source. Three kinds of rounds are
measured in this process: all groups are new, every offset has changed since the last round, and none has. The last kind includes the
one round in sixty that looks at all groups. CPU is that of this process, user and system; commits on the source are not counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import results
from benchmarks.machine import BROKER_CONFIG, SERVER_JIT, facts, versions
from benchmarks.mirror_yaml import write_mirror_yaml
from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.config import GroupSelection
from mirror_pipeline.features.groups.carrying import GROUPS_MAINTAIN_EVERY, open_rounds
from mirror_pipeline.features.groups.group_offsets import GROUPS_LANE
from mirror_pipeline.features.groups.group_round import WHOLE_EVERY, GroupRounds
from mirror_pipeline.kafka.groups.group_client import Commit, GroupClient
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from mirror_pipeline.model import TopicPartition

HEAP = "512m"
TOPIC = "orders"
RECORDS = 1_000  # of each partition
START_SECONDS = 120.0
KEPT = Path(__file__).parent / "results" / "groups.json"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.groups", description=__doc__, formatter_class=plain)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--changing", type=int, default=20, help="rounds in which every offset has changed")
    parser.add_argument("--steady", type=int, default=WHOLE_EVERY, help="rounds in which none has")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    parser.add_argument("--save", action="store_true", help="put the figures into benchmarks/results/groups.json")
    return parser.parse_args(given)


def fill(bootstrap: str, partitions: int) -> None:
    """A topic in which every committed offset has a record."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(RECORDS * partitions):
        producer.produce(TOPIC, f"value-{number}".encode(), None, number % partitions)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(60):
        raise SystemExit("the source topic could not be filled")


def commit(source: GroupClient, options: argparse.Namespace, turn: int) -> None:
    """Every group commits another offset of every partition."""
    places = [TopicPartition(TOPIC, number) for number in range(options.partitions)]
    wanted = {
        f"group-{number}": {place: Commit((turn * 7 + number + place.partition) % RECORDS) for place in places}
        for number in range(options.groups)
    }
    deadline = time.monotonic() + START_SECONDS  # the first commits make the brokers create the topic that holds them
    while wanted:
        answers = source.commit(wanted)
        wanted = {name: wanted[name] for name, answer in answers.items() if not isinstance(answer, dict) or any(answer.values())}
        if wanted and time.monotonic() > deadline:
            raise SystemExit(f"{len(wanted)} groups could not commit: {answers[next(iter(wanted))]}")


def one_round(rounds: GroupRounds, number: int) -> dict[str, float]:
    """One round as a run does it."""
    began, cpu = time.perf_counter(), time.process_time()
    outcome = rounds.run()
    if number % GROUPS_MAINTAIN_EVERY == 0:
        rounds.table.maintain()
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu, "written": outcome.written}


def measure(mirror: Mirror, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Rounds of each kind, in the order in which they were measured."""
    store = open_lane(mirror.flow.config.buffer, mirror.name, GROUPS_LANE)
    with ExitStack() as stack:
        source = GroupClient(stack.enter_context(mirror.flow.source_client()))
        rounds = open_rounds(mirror.flow, stack, store)
        commit(source, options, 0)
        found = {"new": [one_round(rounds, 0)], "changing": [], "steady": []}
        for turn in range(1, options.changing + 1):
            commit(source, options, turn)
            found["changing"].append(one_round(rounds, turn))
        rounds.run()  # sees that the last round's offsets are there
        found["steady"] = [one_round(rounds, turn) for turn in range(options.steady)]
    expected = options.groups * options.partitions
    wrong = [entry for entry in (*found["new"], *found["changing"]) if entry["written"] != expected]
    if wrong or any(entry["written"] for entry in found["steady"]):
        raise SystemExit(f"rounds did not write what they should: {wrong or found['steady']}")
    return found


def summary(found: dict[str, list[dict[str, float]]], interval: float) -> dict[str, dict[str, float]]:
    """Of each kind: median and longest round, mean CPU-seconds, and the share of a core when a round runs every ``interval`` seconds."""
    return {
        kind: {
            "rounds": len(entries),
            "median_seconds": statistics.median(entry["seconds"] for entry in entries),
            "longest_seconds": max(entry["seconds"] for entry in entries),
            "cpu_seconds": statistics.fmean(entry["cpu_seconds"] for entry in entries),
            "core_share": statistics.fmean(entry["cpu_seconds"] for entry in entries) / interval,
        }
        for kind, entries in found.items()
    }


def main() -> None:
    """Start the clusters, measure, stop the clusters."""
    options = arguments()
    folder = Path(tempfile.mkdtemp(prefix="mirror-groups-"))
    clusters = start_clusters(folder, names=["source", "target"], heap=HEAP, jvm_options=(SERVER_JIT,), config=BROKER_CONFIG)
    addresses = (clusters[0].bootstrap_servers, clusters[1].bootstrap_servers)
    try:
        fill(addresses[0], options.partitions)
        (folder / "mirror").mkdir()
        groups = {"include": ["group-.*"]}
        config = load_config(write_mirror_yaml(folder / "mirror", addresses, TOPIC, naming="copy.{topic}", groups=groups))
        mirror = Mirror(config, config.mirrors[0].name)
        mirror.run(once=True)
        document = _document(options, summary(measure(mirror, options), GroupSelection().interval))
    finally:
        stop_clusters(folder)
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(document, indent=1))
    if options.save:
        results.save(KEPT, document)


def _document(options: argparse.Namespace, rounds: dict[str, dict[str, float]]) -> dict[str, Any]:
    began = datetime.now(UTC).isoformat(timespec="seconds")
    sizes = {"groups": options.groups, "partitions": options.partitions, "interval_seconds": GroupSelection().interval}
    return {"started_at": began, "note": options.note, "machine": facts(), "versions": versions(), **sizes, "rounds": rounds}


if __name__ == "__main__":
    main()

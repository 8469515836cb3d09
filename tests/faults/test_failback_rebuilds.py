"""Cycles of failover and `failback --tail rebuild` while a producer never stops, with kill -9 between all steps of the failback."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline.crash_points import FAILOVER_POINTS, REPLACE_POINTS, TAKE_BACK_POINTS
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import ENGINE, INLINE
from tests.faults.child import finished
from tests.faults.clients import Writer, read_log
from tests.faults.report import CampaignReport
from tests.support.mirrors import create_topic, write_config

TOPIC, PARTITIONS = "orders", 3
ASIDE = f"{TOPIC}.unreplicated"
MIRRORS = {"east": "m", "west": "back"}
"""The mirror that copies from a cluster."""
POINTS = {"translated": (*FAILOVER_POINTS, *TAKE_BACK_POINTS), "exact": (*FAILOVER_POINTS, *REPLACE_POINTS)}
COMMAND_SECONDS = 180.0
STILL_WRITTEN, OPEN = "is still written to", "is open already"


class Rebuilds:
    """Two clusters, a mirror and its reverse under one name, an application on each side."""

    def __init__(self, report: CampaignReport, folder: Path, east: LocalCluster, west: LocalCluster, offsets: str) -> None:
        self.report = report
        self.exact = offsets == "exact"
        self.points = [point for point in POINTS[offsets] if point.startswith("failback.")]
        self.chance = random.Random(report.seed)
        self.servers = {"east": east.bootstrap_servers, "west": west.bootstrap_servers}
        self.primary, self.other = "east", "west"
        engine = {**ENGINE, **INLINE, "target_wait": "20s", "source_wait": "20s"}
        both = self.servers["east"], self.servers["west"]
        self.config = write_config(folder, *both, [TOPIC], engine=engine, naming="identity", offsets=offsets)
        body = json.loads(self.config.read_text())
        (first,) = body["mirrors"]
        body["mirrors"].append({**first, "name": "back", "source": "west", "target": "east", "reverse_of": "m"})
        self.config.write_text(json.dumps(body))
        create_topic(east.bootstrap_servers, TOPIC, PARTITIONS)
        self.acked: list[str] = []
        self.asides: set[str] = set()
        self.writers: list[Writer] = []

    def write(self, alias: str, seconds: float = 0.0) -> Writer:
        """Begin to write to a cluster; with ``seconds`` for that long."""
        writer = Writer(self.servers[alias], TOPIC, PARTITIONS, f"{alias}{len(self.writers)}")
        self.writers.append(writer)
        writer.start()
        if seconds:
            time.sleep(seconds)
            self.settle(writer)
        return writer

    def settle(self, writer: Writer) -> None:
        writer.settle()
        self.acked += [value for _, _, value in writer.acked]
        if writer.failed and not self.exact:  # an exact topic refuses records before it is made anew
            self.report.account.unexplain(f"{writer.failed} records of {writer.label} were refused")

    def command(self, *words: str, point: str = "", codes: tuple[int, ...] = (0,)) -> tuple[int, str]:
        """A command that ends with one of these exit codes, and what it said."""
        code, _, said = finished(self.config, *words, seconds=COMMAND_SECONDS, point=point)
        if code not in codes:
            raise AssertionError(f"{words} {point}: {code} {said[-600:]}")
        return code, said

    def cycle(self) -> None:
        """The application of one side does not learn of the failover; its topic is emptied under it, again and again."""
        first, second = self.chance.choice(self.points), self.chance.choice(self.points)
        name, back = MIRRORS[self.primary], MIRRORS[self.other]
        stays = self.write(self.primary)
        time.sleep(self.chance.uniform(0.2, 2))
        self.command("run", "--once", "--mirror", name, codes=(0, 1))
        time.sleep(self.chance.uniform(0, 1))
        self.command("failover", name, "--unplanned")
        moved = self.write(self.other)
        words = ("failback", name, "--tail", "rebuild")
        self.command(*words, point=first, codes=(-signal.SIGKILL, 1))  # 1: its log does not come to rest before that step
        self.refused(*words)
        self.settle(stays)
        code, _ = self.command(*words, point=second, codes=(-signal.SIGKILL, 0))
        if code and second != "failback.opened":  # nothing is open yet
            self.write(self.primary, self.chance.uniform(0.1, 0.5))
        code, said = self.command(*words, codes=(0, 2))
        if code and OPEN not in said:
            raise AssertionError(f"{words} after a kill at {second}: {said[-600:]}")
        self.report.fault("rebuild", f"from {self.primary}, killed at {first} and {second}")
        self.settle(moved)
        self.command("run", "--once", "--mirror", back)
        self.account()
        self.primary, self.other = self.other, self.primary

    def refused(self, *words: str) -> None:
        """While the producer writes, the command names it and opens nothing."""
        _, said = self.command(*words, codes=(1,))
        if STILL_WRITTEN not in said:
            raise AssertionError(f"{words}: {said[-600:]}")

    def account(self) -> None:
        """Every acknowledged record is in the topic or aside, once; both topics are equal."""
        account = self.report.account
        logs = {alias: read_log(servers, TOPIC, PARTITIONS) for alias, servers in self.servers.items()}
        if self.exact and logs["east"] != logs["west"]:
            account.unexplain("the topics have other offsets")
        values = {alias: [[value for _, value in log[number]] for number in range(PARTITIONS)] for alias, log in logs.items()}
        if values["east"] != values["west"]:
            account.unexplain(f"the topics differ: {[list(map(len, parts)) for parts in values.values()]}")
        found = Counter(value for part in values[self.other] for value in part)
        self.asides.add(self.servers[self.other])
        for servers in self.asides:
            found.update(value for part in read_log(servers, ASIDE, PARTITIONS).values() for _, value in part)
        account.records = len(self.acked)
        lost = [value for value in self.acked if value not in found]
        doubled = [value for value, count in found.items() if count > 1]
        account.lost, account.doubled = account.lost + len(lost), account.doubled + len(doubled)
        if lost or doubled:
            account.tell(f"lost {lost[:5]}, doubled {doubled[:5]}")


@pytest.mark.parametrize(("name", "offsets"), [("rebuilds", "translated"), ("exact_rebuilds", "exact")])
def test_failback_rebuilds(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, name: str, offsets: str
) -> None:
    """One broker each: the brokers are not what fails here."""
    east, west = cluster_factory(2, brokers=1)
    rebuilds = Rebuilds(plan(name), tmp_path, east, west, offsets)
    report = rebuilds.report
    try:
        while len(report.faults) < report.wanted:
            rebuilds.cycle()
    except Exception as problem:  # noqa: BLE001 - part of the result, which is asserted below
        report.account.unexplain(f"{type(problem).__name__}: {problem}")
    finally:
        for writer in rebuilds.writers:
            writer.halt()
    report.close()
    assert report.verdict == "ok", "\n".join([report.verdict, *report.account.details])

"""Cycles of failover and failback, planned, unplanned and with a source that hangs, with writes all the time and kill -9 between steps."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mirror_pipeline.crash_points import FAILOVER_POINTS
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import ENGINE, INLINE
from tests.faults.child import MirrorChild, finished, wait_for
from tests.faults.clients import Log, Writer, log_end, read_as_group, read_log
from tests.faults.report import CampaignReport
from tests.support.mirrors import create_topic, write_config

TOPIC, PARTITIONS, GROUP = "orders", 3, "app"
MIRRORS = {"east": "m", "west": "back"}
"""The mirror that copies from a cluster."""
MODES = ("planned", "unplanned", "hangs")
COMMAND_SECONDS = 180.0
LONGEST_STAY = 3.0
FAILED_OVER, OPEN = "has failed over already", "is open already"


class Cycles:
    """Two clusters, a mirror and its reverse, and the applications, which live where the topic was handed over last."""

    def __init__(self, report: CampaignReport, folder: Path, east: LocalCluster, west: LocalCluster) -> None:
        self.report, self.folder = report, folder
        self.chance = random.Random(report.seed)
        self.clusters = {"east": east, "west": west}
        self.primary, self.other = "east", "west"
        self.config = self._configure()
        self.writer = self._writer()
        self.child: MirrorChild | None = None
        self.acked: dict[str, list[tuple[int, int, str]]] = {"east": [], "west": []}
        self.processed: set[str] = set()
        self.reread = 0

    def servers(self, alias: str) -> str:
        return self.clusters[alias].bootstrap_servers

    def _configure(self) -> Path:
        engine = {**ENGINE, **INLINE, "target_wait": "20s", "source_wait": "20s"}
        groups = {"include": [GROUP], "interval": "1s"}
        path = write_config(self.folder, self.servers("east"), self.servers("west"), [TOPIC], engine=engine, groups=groups)
        body = json.loads(path.read_text())
        (first,) = body["mirrors"]
        body["mirrors"].append({**first, "name": "back", "source": "west", "target": "east", "reverse_of": "m"})
        path.write_text(json.dumps(body))
        return path

    def _writer(self) -> Writer:
        return Writer(self.servers(self.primary), TOPIC, PARTITIONS, f"{self.primary}{len(self.report.faults)}")

    def begin(self) -> None:
        """Topics, applications and the first run."""
        self.report.say(f"seed {self.report.seed}, {self.report.wanted} cycles wanted, folder {self.folder}")
        for alias in self.clusters:
            create_topic(self.servers(alias), TOPIC, PARTITIONS)
        self.writer.start()
        self.start_run()

    def start_run(self) -> None:
        """A continuous run of the open direction, until records arrive."""
        self.child = MirrorChild(self.config, "run", "--mirror", MIRRORS[self.primary], "--for", "60m", "--json")
        self.report.runs += 1
        before, child = log_end(self.servers(self.other), f"{self.primary}.{TOPIC}", PARTITIONS), self.child

        def arrived() -> bool:
            if not child.alive:
                raise AssertionError(f"the run of {MIRRORS[self.primary]} ended: {child.code} {child.last_words()}")
            return log_end(self.servers(self.other), f"{self.primary}.{TOPIC}", PARTITIONS) > before

        wait_for(f"records of {self.primary} to arrive on {self.other}", arrived, COMMAND_SECONDS, poll=0.5)

    def command(self, *words: str, point: str = "") -> tuple[int, dict[str, Any], str]:
        return finished(self.config, *words, seconds=COMMAND_SECONDS, point=point)

    def until_done(self, point: str, over: str, *words: str) -> None:
        """Run a command that is killed at a point, then again until it says that it is done."""
        code, _, said = self.command(*words, point=point)
        if code != -signal.SIGKILL:
            raise AssertionError(f"{words} was not killed at {point}: {code} {said[-600:]}")
        code, _, said = self.command(*words)
        if code and over not in said:
            raise AssertionError(f"{words} after a kill at {point}: {code} {said[-600:]}")

    def cycle(self) -> None:
        """Applications read and write on one side, move to the other, and the mirror turns round."""
        mode = self.chance.choice(MODES)
        over = self.chance.choice([point for point in FAILOVER_POINTS if point.startswith("failover.")])
        back = self.chance.choice([point for point in FAILOVER_POINTS if point.startswith("failback.")])
        time.sleep(self.chance.uniform(0.2, LONGEST_STAY))
        topics = [TOPIC, *([f"{self.other}.{TOPIC}"] if self.acked[self.other] else [])]
        self.note_read(read_as_group(self.servers(self.primary), GROUP, topics, PARTITIONS, share=0.5, chance=self.chance))
        self.fail_over(mode, over)
        self.report.fault(mode, f"from {self.primary}, killed at {over} and {back}")
        left, moved = self.writer, Writer(self.servers(self.other), TOPIC, PARTITIONS, f"{self.other}{len(self.report.faults)}")
        moved.start()
        self.clusters[self.primary].resume()
        left.settle()
        self.acked[self.primary] += left.acked
        if left.failed:
            self.report.account.unexplain(f"{left.failed} records were refused by {self.primary}")
        never_over = self.account_for(mode)
        self.read_on(mode)
        self.fail_back(back, never_over)
        self.primary, self.other, self.writer = self.other, self.primary, moved
        self.start_run()

    def fail_over(self, mode: str, point: str) -> None:
        """Promote; the writer goes on until then, but for a planned failover, which needs its end."""
        assert self.child is not None
        if mode == "planned":
            self.child.end()
            threading.Timer(self.chance.uniform(0, 2), self.writer.halt).start()
        else:
            self.child.kill_tree()
        self.child.close()
        if mode == "hangs":
            self.clusters[self.primary].pause()
        flag = {"planned": ("--wait", "30s"), "unplanned": ("--unplanned",), "hangs": ()}[mode]
        self.until_done(point, FAILED_OVER, "failover", MIRRORS[self.primary], *flag)
        self.writer.halt()

    def handed(self) -> dict[str, Any]:
        """The newest hand-over file."""
        folder = self.folder / "buffer" / MIRRORS[self.primary] / "failover"
        newest = max(folder.glob("handover-*.json"), key=lambda path: int(path.stem.rsplit("-", 1)[1]))
        body: dict[str, Any] = json.loads(newest.read_text())
        return body

    def account_for(self, mode: str) -> list[tuple[int, int, str]]:
        """Compare the copy with the log it came from, up to the promotion; acknowledged records that are not in it."""
        body, account = self.handed(), self.report.account
        (topic,) = body["topics"]
        ends = {part["partition"]: part["source_offset"] for part in topic["partitions"]}
        log = read_log(self.servers(self.primary), TOPIC, PARTITIONS)
        copy = read_log(self.servers(self.other), topic["target_topic"], PARTITIONS)
        self.compare(log, copy, ends)
        there = {value for rows in copy.values() for _, value in rows}
        missing = [row for row in self.acked[self.primary] if row[2] not in there]
        listed = {gap["partition"]: gap["start"] for gap in body["missing"]}
        if missing and mode == "planned":
            account.lost += len(missing)
            account.tell(f"planned, and {len(missing)} acknowledged records did not come over: {missing[:3]}")
        unlisted = [row for row in missing if row[1] < listed.get(row[0], 1 << 62)]
        account.lost += len(unlisted)
        if unlisted:
            account.tell(f"{mode}: {len(unlisted)} acknowledged records are neither on {self.other} nor named as missing: {unlisted[:3]}")
        return missing

    def compare(self, log: Log, copy: Log, ends: Mapping[int, int]) -> None:
        """Count what is lost, duplicated, out of order or strange in the copy of everything before ``ends``."""
        account = self.report.account
        for number in range(PARTITIONS):
            wanted = [value for offset, value in log[number] if offset < ends[number]]
            found = [value for _, value in copy[number]]
            account.records += len(wanted)
            if wanted == found:
                continue
            lost, strange = set(wanted) - set(found), set(found) - set(wanted)
            doubled = sum(count - 1 for count in Counter(found).values())
            account.lost, account.doubled = account.lost + len(lost), account.doubled + doubled
            account.disordered += not (lost or doubled or strange)
            account.unexplained += len(strange)
            where = f"{self.primary}[{number}] to offset {ends[number]}"
            account.tell(f"{where}: lost {sorted(lost)[:3]}, doubled {doubled}, strange {sorted(strange)[:3]}")

    def read_on(self, mode: str) -> None:
        """The group continues on the other side: nothing is skipped; after a planned failover nothing is read again."""
        copy = f"{self.primary}.{TOPIC}"
        rows = read_as_group(self.servers(self.other), GROUP, [copy], PARTITIONS, chance=self.chance)
        again = [value for part in rows[copy].values() for _, value in part if value in self.processed]
        self.reread += len(again)
        if again and mode == "planned":
            self.report.account.doubled += len(again)
            self.report.account.tell(f"planned, and the group read {len(again)} records again: {again[:3]}")
        self.note_read(rows)
        log = read_log(self.servers(self.other), copy, PARTITIONS)
        skipped = [value for part in log.values() for _, value in part if value not in self.processed]
        if skipped:
            self.report.account.lost += len(skipped)
            self.report.account.tell(f"{mode}: the group skipped {len(skipped)} records: {skipped[:3]}")

    def note_read(self, rows: Mapping[str, Log]) -> None:
        """What the group has processed."""
        self.processed |= {value for log in rows.values() for part in log.values() for _, value in part}

    def fail_back(self, point: str, never_over: list[tuple[int, int, str]]) -> None:
        """Every record that never came over is listed by its offset; then the other direction is opened."""
        name = MIRRORS[self.primary]
        code, body, said = self.command("failback", name, "--dry-run")
        if code:
            raise AssertionError(f"failback --dry-run: {code} {said[-600:]}")
        ranges = {tail["partition"]: (tail["start"], tail["end"]) for tail in body["tail"]}
        unlisted = [row for row in never_over if not ranges.get(row[0], (0, 0))[0] <= row[1] < ranges.get(row[0], (0, 0))[1]]
        self.report.account.lost += len(unlisted)
        if unlisted:
            self.report.account.tell(f"{len(unlisted)} records never came over and are not listed: {unlisted[:3]}")
        tail = ("--tail", self.chance.choice(("leave", "copy-aside"))) if ranges else ()
        self.until_done(point, OPEN, "failback", name, *tail)

    def finish(self) -> None:
        """Stop writing; a last run brings the open direction to its end, and every record is compared."""
        self.writer.settle()
        self.acked[self.primary] += self.writer.acked
        if self.child is not None:
            self.child.end()
            self.child.close()
        code, _, said = self.command("run", "--once", "--mirror", MIRRORS[self.primary])
        if code:
            raise AssertionError(f"the last run: {code} {said[-600:]}")
        log = read_log(self.servers(self.primary), TOPIC, PARTITIONS)
        copy = read_log(self.servers(self.other), f"{self.primary}.{TOPIC}", PARTITIONS)
        self.compare(log, copy, {number: rows[-1][0] + 1 if rows else 0 for number, rows in log.items()})
        there = {value for rows in copy.values() for _, value in rows}
        late = [row for row in self.acked[self.primary] if row[2] not in there]
        self.report.account.lost += len(late)
        acknowledged = sum(map(len, self.acked.values()))
        self.report.note(f"{acknowledged:,} records acknowledged; {self.reread:,} read again by the group after unplanned failovers")


def test_failover_cycles(plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    """One broker each: the brokers are not what fails here."""
    east, west = cluster_factory(2, brokers=1)
    cycles = Cycles(plan("cycles"), tmp_path, east, west)
    report = cycles.report
    try:
        cycles.begin()
        while len(report.faults) < report.wanted:
            cycles.cycle()
        cycles.finish()
    except Exception as problem:  # noqa: BLE001 - part of the result, which is asserted below
        report.account.unexplain(f"{type(problem).__name__}: {problem}")
    finally:
        cycles.writer.halt()
        if cycles.child is not None:
            cycles.child.close()
    report.close()
    assert report.verdict == "ok", "\n".join([report.verdict, *report.account.details])

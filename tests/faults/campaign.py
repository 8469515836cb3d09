"""A campaign: two clusters, live load, one mirror that is restarted whenever it ends, faults one after the other, the account."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.model import TopicPartition
from tests.faults.account import account_contents, account_ledger, account_offsets, acked_are_there, compare_values, read_values
from tests.faults.child import MirrorChild, Stuck, send_signal, wait_for
from tests.faults.load import DEFAULT_STREAMS, Load, Stream
from tests.faults.report import CampaignReport
from tests.support.mirrors import write_config

END_SECONDS = 60.0
MOVE_SECONDS = 150.0
"""How long nothing may arrive on the target after a fault is over: a start of Spark on a busy machine, a broker's start."""
LEASE_SECONDS = 5.0
RUN_FOR = "60m"
ENGINE = {
    "spark_master": "local[4]", "tasks": 2, "micro_batch_bytes": "1MB", "max_batch_age": "1s", "poll_interval": "50ms",
    "inline_bytes": 0, "request_timeout": "3s", "lease": "5s", "target_wait": "10m", "source_wait": "10m",
}  # fmt: skip


def reading(seed: int) -> dict[str, int]:
    """Odd seeds read over many connections, as a long link asks for."""
    return {"connections": 4} if seed % 2 else {}


SPARK_VARIABLE = "MIRROR_FAULT_SPARK"
"""``on`` or ``off``: whether campaigns run with Spark, whatever their seed says; set by ``--fault-spark``."""
INLINE: dict[str, Any] = {"inline_bytes": "4MB"}


def without_spark(seed: int) -> dict[str, Any]:
    """Every other pair of seeds leaves Spark out, as a lane of little traffic does; for campaigns that need no worker to hurt."""
    wish = os.environ.get(SPARK_VARIABLE, "")
    return INLINE if wish == "off" or (wish != "on" and seed // 2 % 2) else {}


def with_spark() -> dict[str, Any]:
    """Spark unless ``--fault-spark off`` says otherwise: for campaigns that are mostly about its processes."""
    return INLINE if os.environ.get(SPARK_VARIABLE, "") == "off" else {}


class Campaign:
    """Everything one campaign works with.

    Args:
        report: where faults and results go.
        folder: an empty folder for configuration, buffer and logs.
        source: bootstrap servers of the source, reached directly.
        target: bootstrap servers of the target, reached directly.
        via: addresses the mirror itself uses, when they are others (a proxy).
        clusters: the same as the block of its configuration, when it logs in, too.
        streams: the load.
        engine: overrides of the engine's settings; ``mirror`` and ``buffer`` of their own blocks.
    """

    def __init__(
        self,
        report: CampaignReport,
        folder: Path,
        source: str,
        target: str,
        *,
        via: tuple[str, str] | None = None,
        clusters: Mapping[str, Any] | None = None,
        streams: tuple[Stream, ...] = DEFAULT_STREAMS,
        engine: Mapping[str, Any] | None = None,
        mirror: Mapping[str, Any] | None = None,
        buffer: Mapping[str, Any] | None = None,
    ) -> None:
        self.report = report
        self.chance = random.Random(report.seed)
        self.folder = folder
        self.source, self.target = source, target
        self.load = Load(source, streams, seed=report.seed)
        ours, theirs = via or (source, target)
        blocks = {"engine": {**ENGINE, **reading(report.seed), **(engine or {})}, "buffer": dict(buffer or {}), **(mirror or {})}
        self.config = write_config(folder, ours, theirs, ["load-.*"], **blocks, **({"clusters": clusters} if clusters else {}))
        blocks["buffer"] = {"uri": self.buffer_uri, **(buffer or {})}
        direct = write_config(folder / "direct", source, target, ["load-.*"], **blocks)
        self.mirror = Mirror(load_config(direct), "m")
        self.child: MirrorChild | None = None
        self.inline = bool(blocks["engine"]["inline_bytes"])
        self.extra: dict[str, str] = {}
        self.late: list[str] = []
        self._blamed = True
        self._client: WireClient | None = None

    @property
    def buffer_uri(self) -> str:
        """The buffer's folder."""
        return str(self.folder / "buffer")

    @property
    def ports(self) -> set[int]:
        """Ports of the target as the mirror's configuration names them."""
        body = json.loads(self.config.read_text())
        return {int(address.rsplit(":", 1)[1]) for address in body["clusters"]["west"]["bootstrap_servers"].split(",")}

    def begin(self) -> None:
        """Create topics, start load and mirror, wait until records arrive."""
        self.report.say(f"seed {self.report.seed}, {self.report.wanted} faults wanted, folder {self.folder}")
        self.load.create_topics()
        self.load.start()
        self.start()
        self.moving()

    def start(self, **extra: str) -> MirrorChild:
        """A new run of the mirror; ``extra`` is environment."""
        if self.child is not None:
            self.child.close()
        self.child = MirrorChild(self.config, "run", "--for", RUN_FOR, "--json", extra={**self.extra, **extra})
        self.report.runs += 1
        self._blamed = False
        return self.child

    def running(self) -> MirrorChild:
        """The mirror; started again if it has ended."""
        if self.child is None or not self.child.alive:
            self.ended()
            return self.start()
        return self.child

    def blame(self) -> None:
        """The next end of the run is caused by this campaign."""
        self._blamed = True

    def unblame(self) -> None:
        """The run should continue after all."""
        self._blamed = False

    def ended(self) -> None:
        """Record why a run ended that was not harmed."""
        if self.child is not None and not self._blamed:
            after = self.report.faults[-1].kind if self.report.faults else "nothing"
            self.report.ends.append(f"after {after}: exit code {self.child.code}: {self.child.last_words()}")
            self.report.say(f"run ended, {self.report.ends[-1]}")
            self._blamed = True

    def delivered(self) -> int:
        """Sum of the target's end offsets, or -1 while it cannot be asked."""
        try:
            if self._client is None:
                self._client = WireClient(self.mirror.flow.target, timeout=5.0)
            names = ["east." + stream.topic for stream in self.load.streams]
            known = self._client.metadata(names).topics
            parts = [TopicPartition(n, p) for n in names if n in known and not known[n].error for p in known[n].partitions]
            answers = self._client.list_offsets(dict.fromkeys(parts, -1), isolation=0) if parts else {}
            if any(answer.error for answer in answers.values()):
                return -1
            return sum(answer.offset for answer in answers.values())
        except MirrorError:
            self._forget()
            return -1

    def _forget(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def moving(self, seconds: float = MOVE_SECONDS) -> None:
        """Wait until new records arrive on the target, with a run that is started again if it has ended.

        Raises:
            Stuck: nothing arrives; the report gets the driver's stacks.
        """
        before = -1

        def arrived() -> bool:
            nonlocal before
            self.running()
            now = self.delivered()
            if before < 0:
                before = now
            return now > before >= 0

        try:
            wait_for("records to arrive on the target", arrived, seconds, poll=0.15)
        except Stuck:
            if self.child is not None:
                self.report.note(f"stuck; the driver's stacks:\n{self.child.dump()}")
            raise

    def pause(self, longest: float = 0.6) -> None:
        """A random moment's wait before a fault."""
        time.sleep(self.chance.uniform(0, longest))

    def drive(self, step: Callable[[], None]) -> None:
        """Begin, take steps until enough faults are counted, finish; fail unless every record is accounted for."""
        try:
            self.begin()
            while len(self.report.faults) < self.report.wanted:
                step()
        except Exception as problem:  # noqa: BLE001 - part of the result, and the account is wanted all the same
            self.report.account.unexplain(f"{type(problem).__name__}: {problem}")
        report = self.finish()
        assert report.verdict == "ok", "\n".join([report.verdict, *report.account.details])

    def finish(self) -> CampaignReport:
        """End the load, let lag reach 0 with a last run, account for every record."""
        account = self.report.account
        try:
            self.load.stop()
            self._end_run()
            self._last_run()
            self._no_halts()
            self._account()
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is the campaign's result
            account.unexplain(f"{type(problem).__name__}: {problem}")
        self.close()
        self.report.close()
        return self.report

    def close(self) -> None:
        """End what this campaign started, except the clusters."""
        self._forget()
        if self.child is not None:
            self.child.close()

    def _end_run(self) -> None:
        if self.child is None or not self.child.alive:
            return
        for pid in self.child.stopped():
            send_signal(pid, signal.SIGCONT)
        try:
            self.child.end()
        except Stuck:
            self.report.account.unexplain(f"the run did not end within 120 s of SIGTERM:\n{self.child.dump()}")
        self.child.kill_tree()

    def _last_run(self) -> None:
        last = MirrorChild(self.config, "run", "--once", "--json")
        try:
            there = -1
            while last.alive and (more := self.delivered()) > there:  # however long it takes, as long as records arrive
                there = more
                with contextlib.suppress(Stuck):
                    last.wait(MOVE_SECONDS)
            code = last.wait(END_SECONDS)
            if code != 0:
                self.report.account.unexplain(f"the last run ended with {code}: {last.last_words()} {last.out.read_text()[-1500:]}")
        except Stuck as problem:
            self.report.account.unexplain(f"{problem}: {last.last_words()}")
            self.report.note(f"the last run hangs:\n{last.dump()}")
        finally:
            last.close()

    def _no_halts(self) -> None:
        """No topic may have halted in any of the runs, however they ended."""
        for path in sorted(self.config.parent.glob("err-*.txt")):
            for line in path.read_text(errors="replace").splitlines():
                if " halted: " in line:
                    self.report.account.unexplain(f"{path.name}: {line.strip()}")

    def _account(self) -> None:
        account = self.report.account
        pairs = {topic: "east." + topic for topic in [*(stream.topic for stream in self.load.streams), *self.late]}
        for topic, copy in pairs.items():
            source = read_values(self.source, topic, committed=True)
            target = read_values(self.target, copy, committed=False)
            compare_values(source, target, account, topic=topic)
            missing = acked_are_there(target, self.load.acked, self.load.failed, topic)
            if missing:
                account.lost += missing
                account.tell(f"{topic}: {missing} acknowledged values are not on the target")
        account_contents(self.mirror, pairs, account)
        account_ledger(self.mirror, account)
        if self.mirror.flow.settings.exact:
            account_offsets(self.mirror, pairs, account)

"""The acceptance run: 12 partitions between two clusters of three brokers, live writes, a source broker that hangs for 30 s every two
minutes, leaders that move, both clusters restarted one broker at a time. By hand: ``make faults FAULTS="-k acceptance
--fault-counts acceptance=30"``, with ``--fault-spark on`` or ``off``.

No halt, no end of the run, every record once and in order; and no record of a partition whose brokers are well waits longer than five
seconds because of others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign, with_spark
from tests.faults.child import wait_for
from tests.faults.load import Stream
from tests.faults.report import CampaignReport
from tests.faults.sides import QUICK, STEADY, Side
from tests.faults.waits import Arrivals, LeaderWatch, Trouble, Wait, healthy, waits_of

STREAMS = (Stream("load-kept", 6, replicas=3), Stream("load-single", 6, replicas=1, codec="lz4"))
HANG_SECONDS = 30.0
ROUND_SECONDS = 120.0
LONGEST_WAIT = 5.0
READY_SECONDS = 60.0
SHOWN = 5


class Acceptance:
    """The faults, when they were, and what the records waited."""

    def __init__(self, campaign: Campaign, source: Side, target: Side) -> None:
        self.campaign, self.source, self.target = campaign, source, target
        self.troubles: list[Trouble] = []
        topics = {stream.topic: stream.partitions for stream in STREAMS}
        self.began = time.monotonic()
        self.arrivals = (
            Arrivals(campaign.source, topics), Arrivals(campaign.target, topics, "east."),
        )  # fmt: skip
        self.watches = (LeaderWatch("source", source.cluster, topics), LeaderWatch("target", target.cluster, topics, "east."))

    @contextmanager
    def trouble(self, side: Side, node: int) -> Iterator[None]:
        """One broker is not well inside of this block."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.troubles.append(Trouble(side.name, node, begin, time.monotonic()))

    def round(self, number: int) -> None:
        """Two minutes: a hanging source broker, moving leaders, one broker of each cluster restarted."""
        until, report = time.monotonic() + ROUND_SECONDS, self.campaign.report
        node = self.source.nodes[number % 3]
        with self.trouble(self.source, node):
            self.source.hang(node, HANG_SECONDS)
        report.fault("source silent", f"broker {node} of 3 for {HANG_SECONDS:.0f} s")
        self.source.in_sync()
        for side, prefix in ((self.source, ""), (self.target, "east.")):
            moved, refusal = side.move_leaders([prefix + stream.topic for stream in STREAMS], 1)
            report.fault(f"{side.name} leaders move", refusal or f"{moved} partitions")
        time.sleep(5)
        for side in (self.source, self.target):
            other = side.nodes[(number + 1) % 3]
            with self.trouble(side, other):
                side.restart(other)
            report.fault(f"{side.name} restart", f"broker {other} of 3")
        self.campaign.running()
        time.sleep(max(0.0, until - time.monotonic()))

    def settle(self) -> None:
        """What was written is on the target, or time is up: the account decides."""
        self.campaign.load.pause()
        source, target = (arrivals.seen for arrivals in self.arrivals)
        with_all = lambda: all(len(target[place]) >= len(names) for place, names in source.items())  # noqa: E731
        try:
            wait_for("the last records to arrive", with_all, READY_SECONDS, poll=0.5)
        finally:
            for thread in (*self.arrivals, *self.watches):
                thread.close()

    def judge(self) -> None:
        """The longest waits, of partitions on healthy brokers and of others."""
        report = self.campaign.report
        waits = waits_of(*(arrivals.seen for arrivals in self.arrivals))
        leaders = [watch.leaders for watch in self.watches]
        well: list[Wait] = []
        for wait in waits:  # the longest first: a few are enough
            if healthy(wait, leaders, self.troubles):
                well.append(wait)
            if len(well) == SHOWN or wait.seconds < 1.0:
                break
        shown = ", ".join(map(self._tell, well)) or "less than 1 s"
        report.note(f"{len(waits)} records; longest wait {self._tell(waits[0])}; on healthy brokers: {shown}")
        median = waits[len(waits) // 2].seconds
        report.note(f"half of all records waited {median:.2f} s at most, 99 of 100 {waits[len(waits) // 100].seconds:.2f} s")
        faults = ", ".join(f"{fault.at - (self.began - report.began):.0f} s {fault.kind}" for fault in report.faults)
        report.note(f"ends of the faults, on the same clock: {faults}")
        late = [wait for wait in well if wait.seconds > LONGEST_WAIT]
        if late:
            report.account.unexplain(f"partitions on healthy brokers waited for others: {[self._tell(w) for w in late]}")

    def _tell(self, wait: Wait) -> str:
        return f"{wait.seconds:.1f} s ({wait.place[0]}[{wait.place[1]}] from {wait.since - self.began:.0f} s on)"


@pytest.mark.parametrize("steady", [False, True], ids=["leaders move", "leaders stay"])
def test_acceptance(plan: Callable[..., CampaignReport], cluster_factory: Callable[..., list], tmp_path: Path, steady: bool) -> None:
    """``leaders stay``: the source's controller takes 45 s to miss a broker, so a hanging one keeps its partitions."""
    report = plan("acceptance-steady" if steady else "acceptance", counted_as="acceptance")
    minutes, report.wanted = report.wanted, 1
    (a,) = cluster_factory(names=["source"], brokers=3, config=STEADY if steady else QUICK)
    (b,) = cluster_factory(names=["target"], brokers=3, config=QUICK)
    source, target = Side("source", a), Side("target", b)
    campaign = Campaign(report, tmp_path, a.bootstrap_servers, b.bootstrap_servers, streams=STREAMS, engine=with_spark())
    run: list[Acceptance] = []
    until, rounds = 0.0, 0

    def step() -> None:
        nonlocal until, rounds
        if not run:
            run.append(Acceptance(campaign, source, target))
            until = time.monotonic() + 60 * minutes
        run[0].round(rounds)
        rounds += 1
        if time.monotonic() < until:
            report.wanted = len(report.faults) + 1
            return
        report.wanted = len(report.faults)
        run[0].settle()
        run[0].judge()
        for end in report.ends:
            report.account.unexplain(f"the run ended {end}")

    campaign.drive(step)

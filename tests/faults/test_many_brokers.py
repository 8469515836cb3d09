"""Two clusters of three brokers: one broker's trouble, moving leaders, no leader, quotas, restarts one by one, new passwords."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, without_spark
from tests.faults.child import Stuck, wait_for
from tests.faults.load import DEFAULT_STREAMS, Stream
from tests.faults.report import CampaignReport
from tests.faults.sides import QUICK, STEADY, Side
from tests.support.certificates import keystore
from tests.support.quotas import KINDS, set_quotas
from tests.support.scram import SCRAM, login, set_password

OTHERS_SECONDS = 5.0
"""How long partitions of healthy brokers may take to continue while another broker does not answer."""
SHORTEST_HANG, LONGEST_HANG, LONGEST_STEADY = 8.0, 20.0, 30.0
LONGEST_DEATH = 16.0
"""Ten seconds longer than it takes until the controller reports no leader."""
LOGINS = ("SASL_PLAINTEXT", "SASL_SSL")
SINGLE = tuple(Stream(f"load-single-{n}", replicas=1, codec="lz4" if n else "none") for n in range(2))
"""Partitions that have no leader while their only broker is down."""

Plan = Callable[..., CampaignReport]
Factory = Callable[..., list[LocalCluster]]


class Two:
    """A campaign between two clusters of three brokers; the mirror logs in where ``protocol`` says how."""

    def __init__(
        self, report: CampaignReport, factory: Factory, folder: Path, config: dict[str, str], *, protocol: str = "", **more: Any
    ) -> None:
        self.folder = folder
        secure: dict[str, Any] = {"config": config}
        if protocol:
            secure = {"config": {**keystore(folder), **SCRAM, **config}, "listeners": {"SECURE": protocol}}
        sides = [Side(name, factory(names=[name], brokers=3, **secure)[0]) for name in ("source", "target")]
        self.source, self.target = sides
        addresses = [side.cluster.bootstrap_servers for side in sides]
        if protocol:
            more["clusters"] = {alias: self._login(side, protocol) for alias, side in zip(("east", "west"), sides, strict=True)}
        self.campaign = Campaign(report, folder, *addresses, engine=without_spark(report.seed), **more)
        self.report, self.chance = report, self.campaign.chance

    def _login(self, side: Side, protocol: str) -> dict[str, Any]:
        self.change_password(side, "first")
        security = login(self.secret(side), self.folder / "ca.pem" if protocol == "SASL_SSL" else None)
        return {"bootstrap_servers": side.cluster.listener("SECURE"), "security": security}

    def secret(self, side: Side) -> Path:
        """The file with the mirror's password for a cluster."""
        return self.folder / f"{side.name}-password"

    def change_password(self, side: Side, password: str) -> None:
        """On the cluster and in the file."""
        set_password(side.cluster.bootstrap_servers, password)
        self.secret(side).write_text(password)

    def drive(self, step: Callable[[], None]) -> None:
        """Steps, each with a run in progress before it and records arriving after it."""

        def whole() -> None:
            self.campaign.running()
            self.campaign.pause()
            step()
            self.campaign.moving()

        self.campaign.drive(whole)

    def topics(self, side: Side) -> list[str]:
        """The load's topics as they are called there."""
        names = [stream.topic for stream in self.campaign.load.streams]
        return names if side is self.source else ["east." + name for name in names]

    def others_go_on(self, until: float) -> None:
        """Records of other partitions arrive all the time although one broker is down."""
        while time.monotonic() < until - OTHERS_SECONDS:
            before = self.campaign.delivered()
            try:
                wait_for("others to continue", lambda b=before: self.campaign.delivered() > b >= 0, OTHERS_SECONDS, poll=0.15)  # type: ignore[misc]
            except Stuck:
                self.report.account.unexplain(f"after fault {len(self.report.faults) + 1}: nothing arrived for {OTHERS_SECONDS:.0f} s")


@pytest.mark.parametrize("steady", [True, False], ids=["leaders stay", "leaders move"])
def test_a_source_broker_stops_answering(plan: Plan, cluster_factory: Factory, tmp_path: Path, steady: bool) -> None:
    """SIGSTOP for 5 to 30 s. While leaders stay, the partitions of the others must not wait."""
    report = plan("silent" if steady else "silent-moves", counted_as="silent")
    two = Two(report, cluster_factory, tmp_path, STEADY if steady else QUICK, streams=(*DEFAULT_STREAMS, *SINGLE))

    def step() -> None:
        node = two.chance.choice(two.source.nodes)
        seconds = two.chance.uniform(*((5.0, LONGEST_STEADY) if steady else (SHORTEST_HANG, LONGEST_HANG)))
        two.source.hang(node, seconds, two.others_go_on if steady else None)
        report.fault("source silent", f"broker {node} of 3 for {seconds:.1f} s, leaders {'stay' if steady else 'move'}")

    two.drive(step)


def test_partitions_have_no_leader_for_a_while(plan: Plan, cluster_factory: Factory, tmp_path: Path) -> None:
    """Topics of one replica, on both sides: a broker dies, its partitions have no leader until it is back; the others continue."""
    report = plan("leaderless")
    single = {"topics": {"include": ["load-.*"], "replication_factor": 1}}
    two = Two(report, cluster_factory, tmp_path, QUICK, streams=(*SINGLE, Stream("load-plain"), Stream("load-wide", 6)), mirror=single)

    def step() -> None:
        side = two.chance.choice((two.source, two.target))
        node, seconds = two.chance.choice(side.nodes), two.chance.uniform(1, LONGEST_DEATH)
        side.cluster.kill(node=node)
        time.sleep(seconds)
        without = sum(leader in (-1, node) for leader in side.leaders(two.topics(side)).values())
        side.cluster.start()
        side.in_sync()
        report.fault(f"{side.name} leaderless", f"broker {node} of 3 dead for {seconds:.1f} s, {without} partitions without leader")

    two.drive(step)


def test_leaders_move_under_load(plan: Plan, cluster_factory: Factory, tmp_path: Path) -> None:
    """On the source mostly, several times in a row, with producers that wait for all replicas."""
    report = plan("leaders")
    two = Two(report, cluster_factory, tmp_path, QUICK)

    def step() -> None:
        side = two.chance.choice((two.source, two.source, two.source, two.target))
        for _ in range(two.chance.randint(1, 5)):
            moved, refusal = side.move_leaders(two.topics(side), two.chance.randint(1, 2))
            if refusal:
                report.note(f"leaders do not move: {refusal}")
                return
            report.fault(f"{side.name} leaders move", f"{moved} partitions")
            time.sleep(two.chance.uniform(0, 1.5))

    two.drive(step)


def test_quotas_come_and_go(plan: Plan, cluster_factory: Factory, tmp_path: Path) -> None:
    """Less than the load needs, on either side, for some seconds; by bytes or by the time that requests take."""
    report = plan("quotas")
    two = Two(report, cluster_factory, tmp_path, QUICK)

    def step() -> None:
        side = two.chance.choice((two.source, two.target))
        kinds = two.chance.sample(KINDS, two.chance.randint(1, 2))
        rates = {kind: two.chance.randint(1, 5) if kind.startswith("request") else two.chance.randint(20_000, 200_000) for kind in kinds}
        seconds = two.chance.uniform(2, 10)
        set_quotas(side.cluster.bootstrap_servers, rates)
        try:
            time.sleep(seconds)
            if two.chance.random() < 0.5:
                two.campaign.moving()
        finally:
            set_quotas(side.cluster.bootstrap_servers, dict.fromkeys(rates))
        limits = ", ".join(f"{kind} {rate:,}" for kind, rate in rates.items())
        report.fault(f"{side.name} quota", f"{limits} for {seconds:.1f} s")

    two.drive(step)


@pytest.mark.parametrize("protocol", ["", "SASL_SSL"], ids=["plaintext", "sasl_ssl"])
def test_both_clusters_are_restarted_one_broker_at_a_time(plan: Plan, cluster_factory: Factory, tmp_path: Path, protocol: str) -> None:
    """As an upgrade does it, under load; now and then both clusters at once."""
    report = plan("rolling-sasl" if protocol else "rolling", counted_as="rolling")
    two = Two(report, cluster_factory, tmp_path, QUICK, protocol=protocol, streams=(*DEFAULT_STREAMS, Stream("load-wide", 6)))

    def step() -> None:
        sides = two.chance.choice(([two.source, two.target], [two.source], [two.target]))
        for node in two.source.nodes:
            for side in sides:
                side.restart(node)
                report.fault(f"{side.name} restart", f"broker {node} of 3")

    two.drive(step)
    assert not report.ends, f"a restart of brokers must not end a run:\n{report.ends}"


def test_passwords_change(plan: Plan, cluster_factory: Factory, tmp_path: Path) -> None:
    """On the cluster or in the mirror's file, and some seconds later in the other; or the file is empty for so long."""
    report = plan("secrets")
    brief = {**QUICK, "listener.name.secure.connections.max.reauth.ms": "3000"}
    two = Two(report, cluster_factory, tmp_path, brief, protocol=LOGINS[report.seed // 4 % 2])

    def step() -> None:
        sides = two.chance.choice(([two.source, two.target], [two.source], [two.target]))
        first, seconds = two.chance.choice(("server", "file", "empty file")), two.chance.uniform(1, 15)
        password = f"password-{len(report.faults)}"
        for side in sides:
            if first == "server":
                set_password(side.cluster.bootstrap_servers, password)
            else:
                two.secret(side).write_text(password if first == "file" else "")
        time.sleep(seconds)
        for side in sides:
            two.change_password(side, password)
        report.fault(f"{first} first", f"{' and '.join(side.name for side in sides)}, the rest {seconds:.1f} s later")

    two.drive(step)
    assert not report.ends, f"a new password must not end a run:\n{report.ends}"

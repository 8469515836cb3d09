"""The target forgets producers within a second, because the records are old: nothing may be sent blindly after a fault."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.crash_points import CRASH, ONCE
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, with_spark
from tests.faults.child import Stuck, send_signal, wait_for
from tests.faults.load import OLD_STREAMS
from tests.faults.pauses import pause_brokers
from tests.faults.report import CampaignReport
from tests.faults.sides import FORGETFUL
from tests.support.proxy import PRODUCE, Harm, Rule
from tests.support.proxy_cluster import Proxies, proxied_cluster

EXPIRED_SECONDS = 1.5
LOSING = (Harm.CUT_AFTER, Harm.CUT_AFTER, Harm.DROP_RESPONSE, Harm.CUT_RESPONSE_MIDDLE, Harm.CUT_REQUEST_MIDDLE, Harm.DELAY_RESPONSE)
"""A broker that has forgotten takes any sequence; duplicates on the wire itself do not happen with TCP and are left out here."""
POINTS = ("produce.after_send", "produce.before_ack", "record.before", "record.after")
FIRE_SECONDS = 10.0
POINT_SECONDS = 60.0
LONGEST_HANG = 10.0
"""A request is given up after six seconds in this campaign: its own time and the broker's."""
HANG_SHARE = 0.2


def lose_an_answer(campaign: Campaign, proxy: Proxies) -> None:
    """The outcome of a produce request is unknown, and the state is gone before the mirror asks."""
    harm = campaign.chance.choice(LOSING)
    rule = proxy.arm(Rule(harm, PRODUCE, campaign.chance.randrange(3), 5.0 if harm is Harm.DELAY_RESPONSE else 0.0))
    if rule.fired.wait(FIRE_SECONDS) or not proxy.disarm(rule):
        campaign.report.fault(str(harm), str(rule))


def kill_a_worker(campaign: Campaign, _: Proxies) -> None:
    """A worker with a connection to the target dies."""
    child = campaign.running()
    pid = child.a_worker(campaign.chance, campaign.ports)
    if pid is not None and send_signal(pid, signal.SIGKILL):
        campaign.report.fault("worker")


def kill_the_tree(campaign: Campaign, _: Proxies) -> None:
    """Kill every process; the next run starts after the state has expired."""
    campaign.blame()
    campaign.running().kill_tree()
    campaign.report.fault("tree")
    time.sleep(EXPIRED_SECONDS)


def crash_at_a_point(campaign: Campaign, _: Proxies) -> None:
    """Between send, answer and ledger."""
    name, number = campaign.chance.choice(POINTS), len(campaign.report.faults)
    mark = campaign.folder / f"crashed-{number}"
    campaign.blame()
    campaign.running().kill_tree()
    child = campaign.start(**{CRASH: f"{name}:{campaign.chance.randint(1, 4)}", ONCE: str(mark)})
    campaign.blame()
    try:
        wait_for(name, lambda: mark.exists() or not child.alive, POINT_SECONDS)
    except Stuck as error:
        campaign.report.note(str(error))
        return
    campaign.report.fault(f"point {name}")
    time.sleep(EXPIRED_SECONDS)


def fall_silent(campaign: Campaign, _: Proxies) -> None:
    """No load until everything is forgotten; after that, sequences continue where they were."""
    campaign.load.pause()
    time.sleep(campaign.chance.uniform(1.5, 3.5))
    campaign.load.resume()
    campaign.report.fault("silence")


FAULTS: tuple[Callable[[Campaign, Proxies], None], ...] = (
    lose_an_answer, lose_an_answer, lose_an_answer, kill_a_worker, kill_a_worker, kill_the_tree, crash_at_a_point, fall_silent,
)  # fmt: skip


def hang_brokers(campaign: Campaign, target: LocalCluster) -> None:
    """Requests wait in the broker's sockets, perhaps until the mirror has given them up; then the broker executes them."""
    seconds = campaign.chance.uniform(0.5, LONGEST_HANG)
    node = campaign.chance.choice((None, *(broker.node for broker in target.brokers)))
    pause_brokers(campaign, "target", target, node, seconds)


def test_expired_state(plan: Callable[[str], CampaignReport], own_clusters: Callable[[LocalCluster], None], tmp_path: Path) -> None:
    report = plan("expired")
    source = proxied_cluster(tmp_path / "kafka" / "a", seed=report.seed)
    own_clusters(source.cluster)
    target = proxied_cluster(tmp_path / "kafka" / "b", seed=report.seed, config=FORGETFUL)
    own_clusters(target.cluster)
    campaign = Campaign(
        report, tmp_path / "mirror", source.direct, target.direct, via=(source.via, target.via), streams=OLD_STREAMS, engine=with_spark()
    )

    def step() -> None:
        campaign.running()
        campaign.pause()
        if campaign.chance.random() < HANG_SHARE:
            hang_brokers(campaign, target.cluster)
        else:
            campaign.chance.choice(FAULTS)(campaign, target.proxy)
        campaign.moving()

    campaign.drive(step)

"""Faults of a proxy between the mirror and one cluster."""

from __future__ import annotations

import time
from dataclasses import replace

from mirror_pipeline.local.embedded.ports import HOST
from mirror_pipeline.local.embedded.settings import BROKER
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign
from tests.faults.load import Load
from tests.support.proxy import (
    API_VERSIONS,
    DESCRIBE_PRODUCERS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    Harm,
    Rule,
)
from tests.support.proxy_cluster import ProxiedCluster, Proxies

FIRE_SECONDS = 4.0
IDLE_SECONDS = 7.0
"""Longer than a connection may be idle before it is asked whether it lives."""
FOREIGN_SECONDS = 5.0
LONGEST_DELAY = 6.0
"""Twice the engine's request timeout in this campaign: some delays pass, some count as lost connections."""
APIS = {"source": [FETCH] * 5 + [LIST_OFFSETS, METADATA, API_VERSIONS], "target": [PRODUCE] * 6 + [
    FETCH, LIST_OFFSETS, DESCRIBE_PRODUCERS, METADATA, API_VERSIONS]}  # fmt: skip
AT_CONNECT = {METADATA, API_VERSIONS, DESCRIBE_PRODUCERS}
"""Requests that are rare on an open connection: connections are cut first, which also starts tail recovery."""


def harm_an_exchange(campaign: Campaign, side: str, proxy: Proxies) -> bool:
    """Arm one rule and wait until it has hit; False when no such request came by."""
    chance = campaign.chance
    api = chance.choice(APIS[side])
    harm = chance.choice([h for h in Harm if h is not Harm.REPLAY or api == PRODUCE])
    seconds = {Harm.THROTTLE: 1.5, Harm.REPLAY: chance.uniform(0.1, 3)}.get(harm, 0.0)
    if harm in (Harm.DELAY_REQUEST, Harm.DELAY_RESPONSE):
        seconds = chance.uniform(0.1, LONGEST_DELAY)
    rate = chance.choice((500, 5_000, 50_000)) if harm is Harm.THROTTLE else 0
    rule = proxy.arm(Rule(harm, api, chance.randrange(4) if api in (FETCH, PRODUCE) else 0, seconds, rate))
    if api in AT_CONNECT:
        proxy.cut_all()
    if not rule.fired.wait(FIRE_SECONDS + rule.seconds) and proxy.disarm(rule):
        return False
    campaign.report.fault(f"{side} {rule.harm}", str(rule))
    return True


def cut_connections(campaign: Campaign, side: str, proxy: Proxies) -> bool:
    """All connections at once, or those of one broker, end, hang or are refused for a while."""
    kind = campaign.chance.choice(("cut-all", "freeze", "refuse"))
    seconds = campaign.chance.uniform(0.3, 5.0)
    one = campaign.chance.random() < 0.5
    chosen = [campaign.chance.choice(proxy.each)] if one else list(proxy.each)
    for each in chosen:
        if kind == "freeze":
            each.frozen.set()
        elif kind == "refuse":
            each.refusing.set()
        if kind != "freeze":
            each.cut_all()
    if kind != "cut-all":
        time.sleep(seconds)
    for each in chosen:
        each.frozen.clear()
        each.refusing.clear()
    whose = "one broker" if one else "all brokers"
    campaign.report.fault(f"{side} {kind}", whose + (f", {seconds:.1f} s" if kind != "cut-all" else ""))
    return True


def forget_connections(campaign: Campaign, side: str, proxy: Proxies) -> bool:
    """All connections stay open and pass nothing on any more: while they are in use, or after a while without records."""
    idle = campaign.chance.random() < 0.5
    if idle:
        campaign.load.pause()
        time.sleep(IDLE_SECONDS)
    count = proxy.silence_all()
    campaign.load.resume()
    campaign.report.fault(f"{side} black hole", f"{count} connections{', idle' if idle else ''}")
    return True


class Strangers:
    """A cluster of somebody else whose topics have the names of both sides', with records that must never be seen."""

    def __init__(self, campaign: Campaign, cluster: LocalCluster) -> None:
        self._campaign = campaign
        self._address = HOST, cluster.ports[0][BROKER]
        for prefix in ("", "east."):
            streams = tuple(replace(stream, topic=prefix + stream.topic, transactional=False) for stream in campaign.load.streams)
            load = Load(cluster.bootstrap_servers, streams, seed=campaign.report.seed + 1)
            load.create_topics()
            load.start()
            time.sleep(FOREIGN_SECONDS)
            load.stop()

    def answer(self, side: str, proxy: Proxies) -> None:
        """For some seconds they answer at one broker's address."""
        chance = self._campaign.chance
        one, seconds = chance.choice(proxy.each), chance.uniform(0.5, 8.0)
        own, one.upstream = one.upstream, self._address
        one.cut_all()
        time.sleep(seconds)
        one.upstream = own
        one.cut_all()
        self._campaign.report.fault(f"{side} stranger", f"{seconds:.1f} s at one broker's address")


def proxy_step(campaign: Campaign, source: ProxiedCluster, target: ProxiedCluster, strangers: Strangers | None = None) -> None:
    """One fault on one side."""
    side, proxy = campaign.chance.choice((("source", source.proxy), ("target", target.proxy), ("target", target.proxy)))
    if strangers is not None and campaign.chance.random() < 0.1:
        strangers.answer(side, proxy)
        return
    share = campaign.chance.random()
    fault = cut_connections if share < 0.15 else forget_connections if share < 0.25 else harm_an_exchange
    fault(campaign, side, proxy)

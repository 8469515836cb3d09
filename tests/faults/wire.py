"""Faults of a proxy between the mirror and one cluster."""

from __future__ import annotations

import time

from tests.faults.campaign import Campaign
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


def proxy_step(campaign: Campaign, source: ProxiedCluster, target: ProxiedCluster) -> None:
    """One fault on one side."""
    side, proxy = campaign.chance.choice((("source", source.proxy), ("target", target.proxy), ("target", target.proxy)))
    fault = cut_connections if campaign.chance.random() < 0.15 else harm_an_exchange
    fault(campaign, side, proxy)

"""A proxy on either side harms requests and responses by their type, forgets connections, or leads to somebody else's cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import Campaign, without_spark
from tests.faults.report import CampaignReport
from tests.faults.wire import Strangers, proxy_step
from tests.support.proxy_cluster import proxied_cluster


def test_proxy_faults(
    plan: Callable[[str], CampaignReport],
    own_clusters: Callable[[LocalCluster], None],
    cluster_factory: Callable[..., list[LocalCluster]],
    tmp_path: Path,
) -> None:
    report = plan("proxy")
    source, target = (proxied_cluster(tmp_path / "kafka" / name, seed=report.seed) for name in "ab")
    own_clusters(source.cluster)
    own_clusters(target.cluster)
    campaign = Campaign(
        report, tmp_path / "mirror", source.direct, target.direct, via=(source.via, target.via), engine=without_spark(report.seed)
    )
    strangers = Strangers(campaign, cluster_factory(names=["strange"], heap="256m")[0])

    def step() -> None:
        campaign.running()
        campaign.pause(0.2)
        proxy_step(campaign, source, target, strangers)
        campaign.moving()

    campaign.drive(step)

"""Brokers that are killed, stopped, restarted and paused on both sides; a target of three brokers whose leaders move."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.errors import KafkaError

from mirror_pipeline.local.cluster import LocalCluster
from tests.faults.campaign import Campaign, without_spark
from tests.faults.report import CampaignReport

LONGEST_PAUSE = 6.0
STOP_SECONDS = 10.0
IN_SYNC_SECONDS = 60.0
THREE = {
    "min.insync.replicas": "2", "replica.lag.time.max.ms": "5000", "broker.session.timeout.ms": "6000",
    "auto.leader.rebalance.enable": "false",
}  # fmt: skip


class Brokers:
    """The faults of this campaign."""

    def __init__(self, campaign: Campaign, source: LocalCluster, target: LocalCluster) -> None:
        self.campaign = campaign
        self.source, self.target = source, target
        self.chance = campaign.chance

    def step(self) -> None:
        """One fault: two in three on the target, half of those that can move leaders."""
        on_target = (self.one_down, self.one_down, self.paused, self.leaders_move, self.two_down)
        self.chance.choice((*on_target, self.source_down, self.source_paused))()

    def one_down(self) -> None:
        """One of the three target brokers dies or stops, its leaders move; it comes back."""
        node = self.chance.randint(1, 3)
        how = self.chance.choice(("kill", "stop"))
        if how == "kill":
            self.target.kill(node=node)
        else:
            self._stop(self.target, node)
        self.campaign.report.fault(f"target {how}", f"broker {node} of 3")
        if self.chance.random() < 0.5:
            self.campaign.moving()
        self.target.start()
        self._in_sync()

    def two_down(self) -> None:
        """Two of three die: fewer than min.insync.replicas are left, writes are refused until they are back."""
        node = self.chance.randint(1, 3)
        for other in {1, 2, 3} - {node}:
            self.target.kill(node=other)
        self.campaign.report.fault("target kill two", f"broker {node} of 3 is left")
        time.sleep(self.chance.uniform(0, 3))
        self.target.start()
        self._in_sync()

    def paused(self) -> None:
        """A target broker hangs and goes on: fenced by the controller if it lasted."""
        node, seconds = self.chance.randint(1, 3), self.chance.uniform(0.3, LONGEST_PAUSE)
        self.target.pause(node=node)
        time.sleep(seconds)
        self.target.resume(node=node)
        self.campaign.report.fault("target pause", f"broker {node} of 3 for {seconds:.1f} s")

    def leaders_move(self) -> None:
        """Leaders move under load: every partition's replicas are turned by one or two, and the then preferred ones elected."""
        turn = self.chance.randint(1, 2)
        admin = KafkaAdminClient(bootstrap_servers=self.target.bootstrap_servers.split(","), request_timeout_ms=15_000)
        try:
            names = ["east." + stream.topic for stream in self.campaign.load.streams]
            turned = {
                KafkaPartition(topic["name"], part["partition_index"]): part["replica_nodes"][turn:] + part["replica_nodes"][:turn]
                for topic in admin.describe_topics(names)
                for part in topic["partitions"]
            }
            admin.alter_partition_reassignments(turned)
            admin.elect_leaders(0, {name: [tp.partition for tp in turned if tp.topic == name] for name in names}, raise_errors=False)
        except KafkaError as problem:
            self.campaign.report.note(f"leaders do not move: {problem}")
            return
        finally:
            admin.close()
        self.campaign.report.fault("leaders move", f"{len(turned)} partitions")

    def source_down(self) -> None:
        """The source's only broker dies or stops and comes back."""
        how = self.chance.choice(("kill", "stop"))
        if how == "kill":
            self.source.kill()
        else:
            self.source.stop(STOP_SECONDS)
        self.campaign.report.fault(f"source {how}")
        time.sleep(self.chance.uniform(0, 2))
        self.source.start()

    def source_paused(self) -> None:
        """The source hangs and goes on."""
        seconds = self.chance.uniform(0.3, LONGEST_PAUSE)
        self.source.pause()
        time.sleep(seconds)
        self.source.resume()
        self.campaign.report.fault("source pause", f"{seconds:.1f} s")

    @staticmethod
    def _stop(cluster: LocalCluster, node: int) -> None:
        broker = next(broker for broker in cluster.brokers if broker.node == node)
        broker.ask_to_stop()
        broker.end(time.monotonic() + STOP_SECONDS)

    def _in_sync(self) -> None:
        """Wait until all replicas follow: what is acknowledged by two must not be lost with the next kill."""
        deadline = time.monotonic() + IN_SYNC_SECONDS
        admin = AdminClient({"bootstrap.servers": self.target.bootstrap_servers, "log_level": 0})
        while time.monotonic() < deadline:
            with suppress(KafkaException):
                topics = admin.list_topics(timeout=10).topics.values()
                if all(len(p.isrs) == len(p.replicas) for t in topics for p in t.partitions.values()):
                    return
            time.sleep(0.2)


def test_brokers(plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path) -> None:
    report = plan("brokers")
    (source,) = cluster_factory(names=["a"], heap="256m")
    (target,) = cluster_factory(names=["b"], heap="256m", brokers=3, config=THREE)
    campaign = Campaign(report, tmp_path, source.bootstrap_servers, target.bootstrap_servers, engine=without_spark(report.seed))
    brokers = Brokers(campaign, source, target)

    def step() -> None:
        campaign.running()
        campaign.pause()
        brokers.step()
        campaign.moving()

    campaign.drive(step)

"""``Flow``: the settings, clusters and buffer of one mirror, and the clients that reach them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings, Config, MirrorConfig
from mirror_pipeline.errors import BufferUnusable, ClusterUnreachable, MirrorError, UsageError, WrongCluster
from mirror_pipeline.execution.java import find_java
from mirror_pipeline.execution.placement import Placement, for_comparing, inline_bytes, spark_may_be_needed
from mirror_pipeline.execution.runner import Runner
from mirror_pipeline.execution.spark import SparkRunner, build_context, refuse_retries
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.security.identity import refuse_one_cluster
from mirror_pipeline.topics.claims import Claims
from mirror_pipeline.topics.directions import Directions
from mirror_pipeline.topics.lanes import LANE_PREFIX, LaneTopic, discover, lane_stores, lanes_to_run, ledger_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_CONTACT_SECONDS = 3.0
"""For clusters whose ids no ledger knows yet: one that does not answer is told apart later."""
STRANGERS_HINT = "compare bootstrap_servers with the brokers' addresses: one belongs to another cluster"
Session: TypeAlias = "SparkSession | Callable[[], SparkSession] | None"


class Flow:
    """What a mirror is: its settings, its two clusters, its lanes in the buffer. The verbs are in :class:`mirror_pipeline.Mirror`.

    Args:
        config: from :func:`mirror_pipeline.load_config`.
        name: the mirror's name.

    Raises:
        UsageError: no mirror of that name.
    """

    def __init__(self, config: Config, name: str) -> None:
        settings = next((m for m in config.mirrors if m.name == name), None)
        if settings is None:
            known = ", ".join(m.name for m in config.mirrors)
            raise UsageError(f"no mirror is named {name!r} in {config.path}", hint=f"it has: {known}")
        self.config = config
        self.settings: MirrorConfig = settings
        self.name = name
        self._source: ClusterSettings = config.clusters[settings.source]
        self._target: ClusterSettings = config.clusters[settings.target]
        self._ids: dict[str, str] = {}

    @property
    def source(self) -> ClusterSettings:
        """The source, with the cluster id that its brokers must have, where the ledger or :meth:`meet` knows it."""
        return self._identified(self._source, "source_cluster_id")

    @source.setter
    def source(self, settings: ClusterSettings) -> None:
        self._source = settings

    @property
    def target(self) -> ClusterSettings:
        """The target, likewise."""
        return self._identified(self._target, "target_cluster_id")

    @target.setter
    def target(self, settings: ClusterSettings) -> None:
        self._target = settings

    @property
    def copies(self) -> tuple[ClusterSettings, ...]:
        """Clusters that hold the source's topics with the same offsets: ``sources`` of the mirror."""
        return tuple(self.config.clusters[alias] for alias in self.settings.sources)

    def _identified(self, settings: ClusterSettings, column: str) -> ClusterSettings:
        """A ledger knows one cluster on each side for good; of an older version's that knows several, topics are compared one by one."""
        if settings.cluster_id:
            return settings
        if column not in self._ids:
            try:
                generations = [generation for store in self.lane_stores() for generation in Ledger(store).incarnations().values()]
            except BufferUnusable:
                generations = []  # said by whoever needs the buffer
            found = {cluster_id for generation in generations if (cluster_id := getattr(generation, column))}
            if not found:
                return settings
            self._ids[column] = found.pop() if len(found) == 1 else ""
        return replace(settings, cluster_id=self._ids[column]) if self._ids[column] else settings

    def meet(self) -> None:
        """Learn the ids of the clusters of the file, and make sure that source and target are two; those that are silent are left out.

        Raises:
            UsageError: source and target are one cluster.
            ClusterUnreachable: before the ledger knows a cluster, its addresses lead to different ones.
        """
        own = {self.settings.source: self.source, self.settings.target: self.target}
        among = self.config.clusters if len(self.config.mirrors) > 1 else {}
        clusters = {alias: own.get(alias, settings) for alias, settings in {**among, **own}.items()}
        unknown = [settings for settings in clusters.values() if not settings.cluster_id]
        with ThreadPoolExecutor(max(1, len(unknown))) as pool:
            answers = {settings.alias: found for settings, found in zip(unknown, pool.map(_cluster_ids, unknown), strict=True)}
        for alias in own:
            if len(set(answers.get(alias, {}).values())) > 1:
                said = ", ".join(f"{address} to {cluster_id}" for address, cluster_id in sorted(answers[alias].items()))
                raise ClusterUnreachable(alias, f"{alias}: its addresses lead to different clusters: {said}", hint=STRANGERS_HINT)
        ids = {alias: set(found.values()) for alias, found in answers.items()}
        met = {alias: replace(clusters[alias], cluster_id=min(found)) for alias, found in ids.items() if len(found) == 1}
        self._source = met.get(self._source.alias, self._source)
        self._target = met.get(self._target.alias, self._target)
        refuse_one_cluster(self.source, self.target)
        self.config = replace(self.config, clusters={**self.config.clusters, **clusters, **met})

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes that copy: the configured ones, and earlier ones that still have topics. Raises BufferUnusable."""
        return lanes_to_run(self.config.buffer, self.settings)

    def lane(self, number: int) -> str:
        """The name of lane ``number``. Raises UsageError where the mirror has no such lane."""
        name, known = f"{LANE_PREFIX}{number}", self.lanes
        if name not in known:
            raise UsageError(f"mirror {self.name} has {', '.join(known)}, not {name}", hint="see `lanes` in mirror.yaml")
        return name

    def lane_stores(self) -> list[LaneStore]:
        """Folders of the continuous lanes that have run."""
        return lane_stores(self.config.buffer, self.settings)

    def source_client(self) -> WireClient:
        """A client of the source; the caller closes it."""
        return WireClient(self.source, timeout=self.settings.engine.request_timeout)

    def target_client(self) -> WireClient:
        """A client of the target; the caller closes it."""
        return WireClient(self.target, timeout=self.settings.engine.request_timeout)

    def source_admin(self) -> Admin:
        """Administration of the source cluster."""
        return Admin(self.source)

    def source_topics(self) -> list[str]:
        """Names of the source's topics. Raises ClusterUnreachable."""
        with self.source_admin() as admin:
            return list(admin.topics())

    def target_admin(self) -> Admin:
        """Administration of the target cluster."""
        return Admin(self.target)

    def placement(self, session: Session) -> Placement:
        """This process for small micro-batches, Spark for the others. Raises UsageError without Java where Spark may be needed."""
        engine = self.settings.engine
        if session is None and spark_may_be_needed(engine):
            find_java()  # fails now rather than in the middle of the run
        return Placement(lambda: self.spark(session), inline_bytes=inline_bytes(engine))

    def spark(self, session: Session) -> SparkRunner:
        """A runner on Spark; on the process's session if none is given. Raises UsageError for a session that would repeat tasks."""
        engine = self.settings.engine
        given = session() if callable(session) else session
        if given:
            refuse_retries(given.sparkContext)
        context = given.sparkContext if given else build_context(engine, app_name=f"mirror {self.name}")
        runner = SparkRunner(context, tasks=engine.tasks)
        runner.warm()
        return runner

    def comparer(self, session: Session, offsets: int) -> Runner:
        """Where this many source offsets are compared with the target: this process, or Spark for many."""
        return for_comparing(self.settings.engine, offsets, lambda: self.spark(session))

    def discoverer(self, lane: str, only: Collection[str] | None) -> Callable[[], list[LaneTopic]]:
        """A function that returns the lane's current topics."""
        admin = self.source_admin()

        def names() -> list[LaneTopic]:
            try:
                return discover(self.config, self.settings, admin, lane=lane, only=only)
            except WrongCluster:  # the run halts what it has copied
                known = ledger_topics(self.config, self.settings, lane=lane, only=only)
                if not known:
                    raise
                return known

        return names

    def drainer(self, lane: str, only: Collection[str] | None) -> Callable[[], list[LaneTopic]]:
        """The same, by the ledger alone."""
        return lambda: ledger_topics(self.config, self.settings, lane=lane, only=only)

    def claims(self) -> Claims | None:
        """What other mirrors of the configuration write to the target; None where no other may begin a topic of this one."""
        claims = Claims(self.config, self.settings)
        return claims if claims.neighbours or claims.partner is not None else None

    def directions(self) -> Directions:
        """Which topics were promoted, or are copied the other way; not read yet."""
        return Directions(self.config, self.settings)


def _cluster_ids(settings: ClusterSettings) -> dict[str, str]:
    """The id that answers at each address of a cluster, without those that do not answer."""

    def ask(address: str) -> str:
        try:
            with WireClient(replace(settings, bootstrap_servers=(address,)), timeout=FIRST_CONTACT_SECONDS) as client:
                return client.metadata([]).cluster_id
        except MirrorError:
            return ""

    with ThreadPoolExecutor(len(settings.bootstrap_servers)) as pool:
        found = zip(settings.bootstrap_servers, pool.map(ask, settings.bootstrap_servers), strict=True)
        return {address: cluster_id for address, cluster_id in found if cluster_id}

"""``Mirror.refresh_catalogue``: the saved selection that Dagster's definitions are built from."""

from __future__ import annotations

from mirror_pipeline.flow import Flow
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic, refresh_catalogue
from mirror_pipeline.topics.lanes import known_topics


def refresh(flow: Flow) -> Catalogue:
    """See ``Mirror.refresh_catalogue``."""
    known = known_topics(flow.config, flow.settings)
    copied = [CatalogueTopic(n, k.target_topic, len(k.generation.starts), k.generation.topic_id) for n, k in sorted(known.items())]
    with flow.source_admin() as admin:
        return refresh_catalogue(flow.config, flow.settings, admin, copied)

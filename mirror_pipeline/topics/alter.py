"""Changes settings of topics, many in one request (IncrementalAlterConfigs, KIP-339)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, ResourceType

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.admin import Admin

# Topics in one request.
ALTERED_TOGETHER = 200

Changes = Mapping[str, str | None]
"""By setting its new value; None removes the topic's own value, so that the broker's default applies."""


def alter_topics(admin: Admin, changes: Mapping[str, Changes]) -> dict[str, BrokerError | None]:
    """Change settings of topics; an error or None for each. What is not named stays as it is; a topic is changed as a whole or not at all.

    Raises:
        ClusterUnreachable: the cluster does not answer.
    """
    names = sorted(changes)
    answers: dict[str, BrokerError | None] = {}
    for first in range(0, len(names), ALTERED_TOGETHER):
        resources = [_resource(name, changes[name]) for name in names[first : first + ALTERED_TOGETHER]]

        def start(client: Any, timeout: float, resources: list[ConfigResource] = resources) -> dict[str, Future[Any]]:
            futures = client.incremental_alter_configs(resources, request_timeout=timeout)
            return {resource.name: future for resource, future in futures.items()}

        found = admin.ask("change the settings of {}".format, start)
        answers |= {name: answer if isinstance(answer, BrokerError) else None for name, answer in found.items()}
    return answers


def _resource(name: str, changes: Changes) -> ConfigResource:
    entries = [
        ConfigEntry(
            key, value or "", source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in changes.items()
    ]  # fmt: skip
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)

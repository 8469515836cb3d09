"""Settings of brokers, which only each broker itself can tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.cluster_info import ConfigValue

VALUE = {"producer.id.expiration.ms": ConfigValue("86400000", "DEFAULT_CONFIG", False, False)}


@pytest.mark.parametrize("silent", [{"1"}, {"1", "2"}, {"1", "2", "3"}])
def test_a_broker_that_does_not_answer_is_passed_over(monkeypatch: pytest.MonkeyPatch, silent: set[str]) -> None:
    """A lane that starts while one target broker is dead must not wait for that one."""
    asked: list[str] = []

    def configs(self: Admin, resources: dict[str, Any], limit: float | None = None) -> dict[str, Any]:
        (name,) = resources
        asked.append(name)
        if name in silent:
            raise ClusterUnreachable("west", f"broker {name} does not answer")
        return {name: VALUE}

    monkeypatch.setattr(Admin, "describe", lambda self: SimpleNamespace(brokers={3: "c:1", 1: "a:1", 2: "b:1"}))
    monkeypatch.setattr(Admin, "_configs", configs)
    admin = Admin(ClusterSettings("west", ("127.0.0.1:1",)))
    if len(silent) < 3:
        assert admin.broker_configs() == VALUE
        assert asked == [str(node) for node in range(1, len(silent) + 2)]
    else:
        with pytest.raises(ClusterUnreachable):
            admin.broker_configs()

"""Help for tests of topics that are deleted on the source."""

from __future__ import annotations

from mirror_pipeline import Mirror
from tests.integration.processes import wait_until


def expected(first: int, end: int) -> list[str]:
    """Values of these numbers, as ``tests.support.mirrors.produce`` writes them."""
    return [f"value-{number}".ljust(20, ".") for number in range(first, end)]


def delete_topic(mirror: Mirror, topic: str) -> None:
    """Delete a topic on the mirror's source, and wait until it is gone."""
    with mirror.flow.source_admin() as admin:
        admin.delete_topic(topic)
        wait_until(lambda: topic not in admin.topics([topic]), 30, "the topic to go")

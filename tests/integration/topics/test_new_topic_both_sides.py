"""A topic that appears on both clusters of a mirror and its reverse is begun by one of them, whoever looks first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.operations.state.buffer_status import ledger_of
from tests.integration.processes import kill_tree, start_mirror, wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, produce, values
from tests.support.reverse_pair import pair, states


@contextmanager
def running(folder: Path, *words: str) -> Iterator[None]:
    process = start_mirror(folder / "mirror.yaml", "run", *words)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        kill_tree(process)


@pytest.fixture
def turned(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> tuple[Mirror, Mirror]:
    """A pair whose one topic was failed over and back: the reverse is open."""
    create_topic(clusters[0].bootstrap_servers, f"{topic_name}.first")
    forth, back = pair(tmp_path, clusters, f"{topic_name}.*", naming="identity")
    forth.run(once=True)
    forth.failover()
    forth.failback()
    return forth, back


@pytest.mark.long
@pytest.mark.parametrize("processes", [[()], [("--mirror", "m"), ("--mirror", "back")]], ids=["one_process", "two_processes"])
def test_the_open_direction_begins_it(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, turned: tuple[Mirror, Mirror], processes: list[tuple[str, ...]]
) -> None:
    forth, back = turned
    before, during = ([f"{topic_name}.{when}{n}" for n in range(3)] for when in ("before", "during"))

    def appear(names: list[str]) -> None:
        for name in names:
            for cluster in clusters:
                create_topic(cluster.bootstrap_servers, name)

    def begun() -> set[str]:
        return {topic for store in back.flow.lane_stores() for topic in ledger_of(store).incarnations()}

    appear(before)
    with ExitStack() as stack:
        for words in processes:
            stack.enter_context(running(tmp_path, *words))
        wait_until(lambda: begun() >= set(before), 60, "the reverse to begin what was there")
        appear(during)
        wait_until(lambda: begun() >= set(during), 90, "the reverse to begin what appeared")
    for name in (*before, *during):
        for cluster, number in zip(clusters, (100, 200), strict=True):
            produce(cluster.bootstrap_servers, name, 5, start=number)
    assert {state for name, state in states(forth).items() if name != f"{topic_name}.first"} == {"standby"}
    states(back)
    for name in (*before, *during):
        assert values(forth, name) == [f"value-{n}".ljust(20, ".") for n in range(200, 205)], "nothing of the other side's application"


def test_the_forward_direction_begins_it_while_no_other_is_open(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    for cluster in clusters:
        create_topic(cluster.bootstrap_servers, topic_name)
    forth, back = pair(tmp_path, clusters, topic_name, naming="identity")
    assert (states(back), states(forth), states(back)) == ({topic_name: "standby"}, {topic_name: "ok"}, {topic_name: "standby"})
